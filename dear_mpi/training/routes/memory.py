"""The memory of all ranks in symbols, for the proof of a route: what each holds of each shard of each line of a bucket.

A symbol stands for how a value was computed. Symbols are equal exactly where values are computed alike:

    value s, state s                the values of shard s at first, and what is kept for them
    gradient t r s                  what rank r computes in iteration t
    sum a b ..., average a b ...    over ranks, in their order
    new n g v z, kept n g v z       value v after an update by n times gradient g with state z; and the state after it
    code a ..., lost c              what was rounded, and what its code has lost
    way v a, outer a w m            how far values have come from an anchor; and the anchor after an outer update
    mixed v a                       half of each
    partial n                       a partial sum, or what was never written, in the n-th place that has none of these
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TypeAlias

from dear_mpi.collectives.program.hosts import INSIDE, by_host, servers

Symbol: TypeAlias = int  # a number in the table of a memory
Weights: TypeAlias = Mapping[tuple[int, int], Fraction]  # by iteration and rank


UNKNOWN = (-1, -1)  # in weights


class Memory:
    """Symbols by line, rank and shard; ``iteration`` counts iterations.

    Args:
        hosts: of each rank the number of its host.
        lines: of a route, and what they are, see ``Leg``.
        assumed: whether codes fit, as soon as a leg has looked.

    Attributes:
        fits: what a leg of this iteration has found; None before that.
        misread: where what is partial was read: line, rank and shard.
        common: whether all updates so far were by gradients that are the same on all ranks.
    """

    def __init__(self, hosts: Sequence[int], lines: Mapping[str, str], *, assumed: bool = True) -> None:
        self.hosts, self.size, self.iteration, self.places_lost = hosts, len(hosts), 0, 0
        self.fits: bool | None = None
        self.assumed = assumed
        self.misread: list[tuple[str, int, int]] = []
        self.common = True
        self.table: dict[tuple[object, ...], Symbol] = {}
        self.keys: list[tuple[str, tuple[int, ...]]] = []  # of each symbol
        self.weighed: list[Weights] = []
        self.held: dict[tuple[str, int, int], Symbol] = {}
        for rank, shard in self.places:
            self.held["values", rank, shard] = self.held["layers", rank, shard] = self.symbol("value", shard)
            self.held["state", rank, shard] = self.symbol("state", shard)
            for line, kind in lines.items():
                if kind != "scratch":
                    self.held[line, rank, shard] = self.symbol(*(("value", shard) if kind == "values" else ("zero",)))

    @property
    def places(self) -> Iterator[tuple[int, int]]:
        """All ranks with all shards."""
        return ((rank, shard) for rank in range(self.size) for shard in range(self.size))

    def groups(self, level: str) -> Iterator[tuple[int, Sequence[int], int]]:
        """Of each shard, the ranks that have a collective of it together, and which of them keeps their sum."""
        for shard in range(self.size):
            serving = servers(shard, self.hosts if level else range(self.size))
            if level == INSIDE:
                yield from ((shard, *each) for each in zip(by_host(self.hosts), serving, strict=True))
            else:
                yield shard, serving, shard

    def symbol(self, kind: str, *parts: int) -> Symbol:
        """What is made of these symbols or numbers; the same each time."""
        key = (kind, *parts)
        if key not in self.table:
            self.table[key] = len(self.table)
            self.keys.append((kind, parts))
            self.weighed.append(self.weights(kind, *parts))
        return self.table[key]

    def weights(self, kind: str, *parts: int) -> Weights:
        """How often each gradient counts in it."""
        if kind == "gradient":
            iteration, rank, _ = parts
            return {(iteration, rank): Fraction(1)}
        if kind == "partial":
            return {UNKNOWN: Fraction(1)}
        scales: dict[Symbol, Fraction] = dict.fromkeys(parts, Fraction(0))
        if kind in ("sum", "average"):
            for part in parts:
                scales[part] += Fraction(1, len(parts) if kind == "average" else 1)
        elif kind == "code":
            scales = {parts[0]: Fraction(1)}
        elif kind == "way":
            scales = {parts[1]: Fraction(-1)} | {parts[0]: Fraction(parts[0] != parts[1])}
        elif kind in ("outer", "mixed"):
            scales = dict.fromkeys(parts[:2], Fraction(1, 1 if kind == "outer" else 2))
        elif kind == "new":
            scale, gradient, value, _ = parts
            scales = {value: Fraction(1), gradient: Fraction(scale)}
        else:
            return {}
        found: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
        for part, share in scales.items():
            for key, weight in self.weighed[part].items():
                found[key] += share * weight
        return found

    def read(self, line: str, rank: int, shard: int) -> Symbol:
        """What is there."""
        if (line, rank, shard) not in self.held:
            self.forget(line, rank, shard)
        found = self.held[line, rank, shard]
        if self.keys[found][0] == "partial":
            self.misread.append((line, rank, shard))
        return found

    def write(self, line: str, rank: int, shard: int, symbol: Symbol) -> None:
        self.held[line, rank, shard] = symbol

    def forget(self, line: str, rank: int, shard: int) -> None:
        """From now on it is a partial sum."""
        self.places_lost += 1
        self.held[line, rank, shard] = self.symbol("partial", self.places_lost)
