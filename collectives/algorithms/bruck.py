"""Bruck's algorithm: the number of chunks that a rank holds doubles in each step, for any number of ranks.

            all_gather, 5 ranks: the chunks that rank 0 holds

       at first       0
       step 0         0 1               chunk  1       from rank 1
       step 1         0 1 2 3           chunks 2, 3    from rank 2
       step 2         0 1 2 3 4         chunk  4       from rank 4, the rest

Before a step at distance d = 1, 2, 4, ... a rank holds the d chunks from its own on, around the ring. It sends them
(or as many as are still wanted) to the rank d before it, and receives the next ones from the rank d after it. The
original shifts all data at the end; here a chunk is always at its own place, so that some messages are two pieces: one
at the end of the buffer, one at its beginning. The reduce-scatter is its mirror image (``mirror.py``).

Cost for n bytes on P ranks: ceil(lg P) alpha + (P-1)/P n (beta, or beta + gamma); up to twice the messages where they
are in two pieces. Few messages and no byte too many, so best for small buffers; but large parts cross the network far
from home, and nothing is pipelined over more than lg P steps.

Source: Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems, IEEE
TPDS 8 (1997), where it is called concatenation.
"""

from dear_mpi.collectives.program.program import Program, Receive, Send, Step, ranges

__all__ = ["all_gather"]


def all_gather(rank: int, size: int) -> Program:
    """Rank r starts with chunk r; every rank ends with all chunks."""
    distances = [1 << k for k in range((size - 1).bit_length())]
    return Program("all_gather", rank, size, tuple(doubling(rank, size, distance) for distance in distances))


def doubling(rank: int, size: int, distance: int) -> Step:
    """Hand on what is held to the rank so far before, and get the next from the one after."""
    count = min(distance, size - distance)
    before, after = (rank - distance) % size, (rank + distance) % size
    return Step(
        tuple(Send(before, chunks) for chunks in around(rank, count, size)),
        tuple(Receive(after, chunks) for chunks in around(after, count, size)),
    )


def around(first: int, count: int, size: int) -> list[range]:
    """So many chunks from this one on, around the ring: one range, or two where they pass the end."""
    return ranges(sorted((first + i) % size for i in range(count)))
