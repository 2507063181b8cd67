"""What is simulated of K-FAC is what is trained: the same line, the same owners, the same messages; and its prices."""

from functools import partial

import numpy as np
import pytest

from dear_mpi.collectives.transports.emulated import Link
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.contrib.kfac.kfac import KFAC, Sides, matrix_of
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.models.networks import ALL_MODELS
from dear_mpi.models.synthetic import Module, load_modules
from dear_mpi.simulate.model import synthetic_model
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from dear_mpi.training import Session
from dear_mpi.training.buckets.owners import Ownership
from dear_mpi.training.events.profile import Profile, Tensor, Use
from dear_mpi.training.events.profiler import Profiler
from dear_mpi.training.fabric.plan_cost import modelled_s

SIDES = Sides(3, 2)
ROWS = 10
LINK = Link(1e9, 1e-4)


def profile(uses=None):
    """A layer of 2 inputs and 2 outputs with its factors: 1 ns for each mean element of an update."""
    tensors = (Tensor(0, (2, 2), outputs=1), Tensor(1, (2,)), Tensor(2, (SIDES.elements,), None, SIDES.cost))
    said = {"model": "one", "device": "cpu", "ranks": 1, "rank": 0, "batch": None, "accumulate": 1, "dtype": "fp32"}
    said |= {"wire": "fp32", "schedule": "sequential", "iterations": 9, "update_s_per_element": 1e-9, "rest_s": 0.0}
    return Profile(**said, uses=uses or (Use("dense", tensors, 1e-3, 2e-3),))


def simulated(**choices):
    base = {"models": ("one",), "profile": profile(), "ranks": (2,), "network": "8gbit,0us", "optimizer": "kfac"}
    base |= {"schedules": ("sequential",), "fusions": ("buckets:1",)}
    (found,) = simulate(Settings(**base | choices))
    return found


def live(transport, *, kind, update):
    """The profile of a few iterations; and what the group has: its layout, partitions, and seconds of its plans."""
    layers = kind((4, 4), 3, np.random.default_rng(1), np.dtype(np.float32))
    how = {"optimizer": KFAC(0.05), "fusion": "layers:2", "update": update, "schedule": "dear", "algorithm": "ring"}
    with Session(layers, SoftmaxCrossEntropy(), transport, **how) as session:
        profiler, draw = Profiler(session.group), np.random.default_rng(2)
        for _ in range(3):
            session.step(draw.standard_normal((4, 4, 4)), draw.integers(0, 3, 4))
            profiler.note()
        session.flush()
        fabric, arena = session.group.fabric, session.group.arena
        names = session.group.schedules["dear"].collectives
        stages = [stage for name in names for stage in fabric.route.collectives(name)]
        plans = [fabric.plan(stage, each) for stage in stages for each in fabric.buckets]
        partitions = [each.counts for each in arena.sharing.partitions.values()]
        works = [arena.sharing.works(bucket)[1].tolist() for bucket in fabric.buckets]
        seconds = modelled_s(LINK, transport.hosts, plans)
        return profiler.profile("mine"), session.group.layout, partitions, works, seconds


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("kind", [ALL_MODELS[name] for name in ("mlp", "cnn") if name in ALL_MODELS])
def test_what_is_simulated_is_what_is_trained(kind, ranks):
    """A collective is priced as if all shards were as long as the longest, so never below its plan."""
    for update in ("full", "sharded"):
        run, *_ = run_loopback(ranks, partial(live, kind=kind, update=update))
        measured, layout, partitions, works, plans_s = run
        choices = {"profile": measured, "models": ("mine",), "ranks": (ranks,), "network": "8gbit,100us"}
        found = simulated(**choices, schedules=("dear",), fusions=("layers:2",), update=update)
        model, buckets = found.scenario.model, found.prediction.buckets
        assert model.layout == layout
        sharing = model.sharing(buckets)
        assert [each.counts for each in sharing.partitions.values()] == partitions
        assert [sharing.works(bucket)[1].tolist() for bucket in buckets] == works
        priced_s = sum(found.prediction.network_s.values())
        longest = [ranks * max(counts) / sum(counts) for counts in partitions]
        assert plans_s <= priced_s * (1 + 1e-9)
        assert priced_s <= plans_s * max(longest)


def test_factors_travel_with_gradients_and_their_owner_inverts_them():
    full, owned = (simulated(update=update) for update in ("full", "sharded"))
    costs = np.array([KFAC().cost((2, 2)), KFAC().cost((2,)), SIDES.cost])
    model = full.scenario.model
    count, (partition,) = model.layout.count, model.sharing(full.prediction.buckets).partitions.values()
    moved_s = 2 * max(partition.counts) * 4 * 1e-9  # of two ranks, by the ring, in both halves
    assert partition.counts == [64, 32], "the factors have an owner of their own"
    assert full.row["update_s"] == pytest.approx(count * 1e-9)
    assert full.row["iteration_s"] == pytest.approx(3e-3 + moved_s + count * 1e-9, abs=1e-7)
    inverted_s = count * 1e-9 * costs[2] / costs.sum()
    assert owned.row["iteration_s"] == pytest.approx(3e-3 + moved_s + inverted_s, abs=1e-7)


def test_factors_of_a_table_take_their_flops_at_the_rate_of_the_forward_pass():
    """Of 2 x 3 weights with 2 outputs, and a bias: sums of 4 x 4 and 2 x 2 over 10 rows, and products with inverses."""
    modules = [Module("dense", (6, 2), 2.0 * 6 * ROWS, out_elems=2 * ROWS), Module("relu", (), 0.0)]
    plain = synthetic_model("a", modules, ranks=2, forward_s=1.2, backward_s=2.4)
    kfac = synthetic_model("a", modules, ranks=2, forward_s=1.2, backward_s=2.4, ownership=Ownership(KFAC()))
    flop_s = 1.2 / (2 * 6 * ROWS)
    sums, products, inverses = 2 * ROWS * (16 + 4), 2 * (16 * 2 + 4 * 4), 2 * (64 + 8)
    assert kfac.costs.forward_s == plain.costs.forward_s
    assert kfac.costs.backward_s == pytest.approx([2.4 + flop_s * (sums + products), 0.0])
    assert kfac.costs.weights_s[0] == pytest.approx(1.2 + flop_s * (sums + products))
    assert kfac.costs.update_s * kfac.layout.count == pytest.approx(flop_s * inverses)
    assert kfac.params - plain.params == Sides(4, 2).elements
    assert plain.costs.update_s == 0


def test_the_tables_of_papers_have_factors():
    convolution, norm = load_modules("resnet50")[:2]
    assert matrix_of(convolution) == (3 * 7 * 7, 64)
    assert matrix_of(norm) is None


@pytest.mark.parametrize(("choices", "said"), [
    ({"clip": 1.0}, "optimizer KFAC sends other sums beside gradients: leave out clip"),
    ({"wire": "int8"}, "the route 'full over int8' does not bring them all"),
    ({"schedules": ("local:4",)}, "the route 'local:4' does not bring them all"),
    ({"optimizer": None}, "model 'one' sends more than gradients, which its optimizer does not: take its"),
    ({"optimizer": "lamb"}, "model 'one' sends more than gradients, which its optimizer does not"),
    ({"profile": profile((Use("dense", (Tensor(0, (2, 2)),), 1e-3, 2e-3),))}, "model 'one' sends gradients alone:"),
], ids=str)  # fmt: skip
def test_what_kfac_cannot_have_is_refused(choices, said):
    with pytest.raises(ValueError, match=said):
        simulated(**choices)


def test_a_table_without_outputs_has_no_factors(tmp_path):
    file = tmp_path / "table.json"
    file.write_text('{"modules": [{"name": "dense", "params": [6, 2], "fwd_flops": 120}]}')
    with pytest.raises(ValueError, match=r"sends gradients alone: .* or a table with out_elems"):
        simulated(profile=None, models=(f"synthetic:{file}",))
