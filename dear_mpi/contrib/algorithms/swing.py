"""Swing: Rabenseifner's bytes and steps, with partners that are near on a ring or torus.

            partners of an even rank (an odd one goes the other way)

       distance       +1    -1    +3    -5    +11   ...      each -2 times the one before, plus one

Partners at powers of two are up to P/2 hops apart and share the ring's links; Swing's are a third as far away in the
long run. The all-gather takes far partners first, with little data. If P is no power of two, some ranks act in pairs
(``collectives/algorithms/rabenseifner.py``); the original skips double data.

Cost for n bytes on P = 2^k ranks: Rabenseifner's if all pairs are equally near, less on a torus. A rank's chunks are
scattered, so small ones are packed.

Source: De Sensi, Bonato, Saam and Hoefler, Swing: short-cutting rings for higher bandwidth allreduce, NSDI 2024.
"""

from dear_mpi.collectives.algorithms.rabenseifner import butterfly
from dear_mpi.collectives.program.program import Program


def all_gather(rank: int, size: int) -> Program:
    last = size.bit_length() - 2

    def partner(vrank: int, step: int) -> int:
        hop = distance(last - step)
        return (vrank + (-hop if vrank % 2 else hop)) % (1 << last + 1)

    return butterfly(rank, size, partner)


def distance(step: int) -> int:
    """Sum the powers of -2 up to this one.

    >>> [distance(step) for step in range(5)]
    [1, -1, 3, -5, 11]
    """
    return sum((-1) ** power << power for power in range(step + 1))
