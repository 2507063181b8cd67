"""Pairwise exchange: every rank sends directly to every other one, to a different one in each step.

            all_gather, 4 ranks: which rank sends its own chunk to which

       step 0        0 -> 1   1 -> 2   2 -> 3   3 -> 0
       step 1        0 -> 2   1 -> 3   2 -> 0   3 -> 1
       step 2        0 -> 3   1 -> 0   2 -> 1   3 -> 2

In step s a rank sends its own chunk to the rank s + 1 after it, and receives the chunk of the rank s + 1 before it. The
reduce-scatter is its mirror image (``mirror.py``): every contribution goes straight to the chunk's owner, which alone
adds up.

Cost for n bytes on P ranks: as the ring's, (P-1) alpha + (P-1)/P n (beta + gamma) each, if every pair of ranks is as
near as neighbours. No message waits for another one, so a late rank delays only its own data; but far pairs load the
middle of a network that neighbours in a ring leave free.

Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, IJHPCA 19
(2005): their choice for reduce-scatters of long messages.
"""

from dear_mpi.collectives.program.program import Program, Receive, Send, Step


def all_gather(rank: int, size: int) -> Program:
    """Rank r starts with chunk r; every rank ends with all chunks."""
    return Program("all_gather", rank, size, tuple(exchange(rank, size, distance) for distance in range(1, size)))


def exchange(rank: int, size: int, distance: int) -> Step:
    """Send the rank's own chunk to the rank ``distance`` after it, and receive one from as far before."""
    ahead, behind = (rank + distance) % size, (rank - distance) % size
    return Step((Send(ahead, range(rank, rank + 1)),), (Receive(behind, range(behind, behind + 1)),))
