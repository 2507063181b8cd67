"""Rabenseifner's algorithm: recursive halving to reduce, recursive doubling to gather.

            all_gather, 8 ranks: the chunks that rank 0 holds

       at first       0
       step 0         0 1                   from rank 1
       step 1         0 1 2 3               from rank 2
       step 2         0 1 2 3 4 5 6 7       from rank 4

In step s ranks that differ in bit s exchange all their data. If P is no power of two, pairs act as one, by their even
rank, in two more steps: the odd rank gives its chunk first and gets all data last.

            7 ranks as 4 virtual ranks (vranks)

            vrank        0        1        2        3
            ranks      0   1    2   3    4   5      6

Cost for n bytes on P = 2^k ranks: lg P alpha + (P-1)/P n (beta + gamma), without gamma for the all-gather. A ring is
better for the largest buffers: it sends only to neighbours.

Source: Thakur, Rabenseifner and Gropp, IJHPCA 19 (2005).
"""

from collections.abc import Callable

from dear_mpi.collectives.program.program import Program, Receive, Send, Step, ranges

Partner = Callable[[int, int], int]
"""A mutual function of (vrank, step): the virtual rank to exchange with."""


class Fold:
    """Map ``size`` ranks to virtual ranks: the largest power of two up to ``size``."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.steps = size.bit_length() - 1
        self.pairs = size - (1 << self.steps)

    def vrank(self, rank: int) -> int | None:
        """None for the odd rank of a pair."""
        if rank >= 2 * self.pairs:
            return rank - self.pairs
        return None if rank % 2 else rank // 2

    def home(self, vrank: int) -> int:
        return 2 * vrank if vrank < self.pairs else vrank + self.pairs

    def members(self, vrank: int) -> range:
        return range(self.home(vrank), self.home(vrank) + 1 + (vrank < self.pairs))

    def pass_on(self, rank: int, chunks: list[range], *, to_odd: bool, combine: bool = False) -> tuple[Step, ...]:
        """Let one rank of each pair send chunks to the other; no step without pairs."""
        paired, sends = rank < 2 * self.pairs, (rank % 2 == 0) == to_odd
        if paired and sends:
            step = Step(tuple(Send(rank ^ 1, run) for run in chunks))
        elif paired:
            step = Step(receives=tuple(Receive(rank ^ 1, run, combine) for run in chunks))
        else:
            step = Step()
        return (step,) if self.pairs else ()


def all_gather(rank: int, size: int) -> Program:
    return butterfly(rank, size, lambda vrank, step: vrank ^ 1 << step)


def butterfly(rank: int, size: int, partner: Partner) -> Program:
    fold = Fold(size)
    odd = rank | 1
    others = ranges([chunk for chunk in range(size) if chunk != odd])
    steps = [exchange(rank, fold, partner, step) for step in range(fold.steps)]
    first = fold.pass_on(rank, [range(odd, odd + 1)], to_odd=False)
    return Program("all_gather", rank, size, (*first, *steps, *fold.pass_on(rank, others, to_odd=True)))


def exchange(rank: int, fold: Fold, partner: Partner, step: int) -> Step:
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
    vranks = [vrank]
    for earlier in reversed(range(step)):
        vranks += [partner(one, earlier) for one in vranks]
    return ranges(sorted(chunk for one in vranks for chunk in fold.members(one)))
