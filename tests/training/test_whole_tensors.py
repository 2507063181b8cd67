"""An optimiser that looks at whole tensors: buckets end where tensors end, and no cut changes a bit."""

import numpy as np
import pytest

from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.kernels.optimizers import Lamb
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.training import Session
from tests.training.test_sharded import batch, layers

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


def test_no_bucket_begins_within_a_tensor():
    (_, found), *_ = run_loopback(2, lambda each: trained(each, "dear", fusion="cut:128B"))
    (_, (whole, *_)), *_ = run_loopback(2, lambda each: trained(each, "dear", fusion="buckets:1"))
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
