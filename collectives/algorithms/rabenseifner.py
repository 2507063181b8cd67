"""Rabenseifner's algorithm: recursive halving to reduce, recursive doubling to gather.

            all_gather, 8 ranks: the chunks that rank 0 holds

       at first       0
       step 0         0 1                   from rank 1
       step 1         0 1 2 3               from rank 2
       step 2         0 1 2 3 4 5 6 7       from rank 4

In step s ranks that differ in bit s exchange all their data. If P is no power of two, some ranks act in pairs
(``butterfly.py``), in two more steps.

Cost for n bytes on P = 2^k ranks: lg P alpha + (P-1)/P n (beta + gamma), without gamma for the all-gather. A ring is
better for the largest buffers, because it sends only to neighbours.

Source: Thakur, Rabenseifner and Gropp, IJHPCA 19 (2005).
"""

from dear_mpi.collectives.algorithms import butterfly
from dear_mpi.collectives.program.program import Program


def all_gather(rank: int, size: int) -> Program:
    return butterfly.all_gather(rank, size, lambda vrank, step: vrank ^ 1 << step)
