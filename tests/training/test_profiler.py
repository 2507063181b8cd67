"""A profile has what the layers took, by a clock that the test moves on; and the tensors where training has them."""

import json

import numpy as np
import pytest

from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.models.layer import Parameter
from dear_mpi.models.synthetic import Module
from dear_mpi.ranks.world import World
from dear_mpi.simulate.model import measured_model, synthetic_model
from dear_mpi.training import Session
from dear_mpi.training.events import Event, Record
from dear_mpi.training.events.profile import read_profile
from dear_mpi.training.events.profiler import Profiler, starts_s, wakes_s
from dear_mpi.training.fabric.virtual import later
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from dear_mpi.training.runs.train import Saving, train
from tests.cli_checks import assert_one_line, invoke
from tests.simulate.predicted import predicted
from tests.training.route_checks import OnHosts
from tests.training_checks import README, installed, settings


class Clock:
    """Time that passes when somebody says so, and faster or slower in each iteration."""

    def __init__(self, factor=1.0):
        self.now, self.factor = 0.0, factor

    def spend(self, seconds):
        self.now += self.factor * seconds


class Spends:
    """A layer that takes so many seconds forward, and three times as many backward."""

    def __init__(self, clock, name, seconds, value=None):
        self.clock, self.seconds = clock, seconds
        self.parameters = [] if value is None else [Parameter.of(name, value)]

    def forward(self, x):
        self.clock.spend(self.seconds)
        return x

    def backward(self, dy):
        self.clock.spend(3 * self.seconds)
        for parameter in self.parameters:
            parameter.grad[...] = 1
        return dy


class SpendsLoss:
    """A loss that takes half a second forward."""

    def __init__(self, clock):
        self.clock = clock

    def forward(self, outputs, targets):
        self.clock.spend(0.5)
        return 0.0

    def backward(self, scale):
        return np.zeros((2, 1))


def timed(bound, clock):
    """Let the update of a bucket take a millisecond for each element."""
    (apply,) = bound.updaters

    def slow(*args):
        clock.spend(1e-3 * bound.own.size)
        apply(*args)

    bound.updaters = [slow]


def profiled(transport, *, lengths=(1.0,), factors=(1.0, 1.0), **options):
    """The profile of three layers, two of which are tied; iteration after iteration takes so many times as long."""
    clock = Clock()
    shared = np.ones((5, 2))
    layers = [
        Spends(clock, "first.weight", 1.0, shared),
        Spends(clock, "", 2.0),
        Spends(clock, "weight", 4.0, shared),
        Spends(clock, "block.scale.gain", 8.0, np.ones(3)),
    ]
    with Session(layers, SpendsLoss(clock), transport, fusion="none", schedule="wfbp", **options) as session:
        session.group.streams.compute.mark = lambda: clock.now
        for bound in session.group.fabric.bound.values():
            timed(bound, clock)
        profiler = Profiler(session.group)
        for length in lengths:
            clock.factor = length * factors[transport.rank]
            session.step(np.zeros((2, 1)), np.zeros((2, 1)))
            profiler.note()
        return profiler.profile("mine", batch=4)


def test_the_seconds_of_each_use_of_the_slowest_rank():
    found, other = run_loopback(2, lambda transport: profiled(transport, factors=(1.0, 3.0)))
    assert found == other
    assert (found.model, found.ranks, found.rank, found.batch, found.iterations) == ("mine", 2, 1, 4, 1)
    assert (found.device, found.dtype, found.wire, found.schedule) == ("cpu", "fp64", "fp64", "wfbp")
    assert [use.forward_s for use in found.uses] == pytest.approx([3.0, 6.0, 12.0, 24.0])
    assert [use.backward_s for use in found.uses] == pytest.approx([9.0, 18.0, 36.0, 72.0])
    assert found.update_s_per_element == pytest.approx(3e-3)
    assert found.rest_s == pytest.approx(1.5), "the loss"


def test_names_shapes_and_keys():
    found, _ = run_loopback(2, profiled)
    assert [use.name for use in found.uses] == ["first", "Spends 1", "Spends 2", "block.scale"]
    shapes = [[(tensor.key, tensor.shape) for tensor in use.tensors] for use in found.uses]
    assert shapes == [[(0, (5, 2))], [], [(0, (5, 2))], [(1, (3,))]]


def test_parts_of_a_batch_add_up():
    found, _ = run_loopback(2, lambda transport: profiled(transport, accumulate=2))
    assert found.accumulate == 2
    assert [use.forward_s for use in found.uses] == pytest.approx([2.0, 4.0, 8.0, 16.0])
    assert [use.backward_s for use in found.uses] == pytest.approx([6.0, 12.0, 24.0, 48.0])
    assert found.rest_s == pytest.approx(1.0)


def test_the_first_iterations_do_not_count_nor_do_long_and_short_ones():
    lengths = (100, 50, 2, 4, 1000, 3, 5, 0, 7, 1)  # the first two fill the pipeline; in the middle: 2, 3, 4 and 5
    found, _ = run_loopback(2, lambda transport: profiled(transport, lengths=lengths))
    assert found.iterations == 8
    assert [use.forward_s for use in found.uses] == pytest.approx([3.5, 7.0, 14.0, 28.0])


@pytest.mark.parametrize("update", ["full", "sharded"])
@pytest.mark.parametrize("cuts", [[], ["none", "25MB", "cut:512B", "none"]], ids=str)
def test_updates_are_timed_on_their_own_thread_and_buckets_may_be_cut_anew(update, cuts):
    def body(transport):
        layers = [Spends(Clock(), f"weight {number}", 0.0, np.ones(64)) for number in range(3)]
        with Session(layers, SpendsLoss(Clock()), transport, update=update, fusion="none") as session:
            profiler = Profiler(session.group)
            for fusion in cuts or [None] * 2:
                if fusion:
                    session.cut(fusion)
                for _ in range(2):
                    session.step(np.zeros((2, 1)), np.zeros((2, 1)))
                    profiler.note()
            return profiler.profile("mine")

    found, _ = run_loopback(2, body)
    assert found.update_s_per_element > 0


@pytest.mark.parametrize(("wire", "codes", "share"), [("int8", 4, 1), ("int8:between", 4, 0.5), ("fp32", 0, 1)])
def test_codes_are_beside_what_their_wire_says(wire, codes, share):
    """Each stage takes a second. On two hosts of two, a rank serves half of a bucket between them."""

    def body(transport):
        layers = [Spends(Clock(), "weight", 0.0, np.ones(64, np.float32))]
        on_hosts, choices = OnHosts(transport, (0, 0, 1, 1)), {"wire": wire, "schedule": "sequential"}
        with Session(layers, SpendsLoss(Clock()), on_hosts, **choices) as session:
            profiler, group = Profiler(session.group), session.group
            group.streams.communication.seconds = lambda begin, end: 1.0
            for _ in range(3):
                session.step(np.zeros((2, 1)), np.zeros((2, 1)))
                profiler.note()
            (bucket,) = group.buckets
            stages = [(stage, share if stage.level else 1) for stage in group.route.stages]
            said_s = sum(stage.compute_s(int(part * bucket.count), int(part * 4)) for stage, part in stages)
            return profiler.profile("mine"), said_s

    (found, said_s), *_ = run_loopback(4, body)
    assert found.wire == wire
    assert found.code_factor == (pytest.approx(codes / said_s) if codes else None)


CASES = installed(
    {"model": "cnn", "fusion": "layers:2", "accumulate": 2},
    {"model": "mlp", "wire": "bf16"},
    {"model": "mlp", "wire": "fp64"},
    {"model": "mlp", "dtype": "fp64", "wire": "fp32", "schedule": "sequential"},
    {"model": "gpt", "data": README, "context": 8, "batch": 6},
)


@pytest.mark.parametrize("choices", CASES, ids=str)
def test_train_writes_one_and_it_has_the_layout_of_the_run(choices, tmp_path):
    """So the simulator cuts the buckets of the job, whatever the fusion."""
    file, config = tmp_path / "profile.json", Config.of(settings(**choices | {"iterations": 4}))

    def body(transport):
        with Job(config, World(transport), [config.schedule]) as job:
            layout = job.group.layout
        report = train(config, World(transport), profile=file)
        return layout, report

    (layout, report), _ = run_loopback(2, body)
    profile = read_profile(file)
    model = measured_model(profile, ranks=2, wire=profile.wire)
    assert model.layout == layout
    assert (profile.model, profile.batch, profile.schedule) == (config.model, config.batch, config.schedule)
    assert (profile.wire, profile.dtype, profile.accumulate) == (report["wire"], config.dtype, config.accumulate)
    assert all(use.forward_s > 0 and use.backward_s > 0 for use in profile.uses)
    assert profile.update_s_per_element > 0
    assert profile.rest_s > 0


def test_a_synthetic_model_has_no_batch_and_takes_its_time(tmp_path):
    """Each sleep is at least as long as asked for, and only the last may still be owed."""
    table, file = tmp_path / "table.json", tmp_path / "profile.json"
    modules = [{"name": f"m{number}", "params": [64], "fwd_flops": number} for number in (1, 2, 1)]
    table.write_text(json.dumps({"modules": modules}))
    given = {"model": f"synthetic:{table}", "forward_time": 0.04, "schedule": "sequential", "iterations": 6}
    run_loopback(1, lambda transport: train(Config.of(given), World(transport), profile=file))
    profile = read_profile(file)
    assert profile.batch is None
    assert [use.name for use in profile.uses] == ["m1", "m2", "m1"]
    assert sum(use.forward_s for use in profile.uses) > 0.035
    assert sum(use.backward_s for use in profile.uses) > 0.07


@pytest.mark.parametrize(("flags", "said"), [
    (["--profile", "a", "--json", "a"], "--profile and --json must be different files, not both 'a'"),
    (["--save", "a", "--profile", "a"], "--save and --profile must be different files, not both 'a'"),
    (["--save", "a", "--json", "./a"], "--save and --json must be different files, not both 'a'"),
    (["--save", "a", "--json", "a.old"], "--json and the older file of --save must be different files, not both"),
    (["--profile", "none/a"], "--profile 'none/a' cannot be written: there is no folder 'none'"),
])  # fmt: skip
def test_bad_flags_are_one_line(flags, said):
    assert_one_line(invoke("train", "--threads", 1, *flags), said)


@pytest.mark.parametrize("choice", [{"schedule": "dear-eager"}, {"fusion": "mgwfbp"}])
def test_one_that_would_never_begin_is_refused_before_training(choice, tmp_path):
    file, config = tmp_path / "profile.json", Config.of(settings(model="mlp", iterations=3, **choice))
    said = "iterations must be more than 3, not 3: the first 3 decide an order or a fusion"
    with pytest.raises(AgreedError, match=said):
        run_loopback(2, lambda transport: train(config, World(transport), profile=file))
    assert not file.exists()


@pytest.mark.parametrize(
    ("choices", "done", "decide", "said"),
    [
        ({"fusion": "mgwfbp"}, 5, 3, "not 8: after 5 of them the first 3 decide"),
        ({"fusion": "auto", "schedule": "dear-eager"}, 0, 12, "not 12: the first 12 decide a fusion by trials"),
    ],
)
def test_there_is_room_for_one_after_what_is_decided(choices, done, decide, said, tmp_path):
    """From a checkpoint; or after an order for the first buckets, times of layers, a cut, and an order for the last."""
    file, kept = tmp_path / "profile.json", tmp_path / "c.npz"

    def run(iterations, **how):
        config = Config.of(settings(iterations=iterations, **choices))
        run_loopback(2, lambda transport: train(config, World(transport), **how))

    if done:
        run(done, saving=Saving(kept))
    saving = Saving(kept, resume=True) if done else None
    with pytest.raises(AgreedError, match=f"iterations must be more than {done + decide}, {said}"):
        run(done + decide, saving=saving, profile=file)
    run(done + decide + 1, saving=saving, profile=file)
    assert len(read_profile(file).uses) == 6


# How long threads take to hand work over, from events as a log has them.


def record():
    """The loss waits for an engine without work; bucket 0 for the engine, which goes on with its codes."""
    engine = [
        Event("all_gather", 1, 0.0, 1.0),
        Event("loss", 0, 2.5, 3.0, since=2.0),
        Event("reduce_scatter", 0, 3.0, 4.0, since=2.75),
        Event("encode", 0, 4.0, 4.5),
        Event("all_gather", 0, 5.0, 6.0, since=4.5),
    ]
    waits = [("loss", 0, 2.8, 3.25), ("all_gather", 0, 5.5, 6.125), ("all_gather", 1, 6.2, 6.3)]
    within = [Event("wait", number, begin, end, awaited=awaited) for awaited, number, begin, end in waits]
    return Record(0, 1.5, 7.0, within=[Event("backward", 0, 2.0, 2.5), *within], engine=engine)


def test_an_engine_without_work_starts_late():
    """The reduce-scatter was handed over while the engine worked: it is no start."""
    assert list(starts_s(record())) == [0.5, 0.5]


def test_the_main_thread_wakes_up_after_what_it_waited_for():
    """What was over before it waited does not count, nor does the loss for bucket 0."""
    assert list(wakes_s(record())) == [0.25, 0.125]


def test_who_waits_wakes_up_and_who_comes_later_does_not():
    assert [later(each, 2.0, 0.5) for each in (1.0, 2.0, 2.25)] == [2.5, 2.0, 2.25]
    assert later(np.array([1.0, 2.0, 2.25]), 2.0, 0.5).tolist() == [2.5, 2.0, 2.25]


def test_an_iteration_has_them_where_nothing_hides_them():
    """1 s forward, 2 s back, a collective of 6 s, and the sum of the loss, which is over before it is waited for."""
    model = synthetic_model("a", [Module("a", (1024,), 1.0)], ranks=2, forward_s=1.0, backward_s=2.0)
    found = predicted(model, "sequential", "own", lambda _: lambda stage, _: 6.0, ranks=2, start_s=0.25, wake_s=0.125)
    assert found.iteration_s == 1 + 2 + 0.25 + 6 + 0.125
