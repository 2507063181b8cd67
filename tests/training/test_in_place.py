"""A value that its owner changes in place behind a flush is what the next update begins with, wherever it lies."""

import numpy as np
import pytest

from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.optimizers import SGD, Adam
from dear_mpi.models.layers import Dense, SoftmaxCrossEntropy
from dear_mpi.training import Session
from dear_mpi.training.routes.find import UPDATES
from dear_mpi.training.schedules import SCHEDULES
from tests.training_checks import on_all, steps


class Cast(Dense):
    """A layer of another type than the model's."""

    def forward(self, x):
        return super().forward(x.astype(self.weight.value.dtype)).astype(np.float64)

    def backward(self, dy):
        return super().backward(dy.astype(self.weight.value.dtype)).astype(np.float64)


def layers(dtype, *, rebind=True):
    """The middle one may stay in its own memory; it is cut into several buckets."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((6, 6)), rng.standard_normal((6, 60)), rng.standard_normal((60, 4))]
    first, last = Dense("first", weights[0]), Dense("last", weights[2])
    middle = Cast("middle", weights[1].astype(DTYPES[dtype]))
    middle.weight.rebind = rebind
    return [first, middle, last]


def trained(transport, schedule, update, dtype, *, rebind=True):
    """The values of the middle layer behind six iterations, in the middle of which some were changed."""
    mine = layers(dtype, rebind=rebind)
    value = lambda: mine[1].weight.value  # noqa: E731
    options = {"schedule": schedule, "update": update, "algorithm": "ordered", "fusion": "cut:256B"}
    with Session(mine, SoftmaxCrossEntropy(), transport, optimizer=Adam(1e-3), **options) as session:
        steps(session, 3)
        value()[1] = 5.0
        value()[2:] = value()[2:].clip(-0.5, 0.5)
        (kept,) = (v for v in session.state().values() if v.shape == (6, 60) and v[1, 0] > 4)
        assert (kept[1] == 5.0).all(), "a checkpoint has it"
        steps(session, 3, 6)
        return value().tobytes()


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_is_as_if_the_value_lay_on_the_line(schedule, update):
    expected = set(on_all(lambda each: trained(each, "sequential", "full", "fp64")))
    assert set(on_all(lambda each: trained(each, schedule, update, "fp64", rebind=False))) == expected


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_value_of_a_narrower_type_is_taken(dtype):
    """Alike on all ranks, under full and sharded updates; and it moves on from there."""
    runs = [on_all(lambda each, u=update, s=schedule: trained(each, s, u, dtype)) for schedule, update in CASES]
    (value,) = {each for run in runs for each in run}
    changed = np.frombuffer(value, DTYPES[dtype]).reshape(6, 60)[1].astype(float)
    assert (abs(changed - 5.0) < 0.05).all()


CASES = [("sequential", "full"), ("dear", "full"), ("dear", "sharded"), ("fsdp", "sharded")]


@pytest.mark.parametrize("update", UPDATES)
def test_what_was_not_changed_stays_as_exact_as_the_line(update):
    """Steps that a narrower type rounds away still add up."""

    def body(transport):
        mine = layers("bf16")
        mine[1].weight.value[...] = 1.0
        with Session(mine, SoftmaxCrossEntropy(), transport, optimizer=SGD(1e-3), update=update) as session:
            before = mine[1].weight.value.copy()
            steps(session, 3)
            state = session.state()
            (line,) = (each for each in state.values() if each.shape == (6, 60))
        return (mine[1].weight.value == before).mean() > 0.5 and (line != 1.0).all()

    assert on_all(body) == [True] * 3
