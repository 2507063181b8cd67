"""A flipped bit in a message of MPI is traced to the rank, the chunk and the step that received it."""

import random

import pytest

from dear_mpi.ranks.world import run_world
from tests.bench.flips import ALWAYS, ONCE, case_of, is_fitted, is_located, planted, received

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.mark.parametrize("times", [ALWAYS, ONCE], ids=["always", "once"])
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        ("all_reduce", "ring"),
        ("all_reduce", "recursive_doubling"),
        ("all_reduce", "binomial"),
        ("reduce_scatter", "ring"),
        ("all_gather", "bruck"),
        ("broadcast", "binomial"),
        ("all_to_all", "pairwise"),
    ],
)
def test_a_flipped_bit_is_located(comm, agree, collective, algorithm, times):
    case = case_of(collective)
    every = received(case, algorithm, comm.size, 1 << 12)
    for hit in random.Random(1).sample(every, min(3, len(every))):
        fault = run_world(lambda world, hit=hit: planted(world, case, algorithm, 1 << 12, hit, times))
        agree((is_located if times is ALWAYS else is_fitted)(fault, hit), f"{hit}: {fault}")
        assert comm.allgather(fault) == [fault] * comm.size
