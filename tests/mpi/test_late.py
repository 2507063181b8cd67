"""A rank of MPI that sleeps now and then is named."""

import pytest

from dear_mpi.bench.found import recorded_calls as module
from dear_mpi.bench.found.late import blamed_rank
from dear_mpi.ranks.world import run_world
from tests.bench.sleepers import PLACES, recorded

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.mark.parametrize("place", PLACES)
def test_a_rank_that_sleeps_is_named(comm, agree, place, monkeypatch):
    monkeypatch.setattr(module, "MOST", 100)
    found, calls = run_world(lambda world: recorded(world, "ring", 1, place))
    agree(blamed_rank(found, comm.size, calls, "recorded").get("rank") == 1, f"{found}")
