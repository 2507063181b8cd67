"""Lancet fills waits of the backward pass with weights' gradients, and is never predicted to be slower for it."""

import json
import random

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.contrib.lancet.schedule import Lancet, LancetFsdp, LateWeights, fitted
from dear_mpi.kernels.optimizers import SGD
from dear_mpi.models.layers import Dense, Gelu, Reshape, SoftmaxCrossEntropy
from dear_mpi.models.networks import MODELS
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.units import parse_link
from dear_mpi.training import Session
from dear_mpi.training.events.profiler import Profiler
from dear_mpi.training.fabric.rules import Rules, ScheduleError
from dear_mpi.training.fabric.virtual import Costs
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from dear_mpi.training.runs.train import train
from dear_mpi.training.schedules import SCHEDULES, Dear, Fsdp, Wfbp
from dear_mpi.training.schedules.schedule import Nominal
from dear_mpi.training.virtual_trainer import predict, rehearse
from tests.training_checks import README, Mixes, agreed, cut_of, installed, settings

LAYERS = 12


def predicted(kind, costs, *, name="test"):
    """An iteration of layers, each with a bucket of its own."""
    buckets = cut_of(*((use,) for use in range(len(costs.backward_s))))
    return predict(kind, Rules(name, buckets, kind), costs)


def test_weights_fill_the_waits_for_exchanges():
    """The backward pass of 12 layers, where dx, dw and an exchange take one unit each: from 36 units to 25."""
    one = dict.fromkeys(range(LAYERS), 1.0)
    costs = Costs(forward_s=[0.0] * LAYERS, backward_s=[2.0] * LAYERS, weights_s=one, exchange_s=one)
    forward = LAYERS  # units: the exchanges of the forward pass, which nothing hides
    found = {name: predicted(kind, costs).iteration_s - forward for name, kind in SCHEDULES.items()}
    assert predicted(Lancet, costs).iteration_s - forward == pytest.approx(25)
    assert list(found.values()) == pytest.approx([36] * len(found))
    assert predicted(LancetFsdp, costs).iteration_s - forward == pytest.approx(25)


def test_weights_are_saved_up_for_exchanges_that_come_later():
    """Ten layers that exchange nothing run backward before ten that have no weights."""
    weights, exchanges = dict.fromkeys(range(10, 20), 1.0), dict.fromkeys(range(10), 1.0)
    costs = Costs(forward_s=[0.0] * 20, backward_s=[1.0] * 10 + [2.0] * 10, weights_s=weights, exchange_s=exchanges)
    assert predicted(Dear, costs).exposed_s == pytest.approx(20)
    assert predicted(Lancet, costs).exposed_s == pytest.approx(10), "those of the forward pass"


def test_where_no_layer_exchanges_nothing_is_delayed():
    nominal = Nominal([1.0] * 4, [2.0] * 4, lambda collective, bucket: 3.0, weights_s=dict.fromkeys(range(4), 1.0))
    assert fitted(nominal) == (0, 1, 2, 3)


def test_the_second_gathers_of_fsdp_wait_for_less():
    """A large layer in front of small ones: its second gather begins one layer ahead, which does not hide it."""
    seconds = {"second all_gather": (4.0, 0.2), "all_gather": (0.0, 0.0), "reduce_scatter": (0.1, 0.1)}
    how = {"forward_s": [0.0] * LAYERS, "backward_s": [2.0] * LAYERS, "weights_s": dict.fromkeys(range(LAYERS), 1.0)}
    costs = Costs(price=lambda stage, bucket: seconds[stage.label][bucket.index > 0], **how)
    base, late = predicted(Fsdp, costs), predicted(LancetFsdp, costs)
    assert base.exposed_s - late.exposed_s > 1
    assert late.backward_s == pytest.approx(base.backward_s)


def random_costs(seed):
    rng = random.Random(seed)
    uses, scale = range(rng.randint(1, 7)), rng.choice((0.0, 0.1, 1.0, 5.0))
    backward = [rng.choice((0.0, 1.0, rng.expovariate(0.5))) for _ in uses]
    prices = {(name, use): scale * rng.expovariate(1.0) for name in ("rs", "ag") for use in uses}
    short = {"reduce_scatter": "rs", "all_gather": "ag", "second all_gather": "ag"}
    return Costs(
        forward_s=[rng.random() for _ in uses],
        backward_s=backward,
        weights_s={use: rng.random() * backward[use] for use in uses if rng.random() < 0.8},
        exchange_s={use: rng.expovariate(1.0) for use in uses if rng.random() < 0.4},
        price=lambda stage, bucket: prices[short[stage.label], bucket.index],
        parts=rng.choice((1, 1, 2)),
    )


@pytest.mark.parametrize(("kind", "base"), [(Lancet, Dear), (LancetFsdp, Fsdp)])
def test_it_is_never_predicted_to_be_slower_than_its_base(kind, base):
    faster = 0
    for seed in range(150):
        costs = random_costs(seed)
        ours, theirs = predicted(kind, costs), predicted(base, costs)
        assert ours.iteration_s <= theirs.iteration_s * (1 + 1e-12), seed
        assert ours.bound_s <= ours.iteration_s * (1 + 1e-12), seed
        assert ours.backward_s == pytest.approx(theirs.backward_s)
        faster += ours.iteration_s < 0.99 * theirs.iteration_s
    assert faster > 20


@given(data=st.data())
@hypothesis.settings(max_examples=60, deadline=None)
def test_any_plan_keeps_the_rules(data):
    """Whatever is split, delayed and for how long, with buckets of any uses."""
    uses = data.draw(st.integers(1, 6))
    groups = data.draw(st.lists(st.sets(st.integers(0, uses - 1), min_size=1), min_size=1, max_size=6))
    split = data.draw(st.sets(st.integers(0, uses - 1)))
    plan = tuple(data.draw(st.integers(-1, use)) for use in range(uses))
    buckets = cut_of(*(tuple(sorted(group)) for group in groups))
    for kind in (Lancet, LancetFsdp):
        rehearse(kind, Rules("mine", buckets, kind), uses, split=split, order=plan)


MOE = [{"name": f"layer{number}", "params": [64], "fwd_flops": 1, "exchange_bytes": 40_000} for number in range(4)]


def run_synthetic(tmp_path, schedule):
    """The digest, the plan and the profile of each rank, on a link on which an exchange takes 20 ms, and weights 1."""
    file = tmp_path / "moe.json"
    file.write_text(json.dumps({"modules": MOE}))
    choices = {"model": f"synthetic:{file}", "schedule": schedule, "fusion": "none", "forward_time": 0.004}

    def body(world):
        with Job(Config.of(choices), world, [schedule]) as job:
            profiler = Profiler(job.group)
            for iteration in range(6):
                job.iterate(schedule, *job.batch(iteration))
                profiler.note()
            job.flush()
            plan = getattr(job.group.trainers[schedule].schedule, "plan", None)
            yield job.parameters_sha256(), plan, profiler.profile("moe")

    return list(run_world(lambda world: next(body(world)), threads=3, link=parse_link("10mbit,100us")))


def test_a_synthetic_model_delays_alike_on_all_ranks(tmp_path):
    digest, plan, profile = run_synthetic(tmp_path, "lancet")
    assert len(plan) == 4
    assert plan < (0, 1, 2, 3), "some are delayed"
    assert all(0 < use.weights_s < use.backward_s for use in profile.uses[1:])
    assert all(use.exchange_s > 0.02 for use in profile.uses)
    other, _, profile = run_synthetic(tmp_path, "dear")
    assert digest == other
    assert [use.weights_s for use in profile.uses] == [0.0] * 4


def test_a_base_that_is_not_there_is_named():
    with pytest.raises(AgreedError, match="schedule 'lancet:base=wfbp': base must be dear or fsdp, not 'wfbp'"):
        run_loopback(1, lambda transport: Session([], None, transport, schedule="lancet:base=wfbp"))


# A backward pass in two halves: whenever the second one runs, the same is computed; what breaks a rule is refused.


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

    return agreed(body)


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
