"""Bruck's algorithm: each step doubles the chunks of a rank, for any number of ranks.

            all_gather, 5 ranks: the chunks that rank 0 holds

       at first       0
       step 0         0 1               chunk  1       from rank 1
       step 1         0 1 2 3           chunks 2, 3    from rank 2
       step 2         0 1 2 3 4         chunk  4       from rank 4, the rest

At distance d = 1, 2, 4, ... a rank sends up to d chunks, its own first, to the rank d before it. The original shifts
all data at the end; here a message around the buffer's end has two ranges.

Cost for n bytes on P ranks: ceil(lg P) alpha + (P-1)/P n (beta, or beta + gamma). Best for small buffers.

Source: Bruck et al., Efficient algorithms for all-to-all communications, IEEE TPDS 8 (1997): concatenation.
"""

from dear_mpi.collectives.program.program import Program, Receive, Send, Step, ranges


def all_gather(rank: int, size: int) -> Program:
    distances = [1 << k for k in range((size - 1).bit_length())]
    return Program("all_gather", rank, size, tuple(doubling(rank, size, distance) for distance in distances))


def doubling(rank: int, size: int, distance: int) -> Step:
    count = min(distance, size - distance)
    before, after = (rank - distance) % size, (rank + distance) % size
    return Step(
        tuple(Send(before, chunks) for chunks in around(rank, count, size)),
        tuple(Receive(after, chunks) for chunks in around(after, count, size)),
    )


def around(first: int, count: int, size: int) -> list[range]:
    return ranges(sorted((first + i) % size for i in range(count)))
