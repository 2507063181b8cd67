"""Build rings of some of the ranks, for hierarchical rings and tori."""

from collections.abc import Iterable, Sequence

from dear_mpi.collectives.program.program import Receive, Send, Step, ranges


def around(rank: int, group: Sequence[int], sets: Sequence[Sequence[int]]) -> list[Step]:
    """Return a rank's steps in the ring ``group``, whose member i starts with the chunks ``sets[i]``.

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
    """Merge several lists of steps into one of ``length`` steps that runs them at the same time."""
    steps = [Step()] * length
    for row in rows:
        for number, step in enumerate(row):
            steps[number] = Step(steps[number].sends + step.sends, steps[number].receives + step.receives)
    return steps
