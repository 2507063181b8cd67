"""Blame of runs on the virtual fabric, whose records are exact, and of a run on threads with one planted cause."""

import json
import os
import random
from dataclasses import replace

import numpy as np
import pytest

from dear_mpi.contrib.blame import blamed
from dear_mpi.contrib.blame.blamed import FEWEST, LEAST, BlameError, Trial, blame, check_enough, checked, next_cause
from dear_mpi.contrib.blame.graph import Graph, replay
from dear_mpi.contrib.blame.job import declared_of
from dear_mpi.contrib.blame.output import as_data, sentences
from dear_mpi.contrib.blame.threads import HELD, MainThread
from dear_mpi.contrib.look import read_timeline
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.units import parse_link
from dear_mpi.see.timeline import write_saved
from dear_mpi.training.buckets.layout import Bucket, Cut
from dear_mpi.training.events.spans import COMPUTE, Iteration, Rank, Run, Span, Timeline, rank_of
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.fabric.virtual import Costs, of_rank
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from dear_mpi.training.schedules import find_schedule
from dear_mpi.training.virtual_trainer import VirtualTrainer
from docs.benchmarks.blame.planted import FORWARD_S, LAYERS, LINK, TRAINING, Cause, model_in, plant_in_layers, planted
from tests.timelines import recorded

RANKS, ITERATIONS = 4, 20
SEEDS = 20 if os.environ.get("EVERY") else 4
USES = LAYERS
BUCKETS = Cut(tuple(Bucket(at, 32 * at, 32 * at + 32, (2 * at, 2 * at + 1), 128) for at in range(USES // 2)))
NAMES = [f"layer{use}" for use in range(USES)]
USUAL = {(passed, name): seconds for name in NAMES for passed, seconds in (("forward", 0.01), ("backward", 0.02))}


def virtual(schedule, factors=lambda turn, place: 1.0):
    """A run of ranks whose layers take so many times their usual seconds, and some noise."""
    rng = np.random.default_rng(5)
    return ran(schedule, lambda turn, place: factors(turn, place) * np.exp(0.002 * rng.standard_normal(RANKS)))


def noisy(schedule, seed):
    """A run in which each rank takes longer or shorter, in each iteration anew."""
    rng = np.random.default_rng(seed)
    taken = np.exp(0.8 * rng.standard_normal((ITERATIONS + 3, RANKS)))
    return ran(schedule, lambda turn, place: taken[turn])


def ran(schedule, taken):
    kind = find_schedule(schedule)
    how = {"price": lambda stage, bucket: 0.004, "noise": taken, "weights_s": {}}
    costs = Costs(forward_s=[0.01] * USES, backward_s=[0.02] * USES, **how)
    trainer = VirtualTrainer(kind, Rules(schedule, BUCKETS, kind), costs, kept=ITERATIONS)
    for _ in range(ITERATIONS + 3):
        trainer.one()
    return Run(schedule, tuple(seen_by(trainer.fabric.log, number) for number in range(RANKS)), RANKS)


def seen_by(log, number):
    found = rank_of(log, f"rank {number}", NAMES, lambda lane, mark: of_rank(mark, number), kept=ITERATIONS)
    return replace(found, number=number)


def late(rank, factor=1.25, turns=range(ITERATIONS + 3)):
    return lambda turn, place: np.where((np.arange(RANKS) == rank) & (turn in turns), factor, 1.0)


def named(found):
    return [(each.kind, each.name) for each in found.causes]


@pytest.mark.parametrize("schedule", ["wfbp", "dear"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_rank_that_is_late_in_some_iterations_is_named(schedule, seed):
    rng = random.Random(seed)
    rank, turns = rng.randrange(RANKS), set(rng.sample(range(ITERATIONS + 3), 14))
    found = blame(virtual(schedule, late(rank, 1.3, turns)), USUAL)
    assert named(found) == [("rank", str(rank))]
    assert found.causes[0].seen == len([turn for turn in turns if turn >= 3])
    assert found.off == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("schedule", ["wfbp", "dear"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_layer_that_takes_twice_as_long_is_named_by_the_times_of_another_run(schedule, seed):
    slow = random.Random(seed).randrange(USES)
    run = virtual(schedule, lambda turn, place: 1.0 + (place // 2 == slow))
    found = blame(run, USUAL)
    assert named(found) == [("layer", NAMES[slow])]
    assert found.causes[0].ratio == pytest.approx(2.0, rel=0.02)
    usual_s = blame(virtual(schedule), USUAL).measured_s
    assert found.causes[0].without_s == pytest.approx(usual_s, rel=0.02)
    assert not blame(run).causes, "without them nobody can know"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_late_rank_on_time_gives_the_iteration_that_a_run_without_it_has(seed):
    found = blame(virtual("dear", late(random.Random(seed).randrange(RANKS))))
    assert found.causes[0].without_s == pytest.approx(blame(virtual("dear")).measured_s, rel=0.01)


@pytest.mark.parametrize("schedule", ["wfbp", "dear", "zero"])
def test_nothing_stands_out_where_nothing_is_wrong(schedule):
    found = blame(virtual(schedule), USUAL)
    assert found.causes == ()
    assert sentences(found)[0].startswith("Nothing stands out")


@pytest.mark.parametrize("schedule", ["wfbp", "dear"])
def test_noise_alone_is_seldom_blamed_on_somebody(schedule):
    """In 5 % of runs at most, of which chance may make two of 12. By what is saved alone more would be named."""
    found = [blame(noisy(schedule, seed), USUAL) for seed in range(3 * SEEDS)]
    assert sum(bool(each.causes) for each in found) <= 1 + SEEDS // 3
    assert sum(bool(each.causes) or each.most.share >= LEAST for each in found) > 0.8 * SEEDS


def test_a_cause_is_not_hidden_by_noise_that_costs_more():
    noise, cause = blame(virtual("dear")).most, blame(virtual("dear", late(0))).causes[0]
    found = [replace(noise, share=0.5, chance=0.4), replace(cause, share=0.4), replace(cause, share=0.3)]
    assert next_cause(found, 20) == found[1]
    assert next_cause(found[:1], 20) is None


def test_after_three_causes_blame_says_that_it_looks_no_further():
    found = blame(virtual("dear", lambda turn, place: (1.0 + (place // 2 % 2)) * late(0)(turn, place)), USUAL)
    assert len(found.causes) == 3
    assert found.most.share >= LEAST
    assert sentences(found)[-1].startswith("After 3 causes blame looks no further: with ")


def test_iterations_that_are_too_few_for_so_many_suspects_are_refused(monkeypatch):
    check_enough(10, 51)
    with pytest.raises(BlameError, match="needs 11 iterations at least for 52 suspects, and has 10"):
        check_enough(10, 52)
    monkeypatch.setattr(blamed, "CHANCE", 1e-6)
    with pytest.raises(BlameError, match=f"needs 24 iterations at least for 10 suspects, and has {ITERATIONS}"):
        blame(virtual("dear"), USUAL)


def test_a_wait_is_over_when_the_last_of_its_name_is_however_many_came_between():
    wait = Span(COMPUTE, "wait", "wait for all_gather 0", 0.2, 0.9)
    main = MainThread(graph := Graph(), Rank("rank 0", (Iteration(0, 0.0, 1.0),), (wait,)))
    carried = [("all_gather 0", graph.moment(0.3))]
    carried += [(f"all_gather {at}", graph.moment(0.3 + at / 200)) for at in range(1, 100)]
    main.await_engine([*carried, ("all_gather 0", graph.moment(0.95))])
    ((_, begin, end),) = main.waits
    assert {each.before for each in graph.edges[end]} == {begin, carried[0][1]}


def test_few_iterations_and_missing_ranks_are_refused():
    run = virtual("dear")
    few = replace(run, ranks=tuple(replace(rank, iterations=rank.iterations[:3]) for rank in run.ranks))
    with pytest.raises(BlameError, match=f"needs {FEWEST} iterations at least, and has 3"):
        blame(few)
    with pytest.raises(BlameError, match="needs all 4 ranks of a run, and has 3"):
        blame(replace(run, ranks=run.ranks[:3]))


def trained(world, cause, model):
    config = Config.of(TRAINING | {"model": model, "iterations": 14})
    with Job(config, planted(world, cause), [config.schedule]) as job:
        usual_s = declared_of(job, 1)
        plant_in_layers(job.layers, cause, world.rank)
        job.engine.log.keep(12)
        for iteration in range(config.iterations):
            job.iterate(config.schedule, *job.batch(iteration))
        return recorded(job, "mine", kept=12), usual_s


@pytest.fixture(scope="module")
def halved(tmp_path_factory):
    """A run with a link of half the rate, and the usual seconds of its layers."""
    cause, model = Cause("link", "1 -> 2"), model_in(tmp_path_factory.mktemp("blame"))
    return run_world(lambda world: trained(world, cause, model), threads=RANKS, link=parse_link(LINK))


def test_a_link_of_half_the_rate_is_named(halved):
    """Its messages sleep, so that no load of the machine makes them shorter."""
    assert named(blame(*halved)) == [("link", "1 -> 2")]


@pytest.mark.parametrize("held", [False, True])
def test_messages_that_layers_may_have_held_up_make_no_link_slow(halved, held):
    """Of messages while a main thread computes nobody knows whether the link was slow, or the layers had the core. What
    they took beyond the usual shrinks with what that rank takes beyond the others."""
    run, usual_s = halved
    if held:
        run = replace(run, ranks=tuple(without_waits(rank) for rank in run.ranks))
    trial = Trial(checked(run), usual_s)
    links = [each for each in trial.suspects if each.kind == "link"]
    assert [each.name for each in sorted(links, key=lambda link: -link.ratio)[:1]] == ([] if held else ["1 -> 2"])
    ranks = [each for each in trial.suspects if each.kind == "rank"]
    shrunk = [seconds for each in ranks for work, seconds in each.more_s.items() if work.name == HELD]
    assert all(seconds <= 0 for seconds in shrunk)
    assert not held or min(shrunk) < 0
    for each in ranks:
        own_s = -sum(seconds for work, seconds in each.more_s.items() if work.name != HELD)
        assert each.over_s.sum() == pytest.approx(own_s, abs=1e-9), "it is not late by what it holds up"


def without_waits(rank):
    """As if its main thread had computed all the time."""
    spans = (span._replace(kind="update") if span.kind == "wait" else span for span in rank.spans)
    return replace(rank, spans=tuple(spans))


def test_the_usual_seconds_of_layers_are_those_that_their_model_declares(halved):
    _, usual_s = halved
    assert len(usual_s) == 2 * LAYERS
    assert sum(seconds for (passed, _), seconds in usual_s.items() if passed == "forward") == pytest.approx(FORWARD_S)


def test_a_replay_without_changes_gives_back_what_was_measured(halved):
    trial = Trial(checked(halved[0]), None)
    found = replay(trial.graph, trial.order, {}, 1)[:, 0]
    assert found == pytest.approx(trial.measured[:, 0], abs=1e-6)


def test_a_written_timeline_has_what_blame_needs(halved, tmp_path):
    run, usual_s = halved
    path = tmp_path / "timeline.json"
    write_saved("--timeline", path, Timeline(live=True, runs=(run,)))
    (again,) = read_timeline(str(path)).runs
    taken_s, again_s = ({n: end_s - begin_s for n, begin_s, end_s in its.ranks[0].iterations} for its in (run, again))
    assert again_s == pytest.approx({number: taken_s[number] for number in again_s}, abs=1e-6)
    found = blame(again, usual_s)
    assert named(found) == [("link", "1 -> 2")]
    assert found.suspects["rank"] == RANKS
    json.dumps(as_data(found, ""), allow_nan=False)


RUN = {"name": "dear", "size": 1, "ranks": [{"name": "rank 0", "iterations": [], "spans": []}]}


@pytest.mark.parametrize("recorded", [
    None,
    {"live": True},
    {"live": True, "runs": [RUN | {"size": "1"}]},
    {"live": True, "runs": [RUN | {"name": 5}]},
    {"live": True, "runs": [RUN | {"ranks": [{"name": "rank 0", "iterations": [[0, "1", 2]], "spans": []}]}]},
])  # fmt: skip
def test_a_file_that_is_no_timeline_is_refused(recorded, tmp_path):
    path = tmp_path / "no.json"
    path.write_text(json.dumps({"recorded": recorded}))
    with pytest.raises(ValueError, match=r"no.json' is no timeline of"):
        read_timeline(str(path))
