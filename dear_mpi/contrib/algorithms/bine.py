"""Bine tree: a binomial tree with children on both sides, so that ranks talk to nearer ones.

            broadcast, 8 ranks on a line that closes to a circle

                         6    7    0    1    2    3    4    5
       step 0                      0 ------------> 3
       step 1                 7 <- 0               3 -> 4
       step 2            6 <- 7    0 -> 1    2 <- 3     4 -> 5

A tree of order k is one of order k - 1 and its mirror image, whose roots are as near as possible. So a step's partners
are 1, 1, 3, 5, 11, ... ranks apart: a third of what the tree spans, and not half, as in ``binomial``. If groups of
neighbours share links to other groups, up to a third less data crosses these. In base -2 the ranks of a subtree share
their first digits, hence the name, binomial negabinary. For other numbers of ranks than 2^k we halve unevenly; the
authors do not. For large buffers they use the butterflies of ``swing``.

Cost for n bytes on P ranks: ceil(lg P) (alpha + n beta), plus gamma for a reduction.

Source: De Sensi et al., Bine trees: enhancing collective operations by optimizing communication locality, SC 2025
(arXiv 2508.17311).
"""

from dear_mpi.collectives.program.program import Program, Receive, Send, Step


def broadcast(rank: int, size: int) -> Program:
    height = (size - 1).bit_length()
    # A tree of ``count`` places around ``root``; few of them, ``near(count)``, are on the side ``side`` of it.
    count, root, side = size, 0, -1 if height % 2 else 1
    first = min(-side * (size - 1 - near(size)), side * near(size))
    place = first + (rank - first) % size  # of this rank, from the first to the last one of the tree
    steps = []
    for _ in range(height):
        mine, other = count - count // 2, count // 2
        child, whole = root - side * (near(mine) + near(other) + 1), range(size)
        send = (Send(child % size, whole),) if other and place == root else ()
        receive = (Receive(root % size, whole),) if other and place == child else ()
        steps.append(Step(send, receive))
        if other and (root - place) * side > near(mine):
            count, root = other, child
        else:
            count, side = mine, -side
    return Program("broadcast", rank, size, tuple(steps))


def near(count: int) -> int:
    """Return how many ranks a tree has on the shorter side of its root.

    >>> [near(1 << order) for order in range(6)]
    [0, 0, 1, 2, 5, 10]
    """
    mine = count - count // 2
    return mine - 1 - near(mine) if count > 1 else 0
