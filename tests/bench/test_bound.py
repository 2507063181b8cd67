"""The least time of a collective on a fitted network."""

import numpy as np
import pytest

from dear_mpi.bench.fit import programs_of, time_s
from dear_mpi.bench.run import bound_us
from dear_mpi.collectives.algorithms.registry import ALGORITHMS
from dear_mpi.collectives.program.cost import Network
from dear_mpi.collectives.program.program import COLLECTIVES
from tests.bench.runs import row_at


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
def test_no_algorithm_is_below_the_bound(collective, ranks):
    tried = 0
    for network in (Network(1e-6, 1e-9), Network(1e-7, 1e-9, 1e-10, 1e-6), Network(0.0, 1e-9)):
        for algorithm in ALGORITHMS:
            for nbytes in (4 * ranks, 1 << 12, 1 << 20):
                row = row_at(nbytes, algorithm, np.full(9, 1e-6), ranks, collective=collective)
                if written := programs_of(row):
                    tried += 1
                    assert time_s(row, written, network) * 1e6 >= bound_us(row, network) * (1 - 1e-9), algorithm
    assert tried >= 9
