"""Plans that are kept, dropped or broken off, over MPI: the same checks as tests/collectives/test_lifetimes.py."""

import random

import numpy as np
import pytest

from dear_mpi.collectives import TransportError, all_reduce, transport_of
from dear_mpi.collectives.plans.functions import CachedPlans
from tests import collective_checks, lifetime_checks

pytestmark = pytest.mark.mpi


@pytest.fixture
def transport(comm):
    """Of a communicator of this test."""
    own = comm.Dup()
    yield transport_of(own)
    own.Free()


@pytest.mark.parametrize("count", lifetime_checks.COUNTS)
@pytest.mark.parametrize("algorithm", ["ring", "auto", "shared", "native"])
def test_plans_are_cached(transport, count, algorithm):
    lifetime_checks.check_plans_are_cached(transport, count, algorithm)


@pytest.mark.parametrize("count", lifetime_checks.COUNTS)
def test_all_functions_are_kept(transport, count):
    lifetime_checks.check_all_functions_are_kept(transport, count)


@pytest.mark.mpi(min_size=2)
def test_hits_and_misses_disagree(transport):
    lifetime_checks.check_hits_and_misses_disagree(transport)


@pytest.mark.parametrize("check", [
    lifetime_checks.check_kept_plans_are_bounded,
    lifetime_checks.check_dropped_plans_keep_their_memory,
])  # fmt: skip
def test_lifetimes(transport, check):
    check(transport)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("drive", collective_checks.DRIVES)
def test_a_plan_that_was_broken_off_says_so(transport, drive):
    lifetime_checks.check_a_plan_that_was_broken_off_says_so(transport, TransportError("gone"), drive)


def test_kept_plans_are_freed_with_their_communicator(comm):
    own = comm.Dup()
    all_reduce(np.ones(3), own)
    cached_plans = CachedPlans.of(transport_of(own))
    (kept,) = cached_plans.kept.values()
    (plan,) = kept.plans.values()
    own.Free()
    assert plan.freed
    assert not cached_plans.kept


def test_soak(comm, transport):
    def beside(seed):
        """Communicators of some of the ranks come and go."""
        parts = random.Random(seed).choices([0, 1], k=comm.size)
        part = comm.Split(parts[comm.rank], comm.rank)
        for count in (3, 40_000):
            for _ in range(3):
                assert (all_reduce(np.ones(count), part) == part.size).all()
        part.Free()

    lifetime_checks.check_soak(transport, 6, beside)
