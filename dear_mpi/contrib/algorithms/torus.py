"""2-D torus: ranks in rows and columns; half of the data takes rows first, the other half columns.

            2 x 3 ranks                 0 --> 1 --> 2 --> (0)
                                        |     |     |
                                        3 --> 4 --> 5 --> (3)

So links of both dimensions are always busy. Each shard has two chunks (``parts``). The grid is the one nearest to a
square, R x C = P.

Cost for n bytes: the ring's bytes in R + C - 2 steps. With links for each dimension it takes about half the ring's time
for large n; with one port only the latency is lower.

Source: Ying et al., Image classification at supercomputer scale (2018), section 3.2.
"""

import math

from dear_mpi.collectives.algorithms.ring import around, merged
from dear_mpi.collectives.program.program import Program, Step

HALVES = 2


def all_gather(rank: int, size: int) -> Program:
    rows = max(d for d in range(1, math.isqrt(size) + 1) if size % d == 0)
    columns = size // rows
    across = [rank // columns * columns + i for i in range(columns)]
    down = [rank % columns + i * columns for i in range(rows)]
    halves = [two_rings(rank, down, across, stride=1, half=0), two_rings(rank, across, down, stride=columns, half=1)]
    return Program("all_gather", rank, size, tuple(merged(halves, rows + columns - 2)), parts=HALVES)


def two_rings(rank: int, first: list[int], second: list[int], *, stride: int, half: int) -> list[Step]:
    index = second.index(rank)
    gathered = [[HALVES * (r + (i - index) * stride) + half for r in first] for i in range(len(second))]
    return around(rank, first, [[HALVES * r + half] for r in first]) + around(rank, second, gathered)
