"""Ring algorithms: all ranks send to their successor and receive from their predecessor at the same time.

            chunk of rank 0..3 that a rank sends in reduce_scatter (+ = the receiver adds its own)

                     rank 0      rank 1      rank 2      rank 3
       step 0        3 ->        0 ->        1 ->        2 ->        (back to rank 0)
       step 1        2 ->        3 ->        0 ->        1 ->
       step 2        1 ->        2 ->        3 ->        0 ->
       then owns     0           1           2           3

Follow chunk 0: rank 1 starts it, ranks 2 and 3 add to it, and it ends at rank 0, its owner. In step s rank r sends
chunk (r - s - 1) mod size and receives chunk (r - s - 2) mod size, which it sends next. ``all_gather`` continues: step
s sends chunk (r - s) mod size. Both in turn are an all-reduce.

Cost for a buffer of n bytes on P ranks (latency alpha per message, beta s/byte on the wire, gamma s/byte to add):

    reduce_scatter   (P-1) alpha + (P-1)/P n (beta + gamma)
    all_gather       (P-1) alpha + (P-1)/P n beta
    all_reduce       the sum: 2(P-1) messages and 2(P-1)/P n bytes per rank, the least that any algorithm can send

The latency term grows with P, so trees win for small n. Each element is summed along one chain of ranks and then
copied: all ranks end with the same bits.

Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 69 (2009).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dear_mpi.collectives.program.program import Program, Receive, Send, Step, ranges


def reduce_scatter(rank: int, size: int) -> Program:
    steps = tuple(ring_step(rank, size, rank - s - 1, combine=True) for s in range(size - 1))
    return Program("reduce_scatter", rank, size, steps)


def all_gather(rank: int, size: int) -> Program:
    steps = tuple(ring_step(rank, size, rank - s, combine=False) for s in range(size - 1))
    return Program("all_gather", rank, size, steps)


def to_next(rank: int, size: int) -> Program:
    """Send the own chunk to the successor: the first step of ``all_gather``."""
    program = all_gather(rank, size)
    return replace(program, steps=program.steps[:1])


def all_reduce(rank: int, size: int) -> Program:
    steps = reduce_scatter(rank, size).steps + all_gather(rank, size).steps
    return Program("all_reduce", rank, size, steps)


def ring_step(rank: int, size: int, sent: int, *, combine: bool) -> Step:
    successor, predecessor = (rank + 1) % size, (rank - 1) % size
    return Step((Send(successor, one(sent, size)),), (Receive(predecessor, one(sent - 1, size), combine),))


def one(chunk: int, size: int) -> range:
    return range(chunk % size, chunk % size + 1)


def around(rank: int, group: Sequence[int], sets: Sequence[Sequence[int]]) -> list[Step]:
    """Return a rank's steps in the ring ``group``, whose member i starts with the chunks ``sets[i]``.

    ``hierarchical.py`` makes rings of hosts from it and from ``merged``.

    >>> [str(step.sends[0]) for step in around(1, group=[1, 5, 9], sets=[[0], [1], [2]])]
    ['chunk 0 to rank 5', 'chunk 2 to rank 5']
    """
    count, index = len(group), group.index(rank)
    successor, predecessor = group[(index + 1) % count], group[(index - 1) % count]
    return [
        Step(
            tuple(Send(successor, run) for run in ranges(sorted(sets[(index - s) % count]))),
            tuple(Receive(predecessor, run) for run in ranges(sorted(sets[(index - s - 1) % count]))),
        )
        for s in range(count - 1)
    ]


def merged(rows: Iterable[Sequence[Step]], length: int) -> list[Step]:
    """Merge lists of steps into one of ``length``, run at the same time."""
    steps = [Step()] * length
    for row in rows:
        for number, step in enumerate(row):
            steps[number] = Step(steps[number].sends + step.sends, steps[number].receives + step.receives)
    return steps
