"""Recording under mpirun: every rank has what all did, and each adds up to what its own rank has measured."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from dear_mpi.collectives.plans.notes import KINDS
from dear_mpi.contrib.look import steps_in
from dear_mpi.contrib.pictures.trace import trace
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.units import parse_link
from dear_mpi.training.events.spans import Timeline
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from tests.cli_checks import succeed
from tests.timelines import INSTANT_US, assert_schema, recorded
from tests.training_checks import settings

pytestmark = pytest.mark.mpi


def trained(world, **options):
    """The run, the times of its iterations on this rank, and what the engine's thread did in all."""
    config = Config.of(settings(schedule="dear", iterations=5, **options))
    with Job(config, world, [config.schedule]) as job:
        times = [job.iterate(config.schedule, *job.batch(number))[1] for number in range(config.iterations)]
        return recorded(job, "mine"), times


@pytest.mark.parametrize("link", [None, parse_link("10gbit,1us")], ids=["real", "emulated"])
def test_spans_of_all_ranks_add_up(comm, link):
    run, times = run_world(trained, link=link)
    assert comm.allgather(run) == [run] * comm.size
    assert [rank.name for rank in run.ranks] == [f"rank {rank}" for rank in range(comm.size)]
    mine = run.ranks[comm.rank]
    for iteration in mine.iterations:
        told = times[iteration.number]
        assert sum(span.seconds for span in mine.within(iteration, "wait")) == pytest.approx(told.exposed_s, abs=1e-9)
        assert sum(span.seconds for span in mine.within(iteration, "forward")) == pytest.approx(told.forward_s)
        assert sum(span.seconds for span in mine.within(iteration, "backward")) == pytest.approx(told.backward_s)


@pytest.mark.parametrize("algorithm", ["ring", "shared", "native"])
def test_what_is_inside_of_collectives_is_in_their_spans(comm, algorithm):
    run, _ = run_world(lambda world: trained(world, algorithm=algorithm, segment_bytes=4096))
    content = trace(Timeline(live=True, runs=(run,)))
    assert_schema(content)
    flows = [event for event in content["traceEvents"] if event["ph"] == "f"]
    assert bool(flows) == (comm.size > 1), "the loss travels by messages, whatever the algorithm"
    for rank in run.ranks:
        carried = [span for span in rank.spans if span.kind in ("reduce_scatter", "all_gather")]
        noted = [each for each in rank.noted if each.said.get("bucket") is not None]
        shown = [each for each in noted if each.begin_s >= carried[0].begin_s][-len(carried) :]
        for span, own in zip(carried[-len(shown) :], shown, strict=True):
            assert own.said["collective"] == span.kind
            assert span.begin_s <= own.begin_s <= own.end_s <= span.end_s
    kinds = {span["cat"] for span in content["traceEvents"] if span["ph"] == "X" and span["tid"] == 2}
    assert ("whole" in kinds) == (algorithm == "native")
    inside = range(comm.size) if comm.size > 1 or algorithm != "ring" else ()  # a ring of one rank has no steps
    of_buckets = [span for spans in steps_in(run).values() for span in spans if "bucket" in span.args]
    assert {rank for rank, spans in steps_in(run).items() if any("bucket" in span.args for span in spans)} == set(
        inside
    )
    if algorithm == "ring" and comm.size > 1:
        assert {"combining", "transfer"} <= {span.kind for span in of_buckets}


def test_lanes_add_up_to_what_train_reports(comm, tmp_path_factory):
    """``train --iterations 5`` counts the last three, which are those that its timeline shows."""

    folder = comm.bcast(str(tmp_path_factory.mktemp("timeline")) if comm.rank == 0 else None)
    files = [f"{folder}/timeline.json", f"{folder}/report.json"]
    given = ["train", "--model", "mlp", "--data", "digits", "--link", "100mbit,1ms", "--iterations", "5"]
    succeed(*given, "--timeline", files[0], "--json", files[1])
    comm.barrier()
    content, report = (json.loads(Path(file).read_text(encoding="utf-8")) for file in files)
    assert_schema(content)
    slowest, number = slowest_of(content)
    assert slowest["iteration"] == pytest.approx(sorted(report["iteration_s"][2:])[1] * 1e6, rel=0.01)
    assert slowest["forward"] + slowest["backward"] == pytest.approx(report["compute_s"] * 1e6, rel=0.01)
    assert slowest["wait"] == pytest.approx(report["exposed_comm_s"] * 1e6, rel=0.01, abs=1)
    if comm.size == 1:
        return
    check_steps(content, number)


def slowest_of(content):
    """Sums of the iteration of median length on its slowest rank, in us, by category, and its process."""
    marks = [event for event in content["traceEvents"] if event["ph"] == "i"]
    by_name = defaultdict(list)
    for mark in marks:
        by_name[mark["name"]].append(mark)
    slowest = [max(each, key=lambda mark: mark["args"]["dur"]) for each in by_name.values()]
    middle = sorted(slowest, key=lambda mark: mark["args"]["dur"])[1]
    begin, end = middle["ts"], middle["ts"] + middle["args"]["dur"]
    sums = defaultdict(float, iteration=middle["args"]["dur"])
    for event in content["traceEvents"]:
        own = event["ph"] == "X" and event["pid"] == middle["pid"] and event["tid"] == 0
        if own and begin <= event["ts"] + event["dur"] / 2 <= end:
            sums[event["cat"]] += event["dur"]
    return sums, middle["pid"]


def check_steps(content, process):
    """Each collective of a bucket has its steps, one after another without a gap, within its span on the wire."""
    own = [event for event in content["traceEvents"] if event["ph"] == "X" and event["pid"] == process]
    inside = defaultdict(list)
    for event in own:
        if event["tid"] == 2 and event["args"].get("bucket") is not None:
            inside[event["args"]["number"]].append(event)
    first = min(event["ts"] for steps in inside.values() for event in steps)
    wire = [event for event in own if event["cat"] in ("reduce_scatter", "all_gather") and event["tid"] == 1]
    whole = [event for event in wire if event["ts"] + event["dur"] > first]
    for carried, steps in zip(whole, inside.values(), strict=True):
        assert {event["cat"] for event in steps} <= set(KINDS)
        assert all(end_of(one) == pytest.approx(other["ts"], abs=INSTANT_US) for one, other in pairwise(steps))
        assert carried["ts"] <= steps[0]["ts"]
        assert end_of(steps[-1]) <= end_of(carried) + INSTANT_US


def end_of(event):
    return event["ts"] + event["dur"]
