"""Copies and sums of ranks that work in each other's memory, in phases with a barrier between each two.

            buffers     everyone is there | combine my shard over all buffers, and store the result where it
                        is wanted, block by block while it is in cache | everyone is done

            mailboxes   copy my data to my mailbox | combine all mailboxes, or copy from them

Ranks reach each other's buffers, or else a mailbox that each of them has beside its buffer. A run uses one of two sets
of mailboxes, in turn, so one barrier is enough: a rank that passes the next one knows that all others have read the
mailboxes of the last run. Contributions are combined in rank order, so the bits are those of ``algorithms/ordered.py``.
Nothing is sent: an all-reduce reads and writes every number once, where messages copy it P - 1 times.

``check_phases.py`` proves that no rank touches what another one writes in the same phase.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dear_mpi.collectives.program.partition import Partition
from dear_mpi.kernels.lookup import lookup

__all__ = ["Move", "Operand", "Share", "phases"]

Operand = tuple[str, int]  # ``buffer`` or ``mailbox``, and whose


@dataclass(frozen=True)
class Move:
    """target = sources[0] op sources[1] op ..., over the elements of ``part``; a single source is copied."""

    target: Operand
    sources: tuple[Operand, ...]
    part: range


@dataclass(frozen=True)
class Share:
    """One rank's share of the work.

    Args:
        partition: the shards.
        rank: whose share.
        block: elements that stay in a cache with what is combined with them.
        at_once: whether all contributions to an element must be combined in one go, because results are rounded.
    """

    partition: Partition
    rank: int
    block: int
    at_once: bool = False

    @property
    def ranks(self) -> range:
        return range(len(self.partition.counts))

    @property
    def shard(self) -> range:
        return self.part(self.rank)

    def part(self, rank: int) -> range:
        """The elements of a rank's shard."""
        return range(self.partition.borders[rank], self.partition.borders[rank + 1])

    @property
    def blocks(self) -> Iterator[range]:
        return (self.shard[at : at + self.block] for at in range(0, len(self.shard), self.block))

    def combine(self, kind: str, part: range) -> Move:
        """Combine the data of all ranks into my buffer: mine from there, the others' from their ``kind``."""
        sources = tuple(("buffer" if rank == self.rank else kind, rank) for rank in self.ranks)
        return Move(("buffer", self.rank), sources, part)

    def post(self, part: range) -> Move:
        """Copy my data to my mailbox."""
        return Move(("mailbox", self.rank), (("buffer", self.rank),), part)

    @property
    def whole(self) -> range:
        return range(self.partition.count)

    def store(self, part: range) -> list[Move]:
        """Store my data in the buffers of all others."""
        return [Move(("buffer", rank), (("buffer", self.rank),), part) for rank in self.ranks if rank != self.rank]


def gather_by_mailbox(share: Share) -> list[list[Move]]:
    others = (rank for rank in share.ranks if rank != share.rank)
    copies = [Move(("buffer", share.rank), (("mailbox", rank),), share.part(rank)) for rank in others]
    return [[share.post(share.shard)], copies]


def reduce_in_buffers(share: Share) -> list[Move]:
    """Combine each block of my shard in rank 0's buffer, which is where rank order begins; then store it in all."""
    if share.at_once and len(share.ranks) > 2:
        return [share.combine("buffer", share.shard), *gather_in_buffers(share)]
    first, *rest = (("buffer", rank) for rank in share.ranks)
    moves: list[Move] = []
    for block in share.blocks:
        moves += [Move(first, (first, other), block) for other in rest]
        moves += [Move(other, (first,), block) for other in rest]
    return moves


def gather_in_buffers(share: Share) -> list[Move]:
    return [move for block in share.blocks for move in share.store(block)]


MAILBOXES: dict[str, Callable[[Share], list[list[Move]]]] = {
    "all_reduce": lambda share: [[share.post(share.whole)], [share.combine("mailbox", share.whole)]],
    "reduce_scatter": lambda share: [[share.post(share.whole)], [share.combine("mailbox", share.shard)]],
    "all_gather": gather_by_mailbox,
}
BUFFERS: dict[str, Callable[[Share], list[Move]]] = {
    "all_reduce": reduce_in_buffers,
    "reduce_scatter": lambda share: [share.combine("buffer", share.shard)],
    "all_gather": gather_in_buffers,
}


def phases(collective: str, share: Share, *, mailboxes: bool) -> list[list[Move]]:
    """What a rank does, phase by phase; two phases have a barrier between them.

    >>> share = Share(Partition((0, 2, 4)), rank=1, block=8)
    >>> for phase in phases("reduce_scatter", share, mailboxes=False): print(phase)
    []
    [Move(target=('buffer', 1), sources=(('buffer', 0), ('buffer', 1)), part=range(2, 4))]
    []
    """
    if mailboxes:
        found = lookup("collective", collective, MAILBOXES)(share)
    else:
        found = [[], lookup("collective", collective, BUFFERS)(share), []]
    return [[move for move in phase if move.part and move.sources != (move.target,)] for phase in found]
