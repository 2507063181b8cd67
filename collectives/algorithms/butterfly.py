"""Butterflies: 2^k ranks exchange all that they hold, pair by pair. For other numbers, some ranks act in pairs.

            7 ranks as 4 virtual ranks (vranks): a pair acts as one, by its even rank

            vrank        0        1        2        3
            ranks      0   1    2   3    4   5      6

In step 0 the odd rank of a pair gives its chunk to the even one. Then in each of the lg steps a virtual rank sends
everything it holds to its partner of that step, and so holds twice as much. Butterflies differ only in which virtual
ranks are partners in a step. In the last step an even rank passes everything on to its odd one.
"""

from collections.abc import Callable

from dear_mpi.collectives.program.program import Program, Receive, Send, Step, ranges

Partner = Callable[[int, int], int]
"""A function of (vrank, step): its partner, the virtual rank to exchange with. It must be mutual."""


class Fold:
    """How ``size`` ranks act as virtual ranks, whose number is the largest power of two up to ``size``."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.steps = size.bit_length() - 1
        self.pairs = size - (1 << self.steps)

    def vrank(self, rank: int) -> int | None:
        """The virtual rank for which a rank acts; None for the odd rank of a pair."""
        if rank >= 2 * self.pairs:
            return rank - self.pairs
        return None if rank % 2 else rank // 2

    def home(self, vrank: int) -> int:
        """The rank that acts for a virtual one."""
        return 2 * vrank if vrank < self.pairs else vrank + self.pairs

    def members(self, vrank: int) -> range:
        return range(self.home(vrank), self.home(vrank) + 1 + (vrank < self.pairs))

    def pass_on(self, rank: int, chunks: list[range], *, to_odd: bool, combine: bool = False) -> tuple[Step, ...]:
        """A step in which one rank of each pair sends chunks to the other one; no step if there are no pairs."""
        paired, sends = rank < 2 * self.pairs, (rank % 2 == 0) == to_odd
        if paired and sends:
            step = Step(tuple(Send(rank ^ 1, run) for run in chunks))
        elif paired:
            step = Step(receives=tuple(Receive(rank ^ 1, run, combine) for run in chunks))
        else:
            step = Step()
        return (step,) if self.pairs else ()


def all_gather(rank: int, size: int, partner: Partner) -> Program:
    fold = Fold(size)
    odd = rank | 1
    others = ranges([chunk for chunk in range(size) if chunk != odd])
    steps = [exchange(rank, fold, partner, step) for step in range(fold.steps)]
    first = fold.pass_on(rank, [range(odd, odd + 1)], to_odd=False)
    return Program("all_gather", rank, size, (*first, *steps, *fold.pass_on(rank, others, to_odd=True)))


def exchange(rank: int, fold: Fold, partner: Partner, step: int) -> Step:
    """Send all chunks that the virtual rank holds, and receive all of the partner's."""
    vrank = fold.vrank(rank)
    if vrank is None:
        return Step()
    other = partner(vrank, step)
    peer = fold.home(other)
    return Step(
        tuple(Send(peer, run) for run in held(vrank, fold, partner, step)),
        tuple(Receive(peer, run) for run in held(other, fold, partner, step)),
    )


def held(vrank: int, fold: Fold, partner: Partner, step: int) -> list[range]:
    """The chunks that a virtual rank holds before a step."""
    vranks = [vrank]
    for earlier in reversed(range(step)):
        vranks += [partner(one, earlier) for one in vranks]
    return ranges(sorted(chunk for one in vranks for chunk in fold.members(one)))
