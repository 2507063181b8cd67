"""Binomial tree: each step doubles the number of ranks with the data.

            broadcast, 6 ranks

       step 0       0 ----------------> 4
       step 1       0 ------> 2         4 (would send to 6)
       step 2       0 -> 1    2 -> 3    4 -> 5

A reduction is the mirror image, in rank order.

Cost for n bytes on P ranks: ceil(lg P) (alpha + n beta), plus gamma for a reduction. Half of the ranks wait in every
step, so it suits small buffers.

Source: folklore; Chan et al., CCPE 19 (2007), section 4.
"""

from dear_mpi.collectives.program.program import Program, Receive, Send, Step


def broadcast(rank: int, size: int) -> Program:
    distances = [1 << bit for bit in reversed(range((size - 1).bit_length()))]
    return Program("broadcast", rank, size, tuple(hand_down(rank, size, distance) for distance in distances))


def hand_down(rank: int, size: int, distance: int) -> Step:
    whole = range(size)
    if rank % (2 * distance) == distance:
        return Step(receives=(Receive(rank - distance, whole),))
    sends = rank % (2 * distance) == 0 and rank + distance < size
    return Step((Send(rank + distance, whole),)) if sends else Step()
