"""Who owns which part of a bucket: whole tensors have one owner, and the bits of whole updates."""

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.kernels.optimizers import Lamb, Muon
from dear_mpi.models.data import Batches, Examples
from dear_mpi.models.layer import Parameter
from dear_mpi.models.layers import Dense, SoftmaxCrossEntropy
from dear_mpi.training import Session
from dear_mpi.training.buckets.layout import Bucket, Layout, cut
from dear_mpi.training.buckets.owners import Owners, placed
from dear_mpi.training.fusion import fused
from dear_mpi.training.schedules import SCHEDULES
from tests.training.test_sharded import layers
from tests.training_checks import agreed, batch, installed

TOKENS, CONTEXT = 11, 6
BATCH = 12
OPTIMIZERS = {"muon": Muon(), "lamb": Lamb(0.01)}

SIZES = st.lists(st.integers(0, 300), min_size=1, max_size=12).filter(any)


def tokens(rank, size, iteration, seed=0):
    """A rank's part of a batch of the alphabet, over and over."""
    windows = np.lib.stride_tricks.sliding_window_view(np.arange(200) % TOKENS, CONTEXT + 1)
    x, y = windows[:, :-1].astype(np.uint8), windows[:, 1:]
    return Batches(Examples(x, y, ()), BATCH, rank=rank, size=size, seed=seed).part(iteration)


class Lookup(Dense):
    """A row for each token."""

    def forward(self, x):
        return super().forward(np.eye(TOKENS, dtype=self.weight.value.dtype)[x])


def model(dtype="fp32"):
    """Matrices of several shapes between an embedding and a head, which are updated as vectors."""
    rng, sizes = np.random.default_rng(3), (TOKENS, 16, 48, 16, 16, 64, 16, TOKENS)
    pairs = list(itertools.pairwise(sizes))
    weights = [(rng.standard_normal(pair) / pair[0] ** 0.5).astype(dtype.replace("fp", "float")) for pair in pairs]
    inner = [Dense(f"dense{number}", weight) for number, weight in enumerate(weights[1:-1])]
    return [Lookup("tokens", weights[0], outputs=None), *inner, Dense("head", weights[-1], outputs=None)]


def trained(transport, *, cuts=(), iterations=4, **options):
    """The parameters, and the elements of state on this rank; buckets are cut anew after each second iteration."""
    with Session(model(), SoftmaxCrossEntropy(), transport, **options) as session:
        for iteration in range(iterations):
            if cuts and iteration % 2:
                session.cut(cuts[iteration // 2])
            x, y = tokens(transport.rank, transport.size, iteration)
            session.step(x, y, total=BATCH * CONTEXT)
        session.flush()
        return session.parameters_sha256(), sum(array.size for array in session.group.arena.state)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_same_bits_whoever_updates_under_all_schedules(optimizer, ranks):
    options = {"optimizer": OPTIMIZERS[optimizer], "algorithm": "ring", "fusion": "layers:2"}
    found = set()
    for update, schedule in itertools.product(("full", "sharded"), SCHEDULES if ranks == 3 else ("dear", "wfbp")):
        run = partial(trained, update=update, schedule=schedule, **options)
        found |= {digest for digest, _ in run_loopback(ranks, run)}
    assert len(found) == 1


@pytest.mark.parametrize(
    "options", [{"clip": 0.5, "accumulate": 2}, {"wire": "bf16"}, {"loss_scale": "dynamic"}], ids=str
)
def test_and_with_what_else_may_be_chosen(options):
    options = {"optimizer": Muon(), "fusion": "none", "algorithm": "auto"} | options
    updates = [run_loopback(3, partial(trained, update=update, **options)) for update in ("full", "sharded")]
    assert len({digest for ranks in updates for digest, _ in ranks}) == 1


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_no_cut_changes_a_bit_and_the_state_moves_with_its_owners(ranks):
    options = {"optimizer": Muon(), "algorithm": "ordered", "update": "sharded"}
    whole = run_loopback(ranks, partial(trained, fusion="buckets:1", **options))
    recut = run_loopback(ranks, partial(trained, fusion="none", cuts=("tensors", "25MB"), **options))
    assert {digest for digest, _ in recut} == {digest for digest, _ in whole}
    assert sum(count for _, count in recut) == sum(count for _, count in whole), "each element of state has one owner"


def test_a_checkpoint_goes_on_with_other_owners(tmp_path):
    """From four owners to three, and to ranks that all update all."""
    # The biases of keys have gradients of zero but for rounding, and each processor rounds differently. The usual
    # epsilon would make steps of that.
    options = {"optimizer": Muon(epsilon=1e-4), "algorithm": "ordered"}

    def run(transport, begin, end, file, *, resume=False, **more):
        with Session(model("fp64"), SoftmaxCrossEntropy(), transport, **options, **more) as session:
            if resume:
                session.resume(file)
            for iteration in range(begin, end):
                x, y = tokens(0, 1, iteration)
                session.step(x, y, total=BATCH * CONTEXT * transport.size)
            session.save(file)
            return session.state()

    (whole,) = run_loopback(1, lambda each: run(each, 0, 4, tmp_path / "whole.npz"))
    for ranks, update in ((3, "sharded"), (2, "full")):
        file = tmp_path / f"{update}.npz"
        run_loopback(4, lambda each, f=file: run(each, 0, 2, f, update="sharded", fusion="layers:2"))
        found = run_loopback(ranks, lambda each, f=file, u=update: run(each, 2, 4, f, resume=True, update=u))
        for name in whole.keys() - {"about"}:
            np.testing.assert_allclose(found[0][name], whole[name], rtol=1e-9, atol=1e-12)


def test_what_is_not_finite_is_told_to_all_ranks():
    """Though one owner alone meets it, and some own nothing of its bucket."""

    def broken(transport, update):
        options = {"update": update, "fusion": "tensors", "optimizer": Muon()}
        with Session(model(), SoftmaxCrossEntropy(), transport, **options) as session:
            for iteration in range(3):
                if iteration == 1 and transport.rank == 2:
                    session.loss.backward = lambda scale: np.full((4, CONTEXT, TOKENS), np.nan, np.float32)
                session.step(*tokens(transport.rank, 3, iteration), total=BATCH * CONTEXT)

    full, sharded = (agreed(lambda each, u=update: broken(each, u)) for update in ("full", "sharded"))
    assert full == sharded
    assert "gradients, summed in float32, are infinite or not a number in update 1" in full


def layout_of(sizes, ranks):
    uses = [[(number, (size,))] for number, size in enumerate(sizes)]
    return Layout.of(uses, itemsize=4, ranks=ranks, whole=True)


@given(sizes=SIZES, ranks=st.integers(1, 5), data=st.data())
def test_each_tensor_is_in_one_shard_and_each_element_too(sizes, ranks, data):
    layout = layout_of(sizes, ranks)
    costs = tuple(data.draw(st.lists(st.integers(1, 1000), min_size=len(sizes), max_size=len(sizes))))
    weights = data.draw(st.none() | st.tuples(*[st.integers(0, 5)] * ranks).filter(any))
    buckets = cut(layout, data.draw(st.lists(st.integers(0, layout.count), max_size=4)))
    partitions = Owners(ranks, weights, costs).partitions(layout, buckets)
    for bucket in buckets:
        borders = partitions[bucket].borders
        assert borders[0] == 0
        assert borders[-1] == bucket.count
        assert list(borders) == sorted(borders)
        assert len(borders) == ranks + 1
        inside = {bucket.start + border for border in borders} - {bucket.start, bucket.stop}
        assert inside <= set(layout.offsets), "shards end where tensors end"
        assert all(border * 4 % 128 == 0 for border in borders)
        for rank, weight in enumerate(weights or ()):
            if not weight and any(layout.tensors(*bucket.interval)):
                own = partitions[bucket].shard(rank)
                assert not layout.tensors(bucket.start + own.start, bucket.start + own.stop)


def costliest(costs, run, speeds):
    """The longest time of a rank, for a bucket with these runs."""
    ends = list(itertools.accumulate(run, initial=0))
    taken = [sum(costs[begin:end]) for begin, end in itertools.pairwise(ends)]
    return max(cost / speed for cost, speed in zip(taken, speeds, strict=True))


@given(
    costs=st.lists(st.integers(1, 50), min_size=1, max_size=6),
    weights=st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
def test_no_placement_of_a_bucket_is_much_faster(costs, weights):
    bucket, speeds = Bucket(0, 0, 1, (0,), 4), [weight / sum(weights) for weight in weights]
    run = placed({bucket: costs}, speeds)[bucket]
    borders = itertools.combinations_with_replacement(range(len(costs) + 1), len(speeds) - 1)
    runs = [[b - a for a, b in itertools.pairwise((0, *each, len(costs)))] for each in borders]
    assert sum(run) == len(costs)
    assert costliest(costs, run, speeds) <= 1.051 * min(costliest(costs, each, speeds) for each in runs)


def test_a_bucket_of_whole_tensors_is_padded():
    layout = layout_of([3000, 100], 4)
    assert fused("tensors", layout)[0].count == 3008, "padded for one rank alone"


class Seen(Muon):
    """Keeps the shapes of what it is given."""

    def update(self, iteration, value, grad, state):
        shapes.add(value.shape)
        super().update(iteration, value, grad, state)


shapes = set()


def test_matrices_come_with_their_outputs_first_and_embeddings_as_vectors():
    run_loopback(2, partial(trained, optimizer=Seen()))
    matrices = {(48, 16), (16, 48), (16, 16), (64, 16), (16, 64)}
    assert {shape for shape in shapes if len(shape) == 2} == matrices
    assert (TOKENS * 16,) in shapes
    with pytest.raises(ValueError, match="axis 2"):
        Parameter.of("w", np.zeros((3, 4)), outputs=2).outputs_first(np.zeros((3, 4)))


@pytest.mark.parametrize("update", ["full", "sharded"])
@pytest.mark.parametrize("wire", installed("int8", "topk:10%"))
def test_codes_of_unequal_shards_have_rows_of_their_own(wire, update):
    """Some of them empty; all ranks decode the same, also when buckets were cut anew."""
    options = {"optimizer": Muon(), "wire": wire, "update": update, "cuts": ("layers:2", "none")}
    found = [
        run_loopback(4, partial(trained, fusion=fusion, schedule="dear", **options)) for fusion in ("none", "tensors")
    ]
    for ranks in found:
        assert len({digest for digest, _ in ranks}) == 1


@pytest.mark.parametrize("wire", installed("randomk:10%"))
def test_what_selects_elements_is_refused(wire):
    said = agreed(lambda each: trained(each, optimizer=Muon(), wire=wire), 2)
    assert "the optimizer updates whole tensors, and selected elements lie within tensors" in said


# An optimiser that looks at whole tensors: buckets end where tensors end, and no cut changes a bit.

OPTIONS = {"optimizer": Lamb(0.01), "algorithm": "ordered"}


def trained_whole(transport, schedule, *, cuts=(), **options):
    """The parameters after six iterations, and the tensors of each bucket; buckets are cut anew after each third."""
    with Session(layers(), SoftmaxCrossEntropy(), transport, schedule=schedule, **OPTIONS | options) as session:
        found = []
        for iteration in range(6):
            if cuts and iteration % 3 == 2:
                session.cut(cuts[iteration // 3])
            session.step(*batch(iteration, transport.rank))
            layout = session.group.layout
            found.append([layout.tensors(bucket.start, bucket.stop) for bucket in session.group.buckets])
        session.flush()
        return session.parameters_sha256(), found


def test_no_bucket_begins_within_a_tensor():
    (_, found), *_ = run_loopback(2, lambda each: trained_whole(each, "dear", fusion="cut:128B"))
    (_, (whole, *_)), *_ = run_loopback(2, lambda each: trained_whole(each, "dear", fusion="buckets:1"))
    tensors = [tensor for bucket in found[0] for tensor in bucket]
    assert len(found[0]) > 1
    assert tensors == whole[0], "each tensor is in one bucket, whole"


def test_auto_takes_owners():
    def chosen(transport, **options):
        options = OPTIONS | {"update": "auto", "algorithm": "ring"} | options
        with Session(layers(), SoftmaxCrossEntropy(), transport, **options) as session:
            return session.group.route.name

    assert run_loopback(2, chosen) == ["sharded", "sharded"]
    assert run_loopback(2, lambda each: chosen(each, wire="bf16")) == ["full", "full"]


def test_a_step_is_as_long_as_its_tensor():
    """|w| times the learning rate, for each tensor that is not zero."""

    def lengths(transport):
        model = layers()
        before = [parameter.value.copy() for layer in model for parameter in layer.parameters]
        with Session(model, SoftmaxCrossEntropy(), transport, optimizer=Lamb(0.01, weight_decay=0.0)) as session:
            session.step(*batch(0, transport.rank))
        after = [parameter.value for layer in model for parameter in layer.parameters]
        return [(np.linalg.norm(old), np.linalg.norm(new - old)) for old, new in zip(before, after, strict=True)]

    for pairs in run_loopback(2, lengths):
        moved = [(old, step) for old, step in pairs if old and step]
        assert len(moved) >= 2
        for old, step in moved:
            assert step == pytest.approx(0.01 * old)
