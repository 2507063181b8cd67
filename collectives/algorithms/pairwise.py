"""Pairwise exchange: every rank sends directly to every other rank, a different one in each step.

            all_gather, 4 ranks: sender -> receiver of its chunk

       step 0        0 -> 1   1 -> 2   2 -> 3   3 -> 0
       step 1        0 -> 2   1 -> 3   2 -> 0   3 -> 1
       step 2        0 -> 3   1 -> 0   2 -> 1   3 -> 2

In an all-to-all, arriving data replaces sent data, so a rank swaps chunks with the ranks s + 1 after and before it.

Cost for n bytes on P ranks: the ring's, (P-1) alpha + (P-1)/P n (beta + gamma) each; for an all-to-all floor(P/2) alpha
+ (P-1)/P n beta. No message waits for another, so a late rank delays only its own data.

Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, IJHPCA 19 (2005).
"""

from dear_mpi.collectives.program.program import Program, Receive, Send, Step


def all_gather(rank: int, size: int) -> Program:
    return Program("all_gather", rank, size, tuple(exchange(rank, size, distance) for distance in range(1, size)))


def exchange(rank: int, size: int, distance: int) -> Step:
    ahead, behind = (rank + distance) % size, (rank - distance) % size
    return Step((Send(ahead, range(rank, rank + 1)),), (Receive(behind, range(behind, behind + 1)),))


def all_to_all(rank: int, size: int) -> Program:
    distances = range(1, size // 2 + 1)
    steps = tuple(swap((rank + distance) % size, (rank - distance) % size) for distance in distances)
    return Program("all_to_all", rank, size, steps)


def swap(*peers: int) -> Step:
    chunks = {peer: range(peer, peer + 1) for peer in peers}
    return Step(tuple(Send(*each) for each in chunks.items()), tuple(Receive(*each) for each in chunks.items()))
