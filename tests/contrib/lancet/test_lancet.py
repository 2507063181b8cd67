"""Lancet fills waits of the backward pass with weights' gradients, and is never predicted to be slower for it."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.contrib.lancet.schedule import Lancet, LancetFsdp, fitted
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.units import parse_link
from dear_mpi.training import Session
from dear_mpi.training.events.profiler import Profiler
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.fabric.virtual import Costs
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from dear_mpi.training.schedules import SCHEDULES, Dear, Fsdp
from dear_mpi.training.schedules.schedule import Nominal
from dear_mpi.training.virtual_trainer import predict, rehearse
from tests.training_checks import cut_of

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
    costs = Costs(
        forward_s=[0.0] * LAYERS,
        backward_s=[2.0] * LAYERS,
        weights_s=dict.fromkeys(range(LAYERS), 1.0),
        price=lambda stage, bucket: seconds[stage.label][bucket.index > 0],
    )
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
@settings(max_examples=60, deadline=None)
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
