"""Blame has an answer, or says why not, whatever a run's messages are, and never costs its report."""

import json
from types import SimpleNamespace

import pytest

from dear_mpi.collectives.plans.notes import Noted
from dear_mpi.collectives.transports.wait_policy import Crowd
from dear_mpi.contrib.blame import job
from dear_mpi.contrib.blame.blamed import FEWEST, blame
from dear_mpi.contrib.blame.causes import Suspects
from dear_mpi.contrib.blame.graph import Link, Sort
from dear_mpi.contrib.blame.job import Blamer
from dear_mpi.contrib.look import read_timeline
from dear_mpi.ranks.world import run_world
from dear_mpi.see.timeline import TimelineFiles
from dear_mpi.training.events.recorder import first_noted, without_notes_before
from dear_mpi.training.events.spans import Iteration, Rank
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import FILL, train
from tests.cli_checks import invoke
from tests.training_checks import settings

ENOUGH = FEWEST + FILL


def test_messages_without_bytes_or_seconds_say_nothing_of_a_link():
    suspects = Suspects.__new__(Suspects)
    suspects.iterations, links = 3, [Link(0, 1), Link(1, 0)]
    own_s = {0: [1.0, 2.0], 64: [0.0, 0.0], 96: [3.0, 3.0]}
    seen_s = {Sort(link, nbytes, False): all_s for link in links for nbytes, all_s in own_s.items()}
    suspects.messages = SimpleNamespace(seen_s=seen_s, alone_s=seen_s, usual_s={})
    assert [(each.name, each.messages.nbytes) for each in suspects.of_links()] == [("0 -> 1", 96), ("1 -> 0", 96)]


@pytest.mark.parametrize("more", [{}, {"clip": 1.0}])
def test_runs_through_shared_memory_have_an_answer(more):
    config = Config.of(settings(iterations=ENOUGH + 4, algorithm="shared") | more)
    found = run_world(lambda world: train(config, world, observers={"blame": Blamer}), threads=3)["blame"]
    assert "suspects" in found, found
    assert found["suspects"]["rank"] == 3
    assert found["said"]


def test_a_run_that_is_over_has_its_report_and_timeline_whatever_becomes_of_blame(monkeypatch, tmp_path):
    def fails(*given):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(job, "blame", fails)
    config, path = Config.of(settings(iterations=ENOUGH)), tmp_path / "timeline.json"
    timeline = TimelineFiles("--timeline", [path])
    report = run_world(lambda world: train(config, world, observers={"blame": Blamer}, timeline=timeline), threads=2)
    assert report["loss"]
    assert report["blame"] == {"refused": "it failed with ZeroDivisionError: by zero; this is a bug in dear-mpi"}
    assert len(read_timeline(str(path)).runs) == 1


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    config, path = Config.of(settings(iterations=ENOUGH)), folder / "timeline.json"
    how = {"timeline": TimelineFiles("--timeline", [path]), "observers": {"blame": Blamer}}
    return path, run_world(lambda world: train(config, world, **how), threads=2)


def test_a_written_timeline_has_the_iterations_that_the_run_had(recorded):
    timeline, report = recorded
    assert report["blame"]["iterations"] == FEWEST
    (run,) = read_timeline(str(timeline)).runs
    assert blame(run).iterations == FEWEST


def test_what_one_rank_does_in_its_first_iteration_others_may_have_done_before_theirs():
    def rank(begin_s, numbers):
        noted = [Noted(number, {}, (), (float(number), number + 0.5)) for number in numbers]
        return Rank("", (Iteration(5, begin_s, 9.0),), (), noted=tuple(noted))

    early, late = rank(3.2, range(6)), rank(4.7, range(2, 6))
    assert first_noted([early, late]) == 3
    assert [noted.number for noted in without_notes_before(3, late).noted] == [3, 4, 5]
    assert first_noted([early, rank(4.7, [4, 5])]) == 4, "one has no notes of it"
    assert first_noted([rank(3.2, [])]) == 0


def test_where_ranks_share_cores_blame_says_so(recorded, tmp_path):
    content, path = json.loads(recorded[0].read_text()), tmp_path / "crowded.json"
    said = [invoke("blame", str(recorded[0])).output]
    content["recorded"]["facts"]["transport"] = f"MPI; {Crowd(threads=6, cores=2)}"
    path.write_text(json.dumps(content))
    said.append(invoke("blame", path).output)
    assert ["Ranks share cores here" in each for each in said] == [False, True]


def test_a_timeline_of_too_few_iterations_is_named(recorded, tmp_path):
    content, path = json.loads(recorded[0].read_text()), tmp_path / "few.json"
    for rank in content["recorded"]["runs"][0]["ranks"]:
        del rank["iterations"][-1]
    path.write_text(json.dumps(content))
    done = invoke("blame", path)
    assert done.exit_code == 2
    assert f"few.json': blame needs {FEWEST} iterations at least, and has {FEWEST - 1}" in done.output
