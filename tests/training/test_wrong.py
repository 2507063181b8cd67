"""What goes wrong in training is found, on all ranks alike, and said by name: no result is wrong in silence."""

import threading
from functools import wraps

import numpy as np
import pytest

from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.models.layers import Dense, Reshape
from dear_mpi.models.networks import ALL_MODELS, MODELS
from dear_mpi.ranks.world import World
from dear_mpi.training.layer_call import Copies
from dear_mpi.training.runs.compare import Comparison
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import train
from tests.training_checks import KINDS, README, arena_of, on_all, settings

RANKS = 3


def complaints(command=train, ranks=RANKS, **choices):
    """What each rank says, instead of a result."""
    return on_all(lambda each: command(Config.of(settings(**choices)), World(each)) and None, ranks)


def complaint(**choices):
    """What all ranks say, in the same words."""
    (said,) = {*complaints(**choices)}
    assert said is not None, "nobody complained"
    return said


class Mine(Dense):
    """Somebody's own layer; each of the classes below does something wrong."""

    iterations = 0

    def backward(self, dy):
        dx = super().backward(dy)
        self.iterations += 1
        self.gradients(self._rows.T @ dy.reshape(len(self._rows), -1))
        return dx

    def gradients(self, grad): ...


class Skips(Mine):
    def backward(self, dy):
        kept = self.bias.grad.copy()
        dx = super().backward(dy)
        self.bias.grad[...] = kept
        return dx


class Adds(Mine):
    def backward(self, dy):
        kept = self.weight.grad.copy()
        dx = super().backward(dy)
        self.weight.grad[...] = kept
        self.weight.grad += self._rows.T @ dy
        return dx


class LeavesOut(Mine):
    def backward(self, dy):
        kept = self.weight.grad[3].copy()
        dx = super().backward(dy)
        self.weight.grad[3] = kept
        return dx


class Rebinds(Mine):
    def gradients(self, grad):
        self.weight.grad = grad


class RebindsLater(Mine):
    def gradients(self, grad):
        if self.iterations == 3:
            self.weight.grad = grad


@pytest.fixture
def model(monkeypatch):
    """Let mlp be a network with this layer in the middle."""

    def change(layer):
        def build(shape, classes, rng, dtype):
            weights = [rng.standard_normal(shape).astype(dtype) / 8 for shape in ((64, 20), (20, 20), (20, classes))]
            kinds = zip((Dense, layer, Dense), weights, strict=True)
            return [Reshape((64,)), *(kind(f"dense{number}", weight) for number, (kind, weight) in enumerate(kinds))]

        monkeypatch.setitem(MODELS, "mlp", build)

    return change


WRONG = {Skips: "bias", Adds: "weight", LeavesOut: "weight", Rebinds: "weight", RebindsLater: "weight"}


@pytest.mark.parametrize("schedule", KINDS)
@pytest.mark.parametrize("wire", ["fp32", "bf16"])
@pytest.mark.parametrize("layer", WRONG)
def test_a_layer_that_does_not_write_its_gradients_is_named(layer, wire, schedule, model):
    model(layer)
    said = complaint(schedule=schedule, wire=wire)
    assert f"layer 2 ({layer.__name__}), parameter dense1.{WRONG[layer]}: its grad" in said
    assert "write all of it (grad[...] = g)" in said


def test_a_gradient_that_is_left_out_later_is_found_in_debug_mode(model):
    class SkipsLater(Skips):
        def backward(self, dy):
            return (Skips if self.iterations == 3 else Mine).backward(self, dy)

    model(SkipsLater)
    assert complaints(iterations=8) == [None] * RANKS
    assert "layer 2 (SkipsLater), parameter dense1.bias: its gradient has NaN" in complaint(iterations=8, debug=True)


def test_one_rank_alone_does_wrong(model):
    drawn = iter(range(RANKS))

    class OnOneRank(Mine):
        def __init__(self, name, weight):
            super().__init__(name, weight)
            self.number = next(drawn)

        def gradients(self, grad):
            if self.number == 1:
                self.weight.grad = grad

    model(OnOneRank)
    assert "layer 2 (OnOneRank), parameter dense1.weight: its grad was bound to another array" in complaint()


class Keeps(Dense):
    """It computes with the array that it was made of."""

    def __init__(self, name, weight):
        super().__init__(name, weight)
        self.mine = weight

    def forward(self, x):
        self._rows = x
        return x @ self.mine + self.bias.value


class KeepsBehindAMask(Keeps):
    """It hides what is no number."""

    def forward(self, x):
        h = super().forward(x)
        return np.where(h > 0, h, 0)


class KeepsForBackward(Keeps):
    """It reads its value forward, and a view of its own array backward."""

    def __init__(self, name, weight):
        super().__init__(name, weight)
        self.mine = weight.T

    def forward(self, x):
        return Dense.forward(self, x)

    def backward(self, dy):
        super().backward(dy)
        return dy @ self.mine


class KeepsForGradients(KeepsForBackward):
    """As a decay of its own."""

    def backward(self, dy):
        dx = Dense.backward(self, dy)
        self.weight.grad += 0.01 * self.mine.T
        return dx


class KeepsALock(Keeps):
    """Which cannot be copied."""

    def __init__(self, name, weight):
        super().__init__(name, weight)
        self.lock = threading.Lock()


DRAWN = np.random.default_rng(0)


class KeepsAndDraws(Keeps):
    """It differs from itself."""

    def forward(self, x):
        return super().forward(x) + DRAWN.standard_normal(20).astype(x.dtype)


KEEP = [Keeps, KeepsBehindAMask, KeepsForBackward, KeepsForGradients, KeepsALock, KeepsAndDraws]


@pytest.mark.parametrize("schedule", KINDS)
@pytest.mark.parametrize("layer", KEEP)
def test_a_layer_that_does_not_read_its_values_is_named(layer, schedule, model):
    model(layer)
    said = complaint(schedule=schedule)
    what = "parameter dense1.weight: the layer computes with an array of its own; read parameter.value each time"
    assert f"layer 2 ({layer.__name__}), {what}" in said


class KeepsUnderAMask(Keeps):
    """As attention has it."""

    def forward(self, x):
        h = super().forward(x)
        return np.where(np.tri(*h.shape, dtype=bool), h, -np.inf)


class KeepsAndOverflows(Keeps):
    """Under each filling, but not with its own array."""

    def forward(self, x):
        return super().forward(x) * np.float32(3e38)


@pytest.mark.parametrize("layer", [KeepsUnderAMask, KeepsAndOverflows])
def test_what_is_not_finite_hides_no_array_of_its_own(layer):
    weight = np.zeros((4, 4), np.float32)
    mine, right = layer("mine", weight), Dense("right", weight)
    for each in mine, right:
        each.weight.value = weight.copy()
    x = np.ones((4, 4), np.float32)
    with np.errstate(over="ignore"):
        assert Copies(mine, [weight]).differ(lambda each: [each.forward(x)])
    assert not Copies(right, [weight]).differ(lambda each: [np.where(x.cumsum(0) > 2, -np.inf, each.forward(x))])


class Holds(Keeps):
    """It does nothing wrong, though it holds the array that it was made of."""

    forward = Dense.forward


class Draws(Holds):
    """From a generator that all layers share, copies as well."""

    def forward(self, x):
        return super().forward(x) + DRAWN.standard_normal(20).astype(x.dtype)


class Counts(Holds):
    """What it has seen is a part of it: an inspection must leave no trace there."""

    seen = iterations = 0

    def forward(self, x):
        self.seen += 1
        assert self.seen <= self.iterations + 2, "once more, to see what memory it takes, or for the accuracy"
        return super().forward(x)

    def backward(self, dy):
        self.iterations += 1
        return super().backward(dy)


class IsNotCopied(KeepsALock):
    forward = Dense.forward


def test_ranks_that_are_threads_fill_shared_memory_in_turn():
    shared = np.arange(4.0)
    begun, ended = threading.Event(), threading.Event()

    def second():
        copies = Copies(Reshape((4,)), [shared])
        begun.set()
        ended.wait()
        copies.differ(lambda layer: [])

    thread = threading.Thread(target=second)

    def run(layer):
        if not started:
            started.append(thread.start())
            begun.wait(0.3)  # in vain: it waits for its turn
        return []

    started = []
    Copies(Reshape((4,)), [shared]).differ(run)
    ended.set()
    thread.join()
    assert (shared == np.arange(4.0)).all()


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("layer", [Holds, Draws, Counts, IsNotCopied])
def test_a_layer_that_only_holds_an_array_is_left_alone(layer, accumulate, model):
    model(layer)
    assert complaints(iterations=2, accumulate=accumulate, debug=True) == [None] * RANKS


@pytest.mark.parametrize("name", ALL_MODELS)
def test_models_whose_arrays_somebody_holds_are_left_alone(name, monkeypatch):
    """With the losses of models that nobody holds."""
    build, held = ALL_MODELS[name], []

    @wraps(build)
    def hold(*arguments):
        layers = build(*arguments)
        held.extend(parameter.value for layer in layers for parameter in layer.parameters)
        return layers

    choices = {"model": name, "iterations": 3} | ({"data": README, "context": 8, "batch": 6} if name == "gpt" else {})
    config = Config.of(settings(**choices))
    plain = run_loopback(2, lambda transport: train(config, World(transport))["params_sha256"])
    monkeypatch.setitem(MODELS, name, hold)
    assert run_loopback(2, lambda transport: train(config, World(transport))["params_sha256"]) == plain
    assert held


def test_arrays_that_others_hold_have_their_values_after_the_first_iteration(monkeypatch):
    """A script may keep what it made a model of."""
    kept = []

    def build(shape, classes, rng, dtype):
        weight = rng.standard_normal((64, classes)).astype(dtype)
        kept.append((weight, weight.copy()))
        return [Reshape((64,)), Dense("head", weight)]

    monkeypatch.setitem(MODELS, "mlp", build)
    assert complaints(iterations=3) == [None] * RANKS
    assert all((weight == before).all() for weight, before in kept)


def test_a_right_layer_is_left_alone(model):
    model(Dense)
    assert complaints(debug=True) == [None] * RANKS


class Large(Mine):
    """Each rank's gradient fits into fp16, their sum does not."""

    def gradients(self, grad):
        if self.iterations == 3:
            self.weight.grad[...] = 40000.0


@pytest.mark.parametrize("schedule", KINDS)
def test_an_overflow_on_the_wire_is_found_in_its_iteration(schedule, model):
    model(Large)
    choices = {"optimizer": "sgd", "lr": 1e-9, "schedule": schedule, "fusion": "none"}
    said = complaint(wire="fp16", **choices)
    assert "bucket 0 (layers 1..2, " in said, "the borders of buckets are rounded up"
    assert "summed in float16, are infinite or not a number in update 2" in said
    assert "--wire bf16 or fp32" in said
    assert complaints(wire="bf16", **choices) == [None] * RANKS
    assert complaints(ranks=1, wire="fp16", **choices) == [None], "it fits"


@pytest.mark.parametrize("command", [train, lambda config, world: Comparison(config, world, list(KINDS)).run()])
def test_an_overflow_in_the_last_iteration_is_no_success(command, model):
    class Huge(Mine):
        def gradients(self, grad):
            self.weight.grad[...] = 1e6

    model(Huge)
    said = complaint(command=command, iterations=1, wire="fp16", optimizer="sgd", lr=1e-9, schedule="dear")
    assert "are infinite or not a number in update 0" in said


@pytest.mark.parametrize("schedule", KINDS)
def test_parameters_that_are_infinite_at_the_end_are_no_success(schedule):
    """The loss is looked at before the last update."""
    said = complaint(iterations=1, optimizer="sgd", lr=1e38, momentum=0.9, weight_decay=10.0, schedule=schedule)
    assert "is infinite or not a number after the last update: try a lower learning rate (--lr)" in said


def test_parameters_that_share_a_part_of_their_memory_are_refused(monkeypatch):
    def build(shape, classes, rng, dtype):
        weight = np.zeros((69, 64), dtype)
        first, second = Dense("first", weight[:64]), Dense("second", weight[5:])
        return [Reshape((64,)), first, second, Dense("head", np.zeros((64, classes), dtype))]

    monkeypatch.setitem(MODELS, "mlp", build)
    said = complaint()
    assert "first.weight of layer 1 (Dense)" in said
    assert "second.weight of layer 2 (Dense) share a part of their memory: tied" in said


def test_a_parameter_that_must_not_be_copied_is_refused():
    layer = Dense("dense", np.zeros((3, 4)).T)
    layer.weight.rebind = False
    with pytest.raises(ValueError, match=r"parameter dense\.weight must be contiguous"):
        arena_of([layer])


def test_a_frozen_parameter_shares_no_memory_with_a_trained_one():
    weight = np.zeros((4, 4))
    first, second = Dense("first", weight), Dense("second", weight)
    second.weight.trained = False
    with pytest.raises(ValueError, match=r"first\.weight .* share .* memory"):
        arena_of([first, second])
