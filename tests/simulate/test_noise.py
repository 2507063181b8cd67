"""Ranks of different speed: how long an iteration then is, its parts, and that all schedules meet the same noise."""

import numpy as np
import pytest

from dear_mpi.simulate.model import Model
from dear_mpi.training.buckets.layout import Layout
from dear_mpi.training.fabric.virtual import Costs
from tests.simulate.predicted import predicted

ONE_LAYER = Model(
    name="one layer",
    layout=Layout.of([[("weight", (64,))]], itemsize=4, ranks=2),
    names=("dense",),
    costs=Costs(forward_s=(1.0,), backward_s=(2.0,)),
)


def in_turn(turn, place):
    """Rank 0 takes twice as long in each other turn, and rank 1 in those between."""
    return np.array([2.0, 1.0] if turn % 2 == 0 else [1.0, 2.0])


def took(name, iterations):
    free = {"prices": lambda buckets: lambda collective, bucket: 0.0}
    return predicted(ONE_LAYER, name, "25MB", **free, iterations=iterations, noise=in_turn)


@pytest.mark.parametrize("iterations", [1, 2, 3, 20])
@pytest.mark.parametrize("name", ["sequential", "wfbp", "dear"])
def test_what_one_rank_is_behind_the_other_counts_once_and_parts_add_up(name, iterations):
    """Every iteration waits for the one that is slow in it, for 6 s. Under DeAR that shows in the next one: clocks are
    6 and 3 behind the first, 9 and 12 behind the second; the longest of each would be 6 and 9."""
    found = took(name, iterations)
    parts = (found.forward_s, found.backward_s, found.exposed_s, found.update_s, found.rest_s)
    assert found.iteration_s == pytest.approx(6.0)
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(6.0)
    if name == "dear" and iterations % 2 == 0:
        assert (found.forward_s + found.backward_s, found.rest_s) == pytest.approx((4.5, 0.0))
