"""Pairwise exchange: every rank sends directly to every other one, to a different one in each step.

            all_gather, 4 ranks: which rank sends its own chunk to which

       step 0        0 -> 1   1 -> 2   2 -> 3   3 -> 0
       step 1        0 -> 2   1 -> 3   2 -> 0   3 -> 1
       step 2        0 -> 3   1 -> 0   2 -> 1   3 -> 2

In step s a rank sends its own chunk to the rank s + 1 after it, and receives the chunk of the rank s + 1 before it. The
reduce-scatter is its mirror image (``mirror.py``): every contribution goes straight to the chunk's owner, which alone
adds up.

In an all-to-all, what comes from a peer takes the place of what goes there. So in step s a rank swaps chunks with both
the rank s + 1 after it and the rank s + 1 before it:

            all_to_all, 5 ranks: with whom a rank swaps chunks

       step 0        0 <-> 1   1 <-> 2   2 <-> 3   3 <-> 4   4 <-> 0
       step 1        0 <-> 2   1 <-> 3   2 <-> 4   3 <-> 0   4 <-> 1

Cost for n bytes on P ranks: as the ring's, (P-1) alpha + (P-1)/P n (beta + gamma) each, if every pair of ranks is as
near as neighbours; for an all-to-all floor(P/2) alpha + (P-1)/P n beta. No message waits for another one, so a late
rank delays only its own data; but far pairs load the middle of a network that neighbours in a ring leave free.

Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, IJHPCA 19
(2005): their choice for reduce-scatters of long messages.
"""

from dear_mpi.collectives.program.program import Program, Receive, Send, Step


def all_gather(rank: int, size: int) -> Program:
    return Program("all_gather", rank, size, tuple(exchange(rank, size, distance) for distance in range(1, size)))


def exchange(rank: int, size: int, distance: int) -> Step:
    """Send the rank's own chunk to the rank ``distance`` after it, and receive one from as far before."""
    ahead, behind = (rank + distance) % size, (rank - distance) % size
    return Step((Send(ahead, range(rank, rank + 1)),), (Receive(behind, range(behind, behind + 1)),))


def all_to_all(rank: int, size: int) -> Program:
    distances = range(1, size // 2 + 1)
    steps = tuple(swap((rank + distance) % size, (rank - distance) % size) for distance in distances)
    return Program("all_to_all", rank, size, steps)


def swap(*peers: int) -> Step:
    """Give each of these peers its chunk, and get one from it in exchange; a peer that is named twice counts once."""
    chunks = {peer: range(peer, peer + 1) for peer in peers}
    return Step(tuple(Send(*each) for each in chunks.items()), tuple(Receive(*each) for each in chunks.items()))
