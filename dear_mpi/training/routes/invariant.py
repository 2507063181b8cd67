"""Sum gradients with the same bits on any number of ranks: ``--invariant M``.

The job's batch is cut into M = 2^k micro-batches. Every sum over them runs along one binary tree. A rank takes
consecutive micro-batches and first sums its largest subtrees, two at most:

    micro-batches    0 1 2 3 4 5 6 7       the sum is ((0+1) + (2+3)) + ((4+5) + (6+7))
    on 3 ranks      |0+1|2+3,4|5,6+7|      parts of at most two subtrees, as even as they can be
    on 4 ranks      |0+1|2+3|4+5|6+7|      one subtree if M is a multiple of the ranks

    out    pack | pack subtrees | all_to_all subtrees | the owner of a shard sums the subtrees along the tree

An all-to-all sends as many bytes as a reduce-scatter, once for each subtree of the rank that has most.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.slab import round_up
from dear_mpi.training.routes.route import ROW_BYTES, Payload, Route, Sizes
from dear_mpi.training.routes.stages import (
    Act,
    BucketMemory,
    Collective,
    Stage,
    all_gather,
    all_to_all,
    reduce_scatter,
)

if TYPE_CHECKING:
    from dear_mpi.training.routes.proof import Memory, Symbol

MOST = 1 << 14  # micro-batches
PROVED = 64  # larger trees repeat this one
COPY_S = ADD_S = 0.2e-9  # per element of fp32, on one core
T = TypeVar("T")


def check_micro_batches(count: object) -> None:
    if count is not None and not (type(count) is int and 0 < count <= MOST and count & (count - 1) == 0):
        raise ValueError(f"invariant must be a power of two from 1 to {MOST}, not {count!r}")


def subtrees(part: range) -> list[range]:
    """Cut consecutive micro-batches into the fewest whole subtrees.

    >>> subtrees(range(3, 8)), subtrees(range(0, 8))
    ([range(3, 4), range(4, 8)], [range(0, 8)])
    """
    found, start = [], part.start
    while start < part.stop:
        size = 1 << (part.stop - start).bit_length() - 1
        size = min(size, start & -start) if start else size  # a subtree begins at a multiple of its size
        found.append(range(start, start + size))
        start += size
    return found


def fold(parts: Iterable[tuple[range, T]], add: Callable[[T, T], T]) -> T:
    """Add up subtrees, given in order, along the tree.

    >>> fold([(range(each, each + 1), str(each)) for each in range(4)], "({}+{})".format)
    '((0+1)+(2+3))'
    """
    found: list[tuple[range, T]] = []
    for span, value in parts:
        while found and len(found[-1][0]) == len(span) and found[-1][0].start % (2 * len(span)) == 0:
            before, earlier = found.pop()
            span, value = range(before.start, span.stop), add(earlier, value)
        found.append((span, value))
    ((_, whole),) = found
    return whole


def ends(start: int, most: int, count: int) -> Iterator[int]:
    """Yield where parts of at most ``most`` subtrees may end."""
    size = 1
    while start % size == 0 and start + size <= count:
        yield start + size
        if most > 1:
            yield from ends(start + size, most - 1, count)
        size *= 2


def fewest(longest: int, most: int, count: int) -> list[range]:
    """Return the fewest parts of at most ``longest`` micro-batches and ``most`` subtrees."""
    best = [(0, 0)] + [(count + 1, 0)] * count  # parts up to a micro-batch, and where the last one begins
    for start in range(count):
        for end in ends(start, most, count):
            if end - start <= longest:
                best[end] = min(best[end], (best[start][0] + 1, start))
    borders = [count]
    while borders[-1]:
        borders.append(best[borders[-1]][1])
    return [range(*border) for border in pairwise(reversed(borders))]


def split(count: int, ranks: int, most: int) -> tuple[range, ...]:
    """Split micro-batches as evenly as parts of at most ``most`` subtrees allow."""
    longest = bisect_left(range(count), True, key=lambda each: bool(each) and len(fewest(each, most, count)) <= ranks)
    parts = fewest(longest, most, count)
    while len(parts) < ranks:
        at = max(reversed(range(len(parts))), key=lambda number: len(parts[number]))
        first, *rest = subtrees(parts[at])
        middle = first.stop if rest else (first.start + first.stop) // 2
        parts[at : at + 1] = range(parts[at].start, middle), range(middle, parts[at].stop)
    return tuple(parts)


@lru_cache
def shares(count: int, ranks: int) -> tuple[range, ...]:
    """Return each rank's micro-batches: one subtree if that is as even as two.

    >>> shares(8, 3), shares(8, 4)[1], shares(8, 5)[-1]
    ((range(0, 2), range(2, 5), range(5, 8)), range(2, 4), range(7, 8))
    """
    single, double = (split(count, ranks, most) for most in (1, 2))
    return single if max(map(len, single)) == max(map(len, double)) else double


class Leaf(NamedTuple):
    """Tell a rank what to do with a micro-batch's gradients.

    Attributes:
        kept: partial sums before it.
        merges: the last so many of these are added to it.
        goes: ``kept`` as a partial sum, or to a buffer as the sum of a subtree.
    """

    kept: int
    merges: int
    goes: str


def leaves(part: range) -> list[Leaf]:
    """List a rank's micro-batches: each adds up the partial sums that it completes.

    >>> [(leaf.kept, leaf.merges, leaf.goes) for leaf in leaves(range(2, 5))]
    [(0, 0, 'kept'), (1, 1, 'earlier'), (0, 0, 'gradients')]
    """
    found = []
    for tree, buffer in zip(subtrees(part), sources(part), strict=True):
        for at in range(len(tree)):
            merges = (at & ~(at + 1)).bit_length()  # binary digits 1 at the end
            found.append(Leaf(at.bit_count(), merges, "kept" if at + 1 < len(tree) else buffer))
    return found


def sources(part: range) -> list[str]:
    """Return the buffers of a rank's subtrees: the last one is where layers write."""
    return ["earlier", "gradients"][-len(subtrees(part)) :]


def symbolic_sum(memory: Memory, parts: Iterable[tuple[range, Symbol]]) -> Symbol:
    return fold(parts, lambda one, other: memory.symbol("sum", one, other))


@dataclass(frozen=True)
class Tree:
    """Add up micro-batches along the tree; a wire whose sums are exact derives from it, and adds in any order."""

    micro_batches: int

    def cut(self, micro_batches: int, ranks: int | None) -> Tree:
        """Return the sums of so many micro-batches; ``ranks``: see ``with_tree``."""
        return replace(self, micro_batches=micro_batches)

    def objection(self, ranks: int) -> str:
        least = f"invariant must be at least {1 << (ranks - 1).bit_length()}, so that each rank has a micro-batch"
        return f"{least}, not {self.micro_batches}" * (0 < self.micro_batches < ranks)

    def shares(self, ranks: int) -> tuple[range, ...]:
        return shares(self.micro_batches, ranks)

    def most(self, ranks: int) -> int:
        """Return the subtrees of the rank that has most."""
        return max(len(subtrees(part)) for part in self.shares(ranks))

    def leaves(self, part: range) -> list[Leaf]:
        return leaves(part)

    def provable(self, ranks: int) -> Tree:
        """Return the tree to prove on some ranks, perhaps more than there are micro-batches."""
        return replace(self, micro_batches=max(min(self.micro_batches, PROVED), 1 << (ranks - 1).bit_length()))

    def parts(self, memory: Memory, rank: int, gradient: Symbol) -> list[tuple[range, Symbol]]:
        """List a rank's micro-batches with their shares of its gradient."""
        own = self.shares(memory.size)[rank]
        return [(range(each, each + 1), memory.symbol("leaf", gradient, each, len(own))) for each in own]

    def on_one_rank(self, memory: Memory, gradients: Sequence[Symbol]) -> Symbol:
        """Return the sum of all micro-batches on a single rank."""
        tree = self.provable(memory.size)
        parts = [each for rank, own in enumerate(gradients) for each in tree.parts(memory, rank, own)]
        return symbolic_sum(memory, parts)


@dataclass(frozen=True, kw_only=True)
class OfSubtrees(Payload):
    """Give each shard of the bucket a row, with a place for each subtree of a rank."""

    wire: Tree
    codes: str = "subtrees"

    def payload_bytes(self, of: Sizes) -> int:
        return of.ranks * self.wire.most(of.ranks) * round_up(of.longest * of.itemsize, ROW_BYTES)

    def objection(self, ranks: int) -> str:
        return self.wire.objection(ranks)

    def places(self, bucket: BucketMemory, row: int) -> list[Array]:
        """Return the places of a row, for the subtrees of this rank or of another one."""
        memory: Array = bucket.rows(self.codes)[row].reshape(self.wire.most(bucket.ranks), -1)
        return list(memory.view(bucket.gradients.dtype))

    def own(self, bucket: BucketMemory, shard: int) -> list[Array]:
        """Return a shard's sums of this rank's subtrees, where layers left them."""
        return [bucket.shard(name, shard) for name in sources(self.wire.shares(bucket.ranks)[bucket.rank])]

    def own_sums(self, memory: Memory, rank: int, shard: int) -> list[Symbol]:
        tree = self.wire.provable(memory.size)
        parts = tree.parts(memory, rank, memory.read("gradients", rank, shard))
        each = ([part for part in parts if part[0].start in span] for span in subtrees(tree.shares(memory.size)[rank]))
        return [symbolic_sum(memory, own) for own in each]


@dataclass(frozen=True, kw_only=True)
class PackSubtrees(OfSubtrees):
    """Copy the sums of this rank's subtrees to the rows of other ranks' shards.

    ``several``: some rank has two, and layers leave the first in buffer ``earlier``.
    """

    several: bool = True
    writes = ("subtrees",)

    @property
    def buffers(self) -> Mapping[str, str]:  # type: ignore[override]
        return {"earlier": "scratch"} if self.several else {}

    @property
    def reads(self) -> tuple[str, ...]:
        return ("gradients", *self.buffers)

    def compute_s(self, count: int, ranks: int) -> float:
        return COPY_S * count * self.wire.most(ranks) * (ranks - 1) / ranks

    def prove(self, memory: Memory) -> None:
        for rank, shard in memory.places:
            if rank != shard:
                memory.write(self.codes, rank, shard, memory.symbol("row", *self.own_sums(memory, rank, shard)))

    def bind(self, bucket: BucketMemory) -> Act:
        copies = [
            (place[: x.size], x)
            for shard in range(bucket.ranks)
            if shard != bucket.rank
            for place, x in zip(self.places(bucket, shard), self.own(bucket, shard), strict=False)
        ]

        def pack(factor: float) -> None:
            for row, x in copies:
                row[...] = x

        return pack

    def __str__(self) -> str:
        return f"pack subtrees of {self.wire.micro_batches} micro-batches"


@dataclass(frozen=True, kw_only=True)
class FoldSubtrees(OfSubtrees):
    """Sum all ranks' subtrees of the own shard along the rest of the tree."""

    reads = ("gradients", "subtrees")
    writes = ("gradients",)

    def compute_s(self, count: int, ranks: int) -> float:
        return ADD_S * count / ranks * (sum(len(subtrees(part)) for part in self.wire.shares(ranks)) - 1)

    def prove(self, memory: Memory) -> None:
        every = self.wire.provable(memory.size).shares(memory.size)
        for rank in range(memory.size):
            parts: list[tuple[range, Symbol]] = []
            for other, part in enumerate(every):
                kind, spans, sums = "row", subtrees(part), self.own_sums(memory, rank, rank)
                if other != rank:
                    kind, *sums = memory.made[memory.read(self.codes, rank, other)]
                if kind == "row" and len(sums) == len(spans):
                    parts += zip(spans, sums, strict=True)
            if sum(len(span) for span, _ in parts) == every[-1].stop:
                memory.write("gradients", rank, rank, symbolic_sum(memory, parts))
            else:
                memory.forget("gradients", rank, rank)

    def bind(self, bucket: BucketMemory) -> Act:
        own, pairs = bucket.shard("gradients", bucket.rank), list[tuple[Array, Array]]()
        parts = list[tuple[range, Array]]()
        for rank, part in enumerate(self.wire.shares(bucket.ranks)):
            places = self.own(bucket, rank) if rank == bucket.rank else self.places(bucket, rank)
            parts += ((span, place[: own.size]) for span, place in zip(subtrees(part), places, strict=False))

        def into_the_first(one: Array, other: Array) -> Array:
            pairs.append((one, other))
            return one

        fold(parts, into_the_first)
        add = array_module(own).add

        def sum_up(factor: float) -> None:
            for one, other in pairs[:-1]:
                add(one, other, out=one)
            for one, other in pairs[-1:]:  # none on a single rank
                add(one, other, out=own)

        return sum_up

    def __str__(self) -> str:
        return "sum subtrees along the tree"


def is_exact(route: Route) -> bool:
    """Tell whether a route adds up codes exactly."""
    return any(isinstance(each.wire, Tree) for each in route.codes.values())


def tree_of(route: Route) -> Tree | None:
    """Return how a route adds up micro-batches; None if it does not."""
    wires = (each.wire for each in route.codes.values())
    return next((wire for wire in wires if isinstance(wire, Tree) and wire.micro_batches), None)


def with_tree(route: Route, micro_batches: int, ranks: int | None = None) -> Route:
    """Let a route sum gradients along the tree. Raises ValueError if it does not sum them exactly once.

    A route whose sums are exact keeps its stages: each micro-batch is encoded. ``ranks``: of the job; None if there are
    several cases.
    """
    name = f"{route.name}, invariant {micro_batches}"
    if is_exact(route):
        wires = {each.wire: each.wire.cut(micro_batches, ranks) for each in route.codes.values()}
        coded = (replace(each, wire=wires[each.wire]) if isinstance(each, Payload) else each for each in route.out)
        return replace(route, name=name, out=tuple(coded))
    summing, known = reduce_scatter("gradients"), (all_gather("gradients"), all_gather("values"))
    others = [stage for stage in route.stages if isinstance(stage, Collective) and stage not in (summing, *known)]
    if route.out.count(summing) != 1 or others or not route.steady or route.codes or route.wire:
        what = f"the route {route.name!r} does not sum all ranks' gradients, uncoded, in each iteration"
        raise ValueError(f"invariant must be left out: {what}")
    tree = Tree(micro_batches)
    several = ranks is None or ranks > micro_batches or tree.most(ranks) > 1
    stages: list[Stage] = []
    for stage in route.out:
        folded = PackSubtrees(wire=tree, several=several), all_to_all("subtrees"), FoldSubtrees(wire=tree)
        stages += folded if stage == summing else (stage,)
    return replace(route, name=name, out=tuple(stages))
