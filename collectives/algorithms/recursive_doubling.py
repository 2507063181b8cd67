"""Recursive doubling: in each step all ranks exchange their whole buffers, pair by pair.

            all_reduce, 4 ranks: whose contributions a rank holds

       at first       0          1          2          3
       step 0         0 1        0 1        2 3        2 3        partners 0-1, 2-3
       step 1         0 1 2 3    0 1 2 3    0 1 2 3    0 1 2 3    partners 0-2, 1-3

In step s the ranks whose numbers differ in bit s send each other everything and combine. If P is no power of two, some
ranks act in pairs (``butterfly.py``): the odd one first gives its buffer away and at last gets the result.

Cost for n bytes on P = 2^k ranks: lg P (alpha + n (beta + gamma)), the fewest steps possible. No other
algorithm is faster if latency is all (n below some 10 KB). Any other P takes two more. Contributions are combined
in the order of the ranks, and partners form the same sums, so that all ranks end with the same bits.

Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, IJHPCA 19 (2005).
"""

from dear_mpi.collectives.algorithms.butterfly import Fold
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
