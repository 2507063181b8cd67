"""PAT, parallel aggregated trees: Bruck's steps from far to near, so that little data takes the longest ways.

            all_gather, 5 ranks: the way of chunk 0, and the chunks that rank 0 gets

       step 0        0 ----------------> 4         1           from rank 1, 4 before it
       step 1        0 ------> 2                   3           from rank 3, 2 before it
       step 2        0 -> 1    2 -> 3              2 and 4     from rank 4, 1 before it

Each chunk has a binomial tree, shifted to its owner; a message has all chunks that go from one rank to another. With
Bruck's order half of the data crosses half of the machine in the last step; here it goes to a neighbour. A message's
chunks are scattered, so small ones are packed. NCCL also limits how many chunks a message has, because its buffers are
small, and takes more steps then; our plans cut messages into segments instead.

Cost for n bytes on P ranks: Bruck's, ceil(lg P) alpha + (P-1)/P n (beta, or beta + gamma).

Source: Jeaugey, PAT: a new algorithm for all-gather and reduce-scatter operations at scale (2025, arXiv 2506.20252).
"""

from dear_mpi.collectives.program.program import Program, Receive, Send, Step


def all_gather(rank: int, size: int) -> Program:
    distances = [1 << bit for bit in reversed(range((size - 1).bit_length()))]
    return Program("all_gather", rank, size, tuple(pass_on(rank, size, distance) for distance in distances))


def pass_on(rank: int, size: int, distance: int) -> Step:
    ahead, behind = (rank + distance) % size, (rank - distance) % size
    return Step(
        tuple(Send(ahead, range(chunk, chunk + 1)) for chunk in held(rank, size, distance)),
        tuple(Receive(behind, range(chunk, chunk + 1)) for chunk in held(behind, size, distance)),
    )


def held(rank: int, size: int, distance: int) -> list[int]:
    """Return the chunks that a rank sends so far: their owners are even multiples of the distance before it.

    >>> held(0, 5, 4), held(3, 5, 2), held(4, 5, 1)
    ([0], [3], [2, 4])
    """
    return sorted((rank - away) % size for away in range(0, size - distance, 2 * distance))
