"""A backward pass in two halves: whenever the second one runs, the same is computed; what breaks a rule is refused."""

import numpy as np
import pytest

from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.contrib.lancet.schedule import Lancet, LancetFsdp, LateWeights
from dear_mpi.kernels.optimizers import SGD
from dear_mpi.models.layers import Dense, Gelu, Reshape, SoftmaxCrossEntropy
from dear_mpi.models.networks import MODELS
from dear_mpi.ranks.world import run_world
from dear_mpi.training import Session
from dear_mpi.training.fabric.rules import Rules, ScheduleError
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import train
from dear_mpi.training.schedules import SCHEDULES, Wfbp
from dear_mpi.training.virtual_trainer import rehearse
from tests.training_checks import README, Mixes, cut_of, installed, on_all, settings


def planned(kind, plan):
    """A schedule that decides for this plan, whatever layers take."""

    class Planned(kind):
        def orders(self, nominal):
            uses = len(nominal.backward_s)
            return [tuple(min(use, max(-1, plan(use))) for use in range(uses))]

    return Planned


PLANS = {
    "the next layer": lambda use: use - 1,
    "two layers later": lambda use: use - 2,
    "the end": lambda use: -1,
    "some not": lambda use: use - use % 3,
}
CASES = installed(
    {"model": "mlp", "fusion": "none"},
    {"model": "mlp", "fusion": "cut:20kB", "accumulate": 3, "batch": 21},
    {"model": "mlp", "fusion": "25MB", "update": "sharded", "clip": 1.0, "loss_scale": "dynamic", "wire": "fp16"},
    {"model": "cnn", "fusion": "layers:2"},
    {"model": "gpt", "data": README, "fusion": "none", "context": 8, "batch": 6},
)


@pytest.mark.parametrize(
    ("threads", "choices"),
    [(1 + (at + more) % 5, choices) for at, choices in enumerate(CASES) for more in (1, 3)],
    ids=str,
)
def test_whenever_weights_are_written_the_bits_are_the_same(threads, choices, monkeypatch):
    for name, plan in PLANS.items():
        monkeypatch.setitem(SCHEDULES, name, planned(Lancet, plan))
    monkeypatch.setitem(SCHEDULES, "fsdp, the end", planned(LancetFsdp, PLANS["the end"]))
    names = ["sequential", "lancet", "lancet:base=fsdp", *PLANS, "fsdp, the end"]
    names = names if choices["model"] == "mlp" else ["sequential", "lancet", "two layers later"]
    configs = [Config.of(settings(schedule=name, iterations=5, **choices)) for name in names]
    digests = [run_world(lambda world, c=c: train(c, world), threads=threads)["params_sha256"] for c in configs]
    assert digests == digests[:1] * len(names)


class Whole:
    def __init__(self, dense):
        self.dense, self.parameters = dense, dense.parameters

    def forward(self, x):
        return self.dense.forward(x)

    def backward(self, dy):
        return self.dense.backward(dy)


def tied(name, other):
    """A layer with the weight of another one, and a bias of its own."""
    layer = Dense(name, other.weight.value)
    layer.weight, layer.parameters = other.weight, (other.weight, layer.bias)
    return layer


def uneven_layers():
    """Tied and frozen parameters; layers that run twice, and that are split or not."""
    rng = np.random.default_rng(0)
    first, last = (Dense(name, rng.standard_normal((6, 6)) / 2) for name in ("first", "last"))
    frozen = Dense("frozen", rng.standard_normal((6, 6)) / 2)
    frozen.weight.trained = False
    third = Dense("third", rng.standard_normal((6, 6)) / 2)
    return [Whole(first), Gelu(), frozen, tied("second", first), third, Gelu(), last, Whole(tied("fourth", third))]


USES = [0, 1, 2, 3, 4, 1, 3, 5, 6, 7]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_tied_and_frozen_parameters(ranks, accumulate, monkeypatch):
    for name, plan in PLANS.items():
        monkeypatch.setitem(SCHEDULES, name, planned(Lancet, plan))

    def body(transport, schedule):
        layers = uneven_layers()
        options = {"schedule": schedule, "fusion": "none", "accumulate": accumulate, "optimizer": SGD(lr=0.1)}
        rng = np.random.default_rng(transport.rank)
        with Session(layers, SoftmaxCrossEntropy(), transport, calls=USES, **options) as session:
            for _ in range(5):
                session.step(rng.standard_normal((4, 6)), rng.integers(0, 6, 4))
            session.flush()
            return session.parameters_sha256()

    names = ("sequential", "lancet", *PLANS)
    assert len({digest for name in names for digest in run_loopback(ranks, lambda t, name=name: body(t, name))}) == 1


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_layers_that_exchange_train_the_same_under_all_schedules(ranks, monkeypatch):
    monkeypatch.setitem(SCHEDULES, "the end", planned(Lancet, PLANS["the end"]))

    def body(transport, schedule):
        rng = np.random.default_rng(0)
        shapes = (6, 20), (20, 20), (20, 20), (20, 4)
        weights = [rng.standard_normal(shape) / 4 for shape in shapes]
        layers = [Dense("in", weights[0])]
        layers += [Mixes(f"mix{at}", weight, transport) for at, weight in enumerate(weights[1:3])]
        layers.append(Dense("out", weights[3]))
        rng = np.random.default_rng(transport.rank)
        with Session(layers, SoftmaxCrossEntropy(), transport, schedule=schedule, fusion="none") as session:
            for _ in range(6):
                session.step(rng.standard_normal((30, 6)), rng.integers(0, 4, 30))
            session.flush()
            assert [layer.exchanged for layer in layers[1:3]] == [12, 12]
            waited = {event.awaited for event in session.group.fabric.log.last.within if event.kind == "wait"}
            assert "exchange" in waited
            return session.parameters_sha256()

    names = [*SCHEDULES, "lancet", "lancet:base=fsdp"]
    assert len({digest for name in names for digest in run_loopback(ranks, lambda t, name=name: body(t, name))}) == 1


def test_a_model_whose_layers_exchange_is_not_tested(monkeypatch):
    """Ranks may have unequally many parts of the test set, and would wait for each other."""

    class Alone(Dense):
        def exchange_forward(self, x):
            return x

        exchange_backward = exchange_forward

    def build(shape, classes, rng, dtype):
        return [Reshape((64,)), Alone("a", rng.standard_normal((64, classes)).astype(dtype) / 8)]

    monkeypatch.setitem(MODELS, "mlp", build)
    report = run_world(lambda world: train(Config.of(settings(schedule="lancet")), world), threads=3)
    assert report["accuracy"] is None
    assert report["loss"][-1] < report["loss"][0]


# What is refused -----------------------------------------------------------------------------------------------------

SPLIT = range(3)


class NeverWrites(Wfbp):
    def delays_weights(self, use):
        return use == 1


class WritesTwice(LateWeights, Wfbp):
    def end_backward(self):
        super().end_backward()
        self.fabric.write_weights()


class StartsBefore(LateWeights, Wfbp):
    def before_backward(self, use):
        if use == 0:
            self.reducing.append((self.fabric.buckets[1], self.fabric.start("all_reduce", self.fabric.buckets[1])))


REFUSED = {
    NeverWrites: "has delayed the weights' gradients of layer 1, and never let it write them (in end_backward()",
    WritesTwice: "lets a layer write its weights' gradients, though none is delayed (in end_backward()",
    StartsBefore: "starts the all_reduce of bucket 1 (layers 1..1, 128 bytes) before layer 1 wrote gradients",
}


@pytest.mark.parametrize("schedule", REFUSED, ids=lambda kind: kind.__name__)
def test_a_schedule_that_breaks_a_rule_of_halves_is_refused(schedule):
    buckets = cut_of((0,), (1,), (2,))
    with pytest.raises(ScheduleError) as refused:
        rehearse(schedule, Rules("mine", buckets, schedule), 3, split=SPLIT)
    assert REFUSED[schedule] in str(refused.value)


class Half(Dense):
    backward_weights = None


def refused_by_all(layers, **options):
    def body(transport):
        with Session(layers(), SoftmaxCrossEntropy(), transport, fusion="none", **options) as session:
            session.step(np.ones((2, 6)), np.zeros(2, int))

    said = on_all(body)
    assert said == said[:1] * 3
    return said[0]


@pytest.mark.parametrize("schedule", ["lancet", "sequential"])
def test_a_layer_with_one_half_is_refused_on_all_ranks(schedule):
    said = refused_by_all(lambda: [Dense("a", np.ones((6, 6))), Half("b", np.ones((6, 4)))], schedule=schedule)
    assert "layer 1: Half has only the method backward_input: backward_input and backward_weights are a pair" in said


def test_a_layer_that_exchanges_before_one_pass_alone_is_refused():
    class Ahead(Dense):
        def exchange_forward(self, x):
            return x

    said = refused_by_all(lambda: [Ahead("b", np.ones((6, 4)))])
    assert "layer 0: Ahead has only the method exchange_forward" in said


class LeavesOut(Dense):
    def backward_weights(self):
        kept = self.bias.grad.copy()
        super().backward_weights()
        self.bias.grad[...] = kept


class Rebinds(Dense):
    def backward_weights(self):
        super().backward_weights()
        self.weight.grad = self.weight.grad.copy()


@pytest.mark.parametrize(
    ("layer", "said"), [(LeavesOut, "bias: its gradient has NaN"), (Rebinds, "weight: its grad was")]
)
def test_what_the_second_half_does_not_write_is_named(layer, said):
    def layers():
        return [Dense("a", np.ones((6, 6))), layer("b", np.ones((6, 6))), Dense("c", np.ones((6, 4)))]

    assert f"layer 1 ({layer.__name__}), parameter b.{said}" in refused_by_all(layers, schedule="lancet")
