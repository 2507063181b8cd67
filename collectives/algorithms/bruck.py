"""Bruck's algorithm: the number of chunks that a rank holds doubles in each step, for any number of ranks.

            all_gather, 5 ranks: the chunks that rank 0 holds

       at first       0
       step 0         0 1               chunk  1       from rank 1
       step 1         0 1 2 3           chunks 2, 3    from rank 2
       step 2         0 1 2 3 4         chunk  4       from rank 4, the rest

Before a step at distance d = 1, 2, 4, ... a rank holds the d chunks from its own on, around the ring. It sends them
(or as many as are still wanted) to the rank d before it, and receives the next ones from the rank d after it. The
original shifts all data at the end. Here a chunk never changes its position, so some transfers take two messages: one
for the end of the buffer, one for its beginning. The reduce-scatter is its mirror image (``mirror.py``).

Cost for n bytes on P ranks: ceil(lg P) alpha + (P-1)/P n (beta, or beta + gamma); up to 2 ceil(lg P) messages,
because some transfers take two. With few messages and no byte too many it is best for small buffers. But its largest
messages go to distant ranks, and there are only lg P steps to pipeline.

Source: Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems, IEEE
TPDS 8 (1997), where it is called concatenation.
"""

from dear_mpi.collectives.program.program import Program, Receive, Send, Step, ranges


def all_gather(rank: int, size: int) -> Program:
    distances = [1 << k for k in range((size - 1).bit_length())]
    return Program("all_gather", rank, size, tuple(doubling(rank, size, distance) for distance in distances))


def doubling(rank: int, size: int, distance: int) -> Step:
    """Send the chunks that are held to the rank ``distance`` before, and receive more from the rank as far after."""
    count = min(distance, size - distance)
    before, after = (rank - distance) % size, (rank + distance) % size
    return Step(
        tuple(Send(before, chunks) for chunks in around(rank, count, size)),
        tuple(Receive(after, chunks) for chunks in around(after, count, size)),
    )


def around(first: int, count: int, size: int) -> list[range]:
    """``count`` chunks from ``first`` on, around the ring: one range, or two where they pass the end."""
    return ranges(sorted((first + i) % size for i in range(count)))
