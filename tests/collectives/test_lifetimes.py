"""Plans that are kept, dropped or broken off, over threads; tests/mpi/test_lifetimes.py runs the same under mpirun."""

import os

import numpy as np
import pytest

from dear_mpi.collectives import TransportError, all_reduce
from dear_mpi.collectives.plans.functions import CachedPlans
from dear_mpi.collectives.transports.emulated import EmulatedTransport, Link
from dear_mpi.collectives.transports.loopback import run_loopback
from tests import collective_checks, lifetime_checks

SIZES = [1, 2, 3]
ERRORS = [KeyboardInterrupt(), FloatingPointError("overflow"), TransportError("gone")]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", lifetime_checks.COUNTS)
def test_plans_are_cached(size, count):
    run_loopback(size, lambda transport: lifetime_checks.check_plans_are_cached(transport, count))
    run_loopback(size, lambda transport: lifetime_checks.check_all_functions_are_kept(transport, count))


@pytest.mark.parametrize("check", [
    lifetime_checks.check_kept_plans_are_bounded,
    lifetime_checks.check_dropped_plans_keep_their_memory,
])  # fmt: skip
@pytest.mark.parametrize("size", SIZES)
def test_lifetimes(size, check):
    run_loopback(size, check)


@pytest.mark.parametrize("size", [2, 3])
def test_hits_and_misses_disagree(size):
    run_loopback(size, lifetime_checks.check_hits_and_misses_disagree)


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("drive", collective_checks.DRIVES)
def test_a_plan_that_was_broken_off_says_so(error, drive):
    run_loopback(2, lambda t: lifetime_checks.check_a_plan_that_was_broken_off_says_so(t, error, drive))


@pytest.mark.parametrize("count", lifetime_checks.COUNTS)
def test_a_cached_plan_that_was_broken_off_is_made_again(count):
    run_loopback(2, lambda t: lifetime_checks.check_a_cached_plan_that_was_broken_off_is_made_again(t, count))


def test_an_emulated_link_keeps_its_own():
    def body(transport):
        emulated = EmulatedTransport(transport, Link(1e9))
        for each in (transport, emulated, emulated):
            assert all_reduce(np.ones(3), each)[0] == 2
        assert CachedPlans.of(transport).made == CachedPlans.of(emulated).made == 1

    run_loopback(2, body)


def test_a_file_that_has_changed_is_read_again(tmp_path):
    """Of an algorithm, or of rules; and another file of the same name, after os.chdir."""
    mine = tmp_path / "mine.py"

    def body(transport):
        made = []
        for text in (RING, RING, RING + "# changed\n"):
            if transport.rank == 0:
                mine.write_text(text)
                os.utime(mine, ns=(len(text), len(text)))
            transport.barrier()
            x = np.ones(4)
            all_reduce(x, transport, algorithm=f"{mine}:my_ring")
            assert (x == 2).all()
            made.append(CachedPlans.of(transport).made)
            transport.barrier()
        return made

    assert run_loopback(2, body) == [[1, 1, 2]] * 2


RING = """
from dear_mpi.collectives.algorithms.ring import *
from dear_mpi.collectives.algorithms import ring
my_ring = ring.all_gather
"""


def test_soak():
    run_loopback(2, lambda transport: lifetime_checks.check_soak(transport, turns=20))
