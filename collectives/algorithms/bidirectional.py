"""Bidirectional ring: chunks travel both ways, at most half around the ring.

            all_gather, 5 ranks: the sources of rank 0's chunks

                      from its predecessor, 4      from its successor, 1
       step 0         4                            1
       step 1         3                            2

If P is even, the opposite chunk comes only from the predecessor.

Cost for n bytes on P ranks: the ring's bytes in ceil((P-1)/2) steps of two messages: half the ring's time with a link
to each neighbour, half its latency with one port.

Source: folklore; UCC runs two inverted rings.
"""

from dear_mpi.collectives.algorithms.ring import one
from dear_mpi.collectives.program.program import Program, Receive, Send, Step


def all_gather(rank: int, size: int) -> Program:
    forward, backward = size // 2, (size - 1) // 2
    steps = []
    for s in range(forward):
        ways = (1,) if s >= backward else (1, -1)
        sends = [Send((rank + way) % size, one(rank - way * s, size)) for way in ways]
        receives = [Receive((rank - way) % size, one(rank - way * (s + 1), size)) for way in ways]
        steps.append(Step(tuple(sends), tuple(receives)))
    return Program("all_gather", rank, size, tuple(steps))
