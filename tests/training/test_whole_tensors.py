"""An optimiser that looks at whole tensors: buckets end where tensors end, and no cut changes a bit."""

from typing import ClassVar

import numpy as np
import pytest

from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.kernels.optimizers import Lamb
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.training import Session
from tests.training.test_sharded import batch, layers
from tests.training_checks import third

OPTIONS = {"optimizer": Lamb(0.01), "algorithm": "ordered"}


def trained(transport, schedule, *, cuts=(), **options):
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


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize(
    ("number", "options"),
    [(0, {}), (1, {"clip": 0.5, "accumulate": 2}), (2, {"wire": "bf16"})],
    ids=["", "clip", "bf16"],
)
def test_all_schedules_and_cuts_have_the_same_bits(number, options, ranks):
    whole = run_loopback(ranks, lambda each: trained(each, "sequential", fusion="buckets:1", **options))
    for schedule in third(number + ranks):
        for cuts, fusion in (((), "none"), ((), "cut:128B"), (("tensors", "25MB"), "layers:2")):
            found = run_loopback(
                ranks, lambda each, s=schedule, c=cuts, f=fusion: trained(each, s, cuts=c, fusion=f, **options)
            )
            assert {digest for digest, _ in found} == {digest for digest, _ in whole}, (schedule, fusion)


def test_no_bucket_begins_within_a_tensor():
    (_, found), *_ = run_loopback(2, lambda each: trained(each, "dear", fusion="cut:128B"))
    (_, (whole, *_)), *_ = run_loopback(2, lambda each: trained(each, "dear", fusion="buckets:1"))
    tensors = [tensor for bucket in found[0] for tensor in bucket]
    assert len(found[0]) > 1
    assert tensors == whole[0], "each tensor is in one bucket, whole"


def test_it_goes_on_from_a_checkpoint_on_other_ranks(tmp_path):
    def run(transport, begin, end, file, *, resume=False):
        with Session(layers(), SoftmaxCrossEntropy(), transport, fusion="tensors", **OPTIONS) as session:
            if resume:
                session.resume(file)
            for iteration in range(begin, end):
                session.step(*batch(iteration, 0), total=4 * transport.size)
            session.save(file)
            return session.parameters_sha256()

    file = tmp_path / "run.npz"
    (whole,) = set(run_loopback(1, lambda each: run(each, 0, 6, tmp_path / "whole.npz")))
    run_loopback(4, lambda each: run(each, 0, 3, file))
    assert set(run_loopback(1, lambda each: run(each, 3, 6, file, resume=True))) == {whole}


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


class Seen(Lamb):
    """Keeps the shapes of what it is given."""

    shapes: ClassVar[set] = set()

    def update(self, iteration, value, grad, state):
        self.shapes.update(array.shape for array in (value, grad, *state))
        super().update(iteration, value, grad, state)


def test_tensors_come_in_their_shapes():
    run_loopback(2, lambda each: trained(each, "dear", optimizer=Seen(0.01)))
    assert Seen.shapes == {(6, 6), (6,), (4, 6), (4,)}, "outputs first"
