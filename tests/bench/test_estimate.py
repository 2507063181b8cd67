"""A run says how long it will take, if it is long; and never anything else of itself."""

import pytest

from dear_mpi.bench.arrivals import Arrival
from dear_mpi.bench.run import bench, estimated_s
from dear_mpi.bench.suite import Suite
from dear_mpi.bench.timing import Context
from dear_mpi.ranks.world import run_world


def estimate(**how):
    suite = Suite(**{"sizes": (64,), "algorithms": ("ring",), "segments": (1 << 16,), **how})
    return run_world(lambda world: estimated_s(suite.cases(2), suite, Context.of(world, suite)), threads=2)


def test_small_points_take_their_time_at_most():
    assert estimate(sizes=(4, 64), collectives=("all_reduce", "barrier"), budget_s=500.0) == 3 * 500


def test_large_points_take_as_long_as_the_fewest_samples():
    small, large = (estimate(sizes=(size,), budget_s=1e-9) for size in (1 << 20, 1 << 40))
    assert large > 1000 * small > 0


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"budget_s": 6.0}, "2 points on 2 ranks take about 12 s at most"),
        ({"budget_s": 6.0, "steps": True}, "2 points on 2 ranks take about 12 s"),
        ({"budget_s": 6.0, "arrival": (Arrival("ramp"),)}, "2 points on 2 ranks take about 12 s"),
        ({"budget_s": 0.001}, ""),
    ],
)
def test_a_long_run_says_so_before_it_begins(capsys, how, said):
    """It is "at most" only where nothing is done but what the estimate has."""
    settings = Suite((4, 64), algorithms=("ring",), precision=1.0, **how)
    run_world(lambda world: bench(settings, world), threads=2)
    assert capsys.readouterr().err == (f"note: {said}\n" if said else "")
