"""Recursive doubling: in each step ranks exchange whole buffers in pairs.

            all_reduce, 4 ranks: whose contributions a rank holds

       at first       0          1          2          3
       step 0         0 1        0 1        2 3        2 3        partners 0-1, 2-3
       step 1         0 1 2 3    0 1 2 3    0 1 2 3    0 1 2 3    partners 0-2, 1-3

In step s ranks that differ in bit s exchange and combine everything. If P is no power of two, some ranks act in pairs
(``rabenseifner.py``), in two more steps.

Cost for n bytes on P = 2^k ranks: lg P (alpha + n (beta + gamma)), the fewest steps possible. Partners form equal sums
in rank order, so all ranks get the same bits.

Source: Thakur, Rabenseifner and Gropp, IJHPCA 19 (2005).
"""

from dear_mpi.collectives.algorithms.rabenseifner import Fold
from dear_mpi.collectives.program.program import Program, Receive, Send, Step


def all_reduce(rank: int, size: int) -> Program:
    fold, whole = Fold(size), [range(size)]
    steps = [exchange(rank, fold, bit) for bit in range(fold.steps)]
    first = fold.pass_on(rank, whole, to_odd=False, combine=True)
    return Program("all_reduce", rank, size, (*first, *steps, *fold.pass_on(rank, whole, to_odd=True)))


def exchange(rank: int, fold: Fold, bit: int) -> Step:
    vrank = fold.vrank(rank)
    if vrank is None:
        return Step()
    peer, whole = fold.home(vrank ^ 1 << bit), range(fold.size)
    return Step((Send(peer, whole),), (Receive(peer, whole, combine=True),))
