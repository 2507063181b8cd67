"""What is recorded of iterations adds up to the times that the trainer tells, lane by lane, live and virtual."""

from itertools import pairwise
from time import perf_counter

import numpy as np
import pytest

from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.models.layer import Parameter
from dear_mpi.ranks.world import World, run_world
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from dear_mpi.simulate.table import timeline_of
from dear_mpi.training import Session
from dear_mpi.training.events import Log, recorder
from dear_mpi.training.events.recorder import done_by
from dear_mpi.training.events.spans import COMPUTE, WIRE, Iteration, rank_of
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from dear_mpi.training.schedules import SCHEDULES
from tests.timelines import recorded
from tests.training_checks import settings

NONE_S = 1e-9  # what rounding may do to a sum of seconds


def assert_in_turn(rank):
    """What a lane does it does one after the other, and every span takes time."""
    assert rank.spans
    for lane in (COMPUTE, WIRE):
        spans = [span for span in rank.spans if span.lane == lane]
        assert all(span.end_s > span.begin_s for span in spans)
        for one, other in pairwise(spans):
            assert one.end_s <= other.begin_s + NONE_S, (one, other)


def seconds(rank, iteration, kind):
    return sum(span.seconds for span in rank.within(iteration, kind))


# Virtual -------------------------------------------------------------------------------------------------------------

UNEVEN = [{}, {"straggler": "2:1.5"}, {"update_s": 2e-9}, {"update_s": 2e-9, "straggler": "0:1.1"}]


def simulated(**choices):
    base = {"models": ("synthetic:resnet50",), "ranks": (4,), "network": "10gbit,50us", "forward_s": 0.05}
    return simulate(Settings(**base | {"fusions": ("25MB",)} | choices), traced=True)


def run_of(found):
    (run,) = timeline_of([found]).runs
    return run


@pytest.mark.parametrize("uneven", UNEVEN, ids=str)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_virtual_run_adds_up(schedule, uneven):
    (found,) = simulated(schedules=(schedule,), **uneven)
    prediction, ranks = found.prediction, run_of(found).ranks
    names = [f"rank {rank}" for rank in range(4)] if "straggler" in uneven else ["each of 4 ranks"]
    assert [rank.name for rank in ranks] == names
    for rank in ranks:
        assert_in_turn(rank)
    slowest = ranks[int(uneven.get("straggler", "0")[0])]
    last = slowest.iterations[-1]
    assert seconds(slowest, last, "wait") == pytest.approx(prediction.exposed_s, abs=NONE_S)
    assert seconds(slowest, last, "forward") == pytest.approx(prediction.forward_s)
    backward_s = seconds(slowest, last, "backward") + seconds(slowest, last, "weights")
    assert backward_s == pytest.approx(prediction.backward_s)
    assert last.end_s - last.begin_s == pytest.approx(prediction.iteration_s)


def test_updates_and_collectives_of_a_virtual_run_are_each_there():
    (found,) = simulated(schedules=("dear",), update_s=1e-9)
    (rank,), buckets = run_of(found).ranks, found.prediction.buckets
    for iteration in rank.iterations:
        updates = list(rank.within(iteration, "update"))
        assert sorted(span.name for span in updates) == sorted(f"update of bucket {each.index}" for each in buckets)
        assert sum(span.seconds for span in updates) == pytest.approx(1e-9 * sum(each.count for each in buckets))
        reduced = sorted(span.name for span in rank.within(iteration, "reduce_scatter"))
        for name, bucket in zip(reduced, buckets, strict=True):
            assert name.startswith(f"reduce_scatter of {str(bucket).partition(', ')[0]}, ")
            assert name.endswith(" MiB)")
    assert {span.name for span in rank.spans if span.kind == "other"} == {"all_reduce of the loss"}


def test_runs_are_named_by_what_was_varied():
    found = simulated(schedules=("wfbp", "dear"), ranks=(2, 4), straggler="1:2")
    timeline = timeline_of(found)
    assert [run.name for run in timeline.runs] == ["wfbp, 2 ranks", "dear, 2 ranks", "wfbp, 4 ranks", "dear, 4 ranks"]
    assert [len(run.ranks) for run in timeline.runs] == [2, 2, 4, 4]
    assert not timeline.live
    assert (timeline.facts["model"], timeline.facts["ranks"]) == ("synthetic:resnet50", [2, 2, 4, 4])
    assert timeline.facts["origin"].startswith("Predicted, with ring on the network 10gbit,50us")


# Live ----------------------------------------------------------------------------------------------------------------

LIVE = [{"schedule": schedule, "fusion": "none"} for schedule in SCHEDULES] + [
    {"schedule": "dear", "fusion": "none", "accumulate": 2, "wire": "bf16"},
    {"schedule": "dear", "fusion": "none", "update": "sharded", "clip": 1.0},
    {"schedule": "wfbp", "fusion": "none", "update": "sharded"},
]


def trained(transport, choices, *, iterations=5):
    """The run of a small job on this rank, the times of its iterations, and the number of its buckets."""
    config = Config.of(settings(**choices | {"iterations": iterations}))
    with Job(config, World(transport), [config.schedule]) as job:
        times = [job.iterate(config.schedule, *job.batch(number))[1] for number in range(iterations)]
        return recorded(job, "mine"), times, len(job.group.buckets)


@pytest.mark.parametrize("choices", LIVE, ids=str)
def test_a_live_run_adds_up(choices):
    found = run_loopback(2, lambda transport: trained(transport, choices))
    run, _, buckets = found[0]
    assert [each[0] for each in found] == [run, run], "all ranks have the spans of all"
    assert [rank.name for rank in run.ranks] == ["rank 0", "rank 1"]
    sharded = choices.get("update") == "sharded"
    for rank, (_, times, _) in zip(run.ranks, found, strict=True):
        assert_in_turn(rank)
        assert [iteration.number for iteration in rank.iterations] == [2, 3, 4]
        for iteration in rank.iterations:
            told = times[iteration.number]
            assert iteration.end_s - iteration.begin_s == pytest.approx(told.iteration_s, abs=NONE_S)
            assert seconds(rank, iteration, "wait") == pytest.approx(told.exposed_s, abs=NONE_S)
            assert seconds(rank, iteration, "forward") == pytest.approx(told.forward_s, abs=NONE_S)
            backward_s = seconds(rank, iteration, "backward") + seconds(rank, iteration, "weights")
            assert backward_s == pytest.approx(told.backward_s, abs=NONE_S)
            layers = [span.name for span in rank.within(iteration, "forward")]
            assert len(layers) == len(set(layers)) == len(list(rank.within(iteration, "backward")))
        updates = {span.name for span in rank.spans if span.kind == "update"}
        assert updates == {f"update of bucket {index}" for index in range(buckets)}
        assert {span.lane for span in rank.spans if span.kind == "update"} == {WIRE if sharded else COMPUTE}


class Spends:
    """A layer that takes a second of a clock forward, and two backward."""

    def __init__(self, clock):
        self.clock, self.parameters = clock, [Parameter.of("fc.weight", np.ones(4))]

    def forward(self, x):
        self.clock[0] += 1.0
        return x

    def backward(self, dy):
        self.clock[0] += 2.0
        self.parameters[0].grad[...] = 1
        return dy


class NoLoss:
    def forward(self, outputs, targets):
        return 0.0

    def backward(self, scale):
        return np.zeros((2, 1))


def test_a_session_without_an_iteration_has_no_run():
    def body(transport):
        with Session([Spends([0.0])], NoLoss(), transport) as session:
            recorded(session, "mine")

    with pytest.raises(ValueError, match="no iteration of 'mine' was recorded"):
        run_loopback(2, body)


# The log alone -------------------------------------------------------------------------------------------------------


def clock(lane, mark):
    return float(mark)


def passed(log, kind, *uses):
    """The main thread runs layers, a second each from these times on."""
    for number, at in uses:
        log.did(kind, number, at, at + 1)


def test_the_last_iterations_are_kept_with_what_goes_on_into_them():
    log = Log(kept=2)
    for number in range(5):
        at = 10 * number
        log.begin(number, at)
        log.carried("all_gather", 0, at - 4, at + 1, "all_gather of bucket 0 (layers 0..1, 2048 bytes)")
        passed(log, "forward", (0, at), (1, at + 1))
        passed(log, "backward", (1, at + 2), (0, at + 3))
        log.end(at + 6)
    rank = rank_of(log, "mine", ["conv1", "fc"], clock, kept=2)
    assert rank.iterations == (Iteration(3, 30.0, 36.0), Iteration(4, 40.0, 46.0))
    assert [(span.name, span.begin_s, span.end_s) for span in rank.spans[:6]] == [
        ("all_gather of bucket 0 (layers 0..1, 2.0 KiB)", 26.0, 31.0),
        ("forward conv1", 30.0, 31.0),
        ("forward fc", 31.0, 32.0),
        ("backward fc", 32.0, 33.0),
        ("backward conv1", 33.0, 34.0),
        ("all_gather of bucket 0 (layers 0..1, 2.0 KiB)", 36.0, 41.0),
    ]
    assert [record.number for record in log.records] == [2, 3, 4], "older ones are dropped"


def test_the_parts_of_a_batch_are_told_apart():
    log = Log()
    log.begin(7, 0)
    for at in (0, 4):
        passed(log, "forward", (0, at), (1, at + 1))
        passed(log, "backward", (1, at + 2), (0, at + 3))
    log.end(8)
    assert [span.name for span in rank_of(log, "mine", ["conv1", "fc"], clock, kept=3).spans] == [
        f"{kind} {layer}, part {part} of 2"
        for part in (1, 2)
        for kind, layers in (("forward", ("conv1", "fc")), ("backward", ("fc", "conv1")))
        for layer in layers
    ]


def test_what_took_no_time_is_left_out():
    log = Log()
    log.begin(0, 0)
    log.did("forward", 0, 0, 0)
    log.waited("all_reduce", 0, 1, 1, "all_reduce of bucket 0")
    log.waited("all_reduce", 1, 1, 2, "all_reduce of bucket 1")
    passed(log, "backward", (0, 2))
    log.end(3)
    spans = rank_of(log, "mine", ["fc"], clock, kept=3).spans
    assert [span.name for span in spans] == ["wait for all_reduce of bucket 1", "backward fc"]


# What a session did is told by one clock: spans of layers and notes of collectives belong together.

LATE_S = 10.0


def test_a_rank_that_looks_at_its_clock_late_moves_no_span(monkeypatch):
    """It was held up between a mark and its clock, and all spans came later than the notes inside of them."""
    monkeypatch.setattr(recorder, "perf_counter", lambda: perf_counter() + LATE_S)

    def trained(world):
        config = Config.of(settings(schedule="dear", iterations=3))
        with Job(config, world, [config.schedule]) as job:
            for number in range(config.iterations):
                job.iterate(config.schedule, *job.batch(number))
            job.flush()
            return done_by(job), job.group.fabric.log.last.begin

    rank, begin_s = run_world(trained, threads=2)
    assert rank.iterations[-1].begin_s == pytest.approx(begin_s, abs=1e-9)
    carried = [span for span in rank.spans if span.kind == "reduce_scatter"]
    noted = [each for each in rank.noted if each.said["collective"] == "reduce_scatter"]
    assert carried[-1].begin_s <= noted[-1].begin_s <= noted[-1].end_s <= carried[-1].end_s
