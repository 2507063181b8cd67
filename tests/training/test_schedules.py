"""Schedules differ in when they communicate, never in what is computed."""

import contextlib
import gc
import time
from types import SimpleNamespace

import numpy as np
import pytest

from dear_mpi.collectives import ALGORITHMS, programs
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.ranks.world import World, run_world
from dear_mpi.reporting.units import parse_link
from dear_mpi.training.buckets.layout import Bucket, Cut
from dear_mpi.training.events import Log, times_of, waits_s
from dear_mpi.training.fabric.live import PlanHandle
from dear_mpi.training.fabric.plan_cost import communication
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from dear_mpi.training.runs.train import Observer, train
from dear_mpi.training.schedules import SCHEDULES
from dear_mpi.training.trainer import TrainingError
from tests.collective_checks import CountingTransport
from tests.training_checks import KINDS, SCHEDULE_CASES, fabric_on, schedules_for, settings


def digest(threads, **choices):
    return run_world(lambda world: train(Config.of(settings(**choices)), world), threads=threads)["params_sha256"]


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("choices", SCHEDULE_CASES, ids=str)
def test_same_bits_under_every_schedule(threads, choices):
    """Each number of ranks has a third of the schedules."""
    assert len({digest(threads, schedule=schedule, **choices) for schedule in schedules_for(choices, threads)}) == 1


@pytest.mark.parametrize("threads", [2, 3, 4, 5])
@pytest.mark.parametrize("link", [None, parse_link("10gbit,1us")], ids=["shared memory", "messages"])
def test_same_bits_with_auto_which_is_one_choice_for_a_bucket(threads, link):
    """The tuning table picks one algorithm for a small all-reduce, and another for its halves."""
    config = [Config.of(settings(algorithm="auto", schedule=schedule)) for schedule in KINDS]
    reports = [run_world(lambda world, c=c: train(c, world), threads=threads, link=link) for c in config]
    assert len({report["params_sha256"] for report in reports}) == 1
    assert len({tuple(report["chosen"]) for report in reports}) == 1
    assert set(reports[0]["chosen"]) <= ALGORITHMS.keys()
    assert len(reports[0]["chosen"]) == reports[0]["buckets"] == 3


@pytest.mark.parametrize("size", range(2, 10))
def test_the_loss_takes_few_messages_one_after_the_other(size):
    """It comes before the first gradient: on a link with latency all of it is exposed. A ring takes 2 (size - 1)."""

    def algorithm(world):
        with Job(Config.of(settings()), world, ["dear"]) as job:
            return job.group.meter.plan.algorithm

    written = programs(run_world(algorithm, threads=size), "all_reduce", size)
    most = size.bit_length() - 1 + (0 if size.bit_count() == 1 else 2)  # doublings, and two where ranks are left over
    found = cost(written, 1, 8, Network(alpha=1.0))
    assert max(found.time_s, *found.messages) <= most


def test_a_bound_needs_what_its_schedule_starts_and_no_more():
    """With ``auto``, an all-reduce may take less time than its two halves one after the other."""

    def prepared(world, schedule):
        with Job(Config.of(settings()), world, [schedule]) as job:
            network = communication(job.group.fabric, SCHEDULES[schedule].collectives)
            return set(network), {stage.label for stage, *_ in job.group.fabric.plans}

    for name, schedule in SCHEDULES.items():
        wanted = set(schedule.collectives)
        plans = wanted | set(schedule.extras)
        assert run_world(lambda world, name=name: prepared(world, name), threads=2) == (wanted, plans)
    assert SCHEDULES["wfbp"].bound(1, 2, {"all_reduce": 5}) == 6
    assert SCHEDULES["sequential"].bound(1, 2, {"all_reduce": 5}) == 8


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_number_of_ranks_does_not_change_what_is_computed(schedule):
    """In float64, unequal parts of batches included (10 examples on 3 ranks), to 1e-10 of one process alone."""

    def parameters(world):
        with Job(Config.of(settings(dtype="fp64", batch=10)), world, [schedule]) as job:
            for iteration in range(30):
                job.group.trainers[schedule].iteration(*job.batch(iteration))
            job.group.trainers[schedule].schedule.flush()
        return np.concatenate([parameter.value.ravel() for parameter in job.parameters])

    alone = run_world(parameters, threads=1)
    for threads in (2, 3, 4, 5):
        together = run_world(parameters, threads=threads)
        assert np.abs(together - alone).max() <= 1e-10 * np.abs(alone).max(), threads


class Recorder:
    """A fabric that only writes down what it is asked for, and for which of it somebody waits."""

    def __init__(self, *uses):
        self.log = []
        self.buckets = Cut(tuple(Bucket(i, 32 * i, 32 * i + 32, group, 128) for i, group in enumerate(uses)))

    def start(self, collective, bucket):
        self.log.append(f"{collective} {bucket.index}")
        waits = iter([f"wait for {self.log[-1]}"])  # one: a handle of the last iteration is over
        return SimpleNamespace(log=lambda: self.log.append(next(waits, "wait once more")))

    def wait(self, handle):
        handle.log()

    def update(self, bucket):
        self.log.append(f"update {bucket.index}")


def recorded(schedule):
    """What a schedule does with three buckets of layers 0, (1, 2), 3 in two iterations and a flush."""
    fabric = Recorder((0,), (1, 2), (3,))
    hooks = SCHEDULES[schedule](fabric)
    for _ in range(2):
        for layer in range(4):
            hooks.before_forward(layer)
            fabric.log.append(f"forward {layer}")
            hooks.after_forward(layer)
        for layer in reversed(range(4)):
            hooks.before_backward(layer)
            fabric.log.append(f"backward {layer}")
            hooks.after_backward(layer)
        hooks.end_backward()
    hooks.flush()
    return fabric.log


FORWARD = ["forward 0", "forward 1", "forward 2", "forward 3"]
REDUCED = [action for i in (2, 1, 0) for action in (f"wait for all_reduce {i}", f"update {i}")]
GATHERED = [(f"wait for all_gather {i}", f"update {i}") for i in range(3)]


def test_sequential_communicates_after_backward_and_wfbp_during_it():
    alone = ["backward 3", "backward 2", "backward 1", "backward 0", "all_reduce 2", "all_reduce 1", "all_reduce 0"]
    mixed = ["backward 3", "all_reduce 2", "backward 2", "backward 1", "all_reduce 1", "backward 0", "all_reduce 0"]
    assert recorded("sequential") == 2 * [*FORWARD, *alone, *REDUCED]
    assert recorded("wfbp") == 2 * [*FORWARD, *mixed, *REDUCED]


def test_dear_reduces_during_backward_and_gathers_during_forward():
    backward = ["backward 3", "reduce_scatter 2", "backward 2", "backward 1", "reduce_scatter 1", "backward 0"]
    backward += ["reduce_scatter 0", "all_gather 0", "all_gather 1", "all_gather 2"]
    forward = [*GATHERED[0], "forward 0", *GATHERED[1], "forward 1", "forward 2", *GATHERED[2], "forward 3"]
    assert recorded("dear") == [*FORWARD, *backward, *forward, *backward, *GATHERED[0], *GATHERED[1], *GATHERED[2]]


def test_dear_gathers_in_the_order_of_first_use():
    """Where the forward pass needs its buckets in another order than the model lists them, that order counts."""
    fabric = Recorder((0,), (1,))
    hooks = SCHEDULES["dear"](fabric)
    for layer in (1, 0):
        hooks.before_forward(layer)
    hooks.end_backward()
    assert fabric.log == ["all_gather 1", "all_gather 0"]


def test_exposed_communication_is_what_the_main_thread_waits_for():
    """The clock moves only while the main thread waits for a handle."""
    now = SimpleNamespace(s=0.0)
    clock = SimpleNamespace(mark=lambda: now.s, seconds=lambda begin, end: end - begin)
    engine = SimpleNamespace(streams=SimpleNamespace(compute=clock), log=Log())
    fabric = fabric_on(engine)
    handle = SimpleNamespace(wait=lambda: setattr(now, "s", now.s + 0.25), key=("all_reduce", 0), label="")
    fabric.wait_for(handle)
    fabric.log.begin(0, fabric.now())
    fabric.wait_for(handle)
    now.s += 10
    fabric.wait_for(handle)
    fabric.log.end(fabric.now())
    fabric.wait_for(handle)
    assert times_of(fabric.log.last, fabric.seconds) == (10.5, 0, 0, 0.5), "waits between iterations do not count"
    assert waits_s(fabric.log.last, fabric.seconds) == {"all_reduce": 0.5}


@pytest.mark.parametrize("schedule", KINDS)
def test_handles_do_not_pile_up(schedule):
    """Nobody waits for a reduce-scatter of DeAR: what was started must be forgotten all the same."""

    def alive(world):
        with Job(Config.of(settings(schedule=schedule)), world, [schedule]) as job:
            for iteration in range(12):
                job.iterate(schedule, *job.batch(iteration))
                if iteration in (3, 11):
                    gc.collect()
                    yield sum(type(each) is PlanHandle for each in gc.get_objects())

    first, last = run_world(lambda world: list(alive(world)), threads=1)
    assert last <= first + 4, "the engine's thread may hold some; a leak would add one in each of eight iterations"


@pytest.mark.parametrize("choices", [{}, {"optimizer": "sgd", "lr": 1e30, "iterations": 50}], ids=["good", "diverges"])
def test_all_requests_are_given_back(choices):
    """Also when training ends with an error on all ranks."""
    counts = []

    def body(transport):
        counting = CountingTransport(transport)
        counts.append(counting)
        with contextlib.suppress(TrainingError):
            train(Config.of(settings(**choices)), World(counting))

    run_loopback(3, body)
    assert all(counting.made == counting.freed > 0 for counting in counts)


class Sleeper(Observer):
    kept = 1

    def __init__(self, job, iterations, uncounted, clock):
        self.seen = []

    def look(self, number):
        self.seen.append(number)
        time.sleep(0.03)

    def found(self, name, recordings, *, parts):
        return self.seen


def test_an_observer_takes_its_time_from_the_iteration():
    config = Config.of({"model": "mlp", "schedule": "dear", "iterations": 3})
    report = run_world(lambda world: train(config, world, observers={"sleeper": Sleeper}), threads=2)
    assert report["sleeper"] == [1, 2, 3]
    assert min(report["iteration_s"]) >= 0.03
