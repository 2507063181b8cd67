"""Ranks of different speed: how long an iteration then is, its parts, and that all schedules meet the same noise."""

from types import SimpleNamespace

import numpy as np
import pytest

from dear_mpi.simulate.model import Model
from dear_mpi.training.fabric.costs import Costs
from dear_mpi.training.flat_buffer.bucket import Layout
from dear_mpi.training.log import Log
from dear_mpi.training.virtual_trainer import Tally
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


def clock(*, begin, end, compute):
    """A tally of one iteration between these clocks of all ranks."""
    fabric = SimpleNamespace(now=lambda: np.array(begin), log=Log())
    tally = Tally(fabric)
    fabric.log.begin(0, None)
    fabric.log.did("forward", 0, np.zeros(len(compute)), np.array(compute))
    fabric.now = lambda: np.array(end)
    tally.add()
    return tally


@pytest.mark.parametrize(
    ("clocks", "rank", "seconds"),
    [
        ({"begin": [0.0, 0.0], "end": [3.0, 3.0], "compute": [1.0, 2.0]}, 1, (3.0, 2.0, 1.0)),
        ({"begin": [0.0, 1.0], "end": [4.0, 3.0], "compute": [4.0, 1.0]}, 1, (3.0, 1.0, 2.0)),
        ({"begin": [0.0, 1.0, 0.5], "end": [4.0, 3.0, 3.25], "compute": [4.0, 2.0, 2.75]}, 2, (3.0, 2.75, 0.25)),
    ],
    ids=["together", "apart", "the nearest"],
)
def test_the_rank_is_that_whose_own_time_is_nearest_to_the_length(clocks, rank, seconds):
    tally = clock(**clocks)
    found = tally.means()
    assert tally.rank() == rank
    assert [found[name] for name in ("iteration_s", "forward_s", "rest_s")] == pytest.approx(list(seconds))
