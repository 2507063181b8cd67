"""Copy and sum in each other's memory, in phases with a barrier after each.

            buffers     all are there | combine my shard over all buffers and store the result in all of them,
                        block by block while it is in cache | all are done

            mailboxes   post a block of each of my shards | combine the blocks of my shard from all mailboxes
                        and post the result | copy the results from all mailboxes

Ranks reach each other's buffers, or extra mailboxes. With these, stages overlap: in phase k a rank posts block k,
combines block k - 1 and copies block k - 2, so a mailbox stays in cache (Peng et al., "Optimizing MPI collectives on
shared memory multi-cores", SC 2023). A mailbox has two alternating sets of blocks: posted blocks are read after one
barrier and may be overwritten after two. Contributions are combined in rank order, with the bits of
``algorithms/ordered.py``. ``check.py`` proves that ranks never conflict within a phase.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from dear_mpi.collectives.program.program import Partition
from dear_mpi.kernels.lookup import lookup

Operand = tuple[str, int]
ROOT = 0  # ranks are counted from the root on


@dataclass(frozen=True)
class Move:
    """target = sources[0] op sources[1] op ..., over these elements; a single source is copied."""

    target: Operand
    sources: tuple[Operand, ...]
    elements: range


@dataclass(frozen=True)
class Share:
    partition: Partition
    rank: int
    block: int  # elements: fits a cache with operands
    at_once: bool = False  # combine all in one go, because results are rounded

    @property
    def ranks(self) -> range:
        return range(len(self.partition.counts))

    @property
    def others(self) -> list[int]:
        return [rank for rank in self.ranks if rank != self.rank]

    def shard(self, rank: int) -> range:
        return range(self.partition.borders[rank], self.partition.borders[rank + 1])

    def cut(self, rank: int, number: int) -> range:
        start, stop = (max(at, 0) * self.block for at in (number, number + 1))
        return self.shard(rank)[start:stop]

    @property
    def blocks(self) -> int:
        return -(-max(self.partition.counts) // self.block)

    def mailbox_start(self, rank: int) -> int:
        """Return a shard's offset in a set; no gaps if the whole buffer fits."""
        return min(self.partition.borders[rank], rank * self.block)

    @property
    def mailbox_room(self) -> int:
        return self.mailbox_start(len(self.ranks))

    def in_mailbox(self, elements: range, run: int) -> range:
        shard = bisect_right(self.partition.borders, elements.start) - 1
        number, within = divmod(elements.start - self.partition.borders[shard], self.block)
        half = (number + run * self.blocks) % 2  # a run's first block takes the set that the last one did not use
        start = half * self.mailbox_room + self.mailbox_start(shard) + within
        return range(start, start + len(elements))

    def combine(self, kind: str, elements: range) -> Move:
        sources = tuple(("buffer" if rank == self.rank else kind, rank) for rank in self.ranks)
        return Move(("buffer", self.rank), sources, elements)

    def post(self, elements: range) -> Move:
        return Move(("mailbox", self.rank), (("buffer", self.rank),), elements)

    def cuts(self, number: int) -> list[range]:
        """Return a block of each shard, or once the whole buffer if it fits into a block."""
        if self.partition.count <= self.block:
            return [range(self.partition.count)] if number == 0 else []
        return [self.cut(rank, number) for rank in self.ranks]

    def moves(self, act: str, number: int) -> list[Move]:
        """Return what this rank does with a block in an act of ``STAGES``.

        >>> Share(Partition((0, 2, 4)), rank=1, block=8).moves("fetch others", 0)
        [Move(target=('buffer', 1), sources=(('mailbox', 0),), elements=range(0, 2))]
        """
        verb, _, where = act.partition(" ")
        if where in ("own", "others"):
            shards = [self.rank] if where == "own" else self.others
            cuts = [(rank, self.cut(rank, number)) for rank in shards]
        else:
            acts = (self.rank == ROOT) == (where == "at root")
            cuts = [(ROOT, cut) for cut in self.cuts(number) if acts]
        match verb:
            case "post":
                return [self.post(cut) for _, cut in cuts]
            case "combine":
                return [self.combine("mailbox", cut) for _, cut in cuts]
        return [Move(("buffer", self.rank), (("mailbox", rank),), cut) for rank, cut in cuts]


# The acts of each stage: on blocks of this rank's own shard, of others' shards, or of all shards at some ranks. Results
# are posted where a mailbox is free: no rank posts contributions to its own shard.
STAGES = {
    "all_reduce": (("post others",), ("combine own", "post own"), ("fetch others",)),
    "reduce_scatter": (("post others",), ("combine own",)),
    "all_gather": (("post own",), ("fetch others",)),
    "broadcast": (("post at root",), ("fetch elsewhere",)),
    "reduce": (("post elsewhere",), ("combine at root",)),
}


def by_mailbox(collective: str, share: Share) -> list[list[Move]]:
    """Overlap stages: phase k does stage 1 of block k, stage 2 of block k - 1, and so on.

    If one block holds the whole buffer, all ranks of an all-reduce combine all of it: one barrier less.
    """
    stages, whole = STAGES[collective], range(share.partition.count)
    if collective == "all_reduce" and len(whole) <= share.block:
        return [[share.post(whole)], [share.combine("mailbox", whole)]]
    numbers = range(share.blocks + len(stages) - 1)
    acts = [(late, act) for late, stage in enumerate(stages) for act in stage]
    return [[move for late, act in acts for move in share.moves(act, number - late)] for number in numbers]


def scatter_in_buffers(share: Share) -> list[Move]:
    return [share.combine("buffer", share.shard(share.rank))]


def gather_in_buffers(share: Share) -> list[Move]:
    mine = "buffer", share.rank
    blocks = [share.cut(share.rank, number) for number in range(share.blocks)]
    return [Move(("buffer", rank), (mine,), block) for block in blocks for rank in share.others]


def reduce_in_buffers(share: Share) -> list[Move]:
    """Combine my shard's blocks in rank 0's buffer, where rank order begins, then copy."""
    if share.at_once and len(share.ranks) > 2:
        return scatter_in_buffers(share) + gather_in_buffers(share)
    first, *rest = (("buffer", rank) for rank in share.ranks)
    moves: list[Move] = []
    for number in range(share.blocks):
        block = share.cut(share.rank, number)
        moves += [Move(first, (first, other), block) for other in rest]
        moves += [Move(other, (first,), block) for other in rest]
    return moves


def broadcast_in_buffers(share: Share) -> list[Move]:
    return [Move(("buffer", share.rank), (("buffer", ROOT),), range(share.partition.count))]


def reduce_in_root(share: Share) -> list[Move]:
    """Combine my shard in the root's buffer."""
    sources = tuple(("buffer", rank) for rank in share.ranks)
    return [Move(("buffer", ROOT), sources, share.shard(share.rank))]


BUFFERS: dict[str, Callable[[Share], list[Move]]] = {
    "all_reduce": reduce_in_buffers,
    "reduce_scatter": scatter_in_buffers,
    "all_gather": gather_in_buffers,
    "broadcast": broadcast_in_buffers,
    "reduce": reduce_in_root,
}


def phases(collective: str, share: Share, *, mailboxes: bool) -> list[list[Move]]:
    """Return a rank's moves by phase; a barrier follows each phase but the last.

    >>> share = Share(Partition((0, 2, 4)), rank=1, block=8)
    >>> for phase in phases("reduce_scatter", share, mailboxes=False): print(phase)
    []
    [Move(target=('buffer', 1), sources=(('buffer', 0), ('buffer', 1)), elements=range(2, 4))]
    []
    """
    in_buffers = lookup("collective", collective, BUFFERS)
    found = by_mailbox(collective, share) if mailboxes else [[], in_buffers(share), []]
    return [[move for move in phase if move.elements and move.sources != (move.target,)] for phase in found]
