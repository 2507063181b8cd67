"""What is simulated of owners: a collective is as long as its longest shard, an update as its costliest."""

from dataclasses import replace

import pytest

from dear_mpi.kernels.optimizers import Lamb, Muon
from dear_mpi.models.synthetic import Module, load_modules
from dear_mpi.simulate.model import synthetic_model
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from dear_mpi.training.buckets.layout import cut
from dear_mpi.training.buckets.owners import Ownership, Sharing
from dear_mpi.training.events.profile import Profile, Tensor, Use
from dear_mpi.training.routes.find import SHARDED
from tests.simulate.predicted import predicted

RANKS = 4
BYTE_S = 1e-9


def profile():
    """Two layers with a matrix each, 64 x 128 and 128 x 128, and their biases; 1 ns for each parameter."""
    tensors = [(Tensor(0, (64, 128), outputs=1), Tensor(1, (128,))), (Tensor(2, (128, 128)), Tensor(3, (128,)))]
    uses = tuple(Use(f"{number}", each, 1e-3, 2e-3) for number, each in enumerate(tensors))
    said = {"model": "two", "device": "cpu", "ranks": 1, "rank": 0, "batch": None, "accumulate": 1, "dtype": "fp32"}
    said |= {"wire": "fp32", "schedule": "sequential", "iterations": 9, "update_s_per_element": 1e-9, "rest_s": 0.0}
    return Profile(**said, uses=uses)


def row(**choices):
    base = {"models": ("two",), "profile": profile(), "ranks": (RANKS,), "network": "8gbit,0us"}
    base |= {"schedules": ("sequential",), "fusions": ("buckets:1",)}
    return simulate(Settings(**base | choices))[0].row


def test_the_longest_shard_and_the_costliest_update_count():
    full, owned = (row(update=update, optimizer="muon") for update in ("full", "sharded"))
    elements = 128 * 64 + 128 + 128 * 128 + 128
    assert full["update_s"] == pytest.approx(elements * 1e-9)
    longest = 128 * 128  # elements
    moved_s = 2 * (RANKS - 1) * longest * 4 * BYTE_S  # by the ring, in both halves
    costs = [Muon().cost(shape) for shape in ((128, 64), (128,), (128, 128), (128,))]
    work = max(costs) / sum(costs)
    assert full["exposed_comm_s"] == pytest.approx(moved_s)
    assert owned["exposed_comm_s"] == pytest.approx(moved_s + work * elements * 1e-9)
    assert owned["update_s"] == 0, "the engine updates"


def test_without_an_optimiser_shards_are_equal():
    even = row(update="sharded")
    assert even["optimizer"] is None
    assert even["iteration_s"] == row(update="sharded", optimizer="adam")["iteration_s"]
    assert even["exposed_comm_s"] < row(update="sharded", optimizer="lamb")["exposed_comm_s"]


def test_updates_take_the_time_of_the_costliest_owner_under_each_prediction():
    """8 s for all updates of three tensors, of which no rank has two."""
    modules = [Module("a", (1024, 1024, 1536), 1.0)]
    ownership = Ownership(Lamb())
    model = synthetic_model("a", modules, ranks=RANKS, forward_s=1.0, backward_s=2.0, ownership=ownership)
    model = replace(model, costs=replace(model.costs, update_s=8.0 / 3584))
    sharing = Sharing(model.owners, model.layout, cut(model.layout, []))
    (bucket,) = sharing.partitions
    whole, own = sharing.works(bucket)
    costs = [model.owners.costs[tensor] / sum(model.owners.costs) for tensor in range(3)]
    assert whole == pytest.approx(3584)
    assert sorted(own) == pytest.approx([0, *(3584 * cost for cost in costs)])
    assert sharing.longest(bucket) == 1536
    found = predicted(
        model, "dear", "own", lambda _: lambda stage, _: 3.0, route=SHARDED, ranks=RANKS, work=sharing.work
    )
    assert found.iteration_s == pytest.approx(1 + 2 + 3 + 8 * max(costs) + 3)


@pytest.mark.parametrize("weights", [(1, 3, 3, 3), "measured"])
def test_by_weights_all_ranks_end_together(weights):
    """The straggler computes 3 times as long, so its part of the batch takes as long as the others' parts."""
    base = {"models": ("synthetic:resnet50",), "profile": None, "fusions": ("25MB",), "straggler": "0:3"}
    base |= {"schedules": ("dear",), "network": "100gbit,1us"}
    even, weighed = row(**base), row(**base, weights=weights)
    assert even["compute_s"] == pytest.approx(3 * 0.3)
    assert weighed["compute_s"] == pytest.approx(4 * 3 / 10 * 0.3, rel=0.01)
    assert weighed["iteration_s"] <= 0.6 * even["iteration_s"]
    assert weighed["weights"] == pytest.approx((1, 3, 3, 3) if weights != "measured" else (0.33, 1, 1, 1))


def test_the_longest_share_has_the_price():
    """Updates, too: each rank's take as long as it computes."""
    base = {"models": ("synthetic:resnet50",), "profile": None, "fusions": ("buckets:1",), "schedules": ("sequential",)}
    even, weighed = (row(**base, weights=weights, update="sharded", update_s=1e-9) for weights in (None, (1, 3, 3, 3)))
    elements = synthetic_model("", load_modules("resnet50"), ranks=4, forward_s=1.0, backward_s=2.0).layout.count
    moved_s, update_s = 2 * 3 * elements / 4 * 4 * BYTE_S, elements / 4 * 1e-9
    assert even["exposed_comm_s"] == pytest.approx(moved_s + update_s)
    assert weighed["exposed_comm_s"] == pytest.approx((moved_s + update_s) * 4 * 3 / 10, rel=1e-3)


@pytest.mark.parametrize(
    ("weights", "said"), [((1, 2), "weights must be 4 numbers"), ((0, 0, 0, 0), "not all of them 0")]
)
def test_wrong_weights_are_refused(weights, said):
    with pytest.raises(ValueError, match="weights must be left out"):
        row(weights=(1, 3, 3, 3), schedules=("local:4",))
    with pytest.raises(ValueError, match=said):
        row(weights=weights)
