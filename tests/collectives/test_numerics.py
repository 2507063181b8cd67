"""The replay on numbers behind docs/benchmarks/numerics.md is what plans do, and the table says what it promises."""

import pytest

from dear_mpi.collectives import ALGORITHMS, programs
from dear_mpi.kernels.dtypes import DTYPES
from tests import numerics

REDUCING = [name for name, row in ALGORITHMS.items() if "all_reduce" in row and name != "shared"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REDUCING)
@pytest.mark.parametrize("size", [2, 5])
def test_the_replay_has_the_bits_of_loopback(name, dtype, size):
    data, _ = numerics.contributions(size, 103, dtype)
    replayed = numerics.replayed(programs(name, "all_reduce", size), data)
    results = {result.tobytes() for result in [*replayed, *numerics.over_threads(name, data)]}
    assert len(results) == 1
