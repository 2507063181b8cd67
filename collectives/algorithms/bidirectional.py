"""The bidirectional ring: chunks travel both ways around, so that none has more than half the ring to go.

            all_gather, 5 ranks: which chunk rank 0 gets from where

                      from its predecessor, 4      from its successor, 1
       step 0         4                            1
       step 1         3                            2

In step s rank r sends chunk r - s to its successor and chunk r + s to its predecessor, and receives chunk r - s - 1
from the predecessor and r + s + 1 from the successor. The chunk opposite of it, if P is even, comes from the
predecessor alone. The reduce-scatter is its mirror image (``mirror.py``).

Cost for n bytes on P ranks: ceil((P-1)/2) steps of two messages each, where the ring has P - 1 steps. The bytes are
the ring's. If a rank reaches its two neighbours over two links, the time is halved. If it has one port for both, only
the latency is halved: alpha (P-1)/2, if two messages may be under way at a time.

Source: folklore; UCC, for one, runs two inverted rings at once by default (its reduce_scatter_ring.c).
"""

from dear_mpi.collectives.algorithms.ring import one
from dear_mpi.collectives.program.program import Program, Receive, Send, Step


def all_gather(rank: int, size: int) -> Program:
    forward, backward = size // 2, (size - 1) // 2  # chunks that come from the predecessor, and from the successor
    steps = []
    for s in range(forward):
        ways = (1,) if s >= backward else (1, -1)
        sends = [Send((rank + way) % size, one(rank - way * s, size)) for way in ways]
        receives = [Receive((rank - way) % size, one(rank - way * (s + 1), size)) for way in ways]
        steps.append(Step(tuple(sends), tuple(receives)))
    return Program("all_gather", rank, size, tuple(steps))
