"""Hold the memory of all ranks in symbols, to prove routes: one symbol per rank, line and shard.

A symbol represents how a value was computed. Two symbols are equal exactly if the values are computed alike:

    value s, state s                initial value and state of shard s
    gradient t r s                  gradient of rank r in iteration t
    sum a b ..., average a b ...    over ranks, in rank order

    new n g v z, kept n g v z       value v after an update by n times gradient g with state z; the new state

    code a ..., lost c              a rounded value; the error of its code
    way v a, outer a w m            distance of values from an anchor; the anchor after an outer update
    mixed v a                       half of each
    partial n                       a partial sum or unwritten value, in the n-th place without a symbol
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TypeAlias

from dear_mpi.collectives.program.hosts import INSIDE, by_host, servers

Symbol: TypeAlias = int  # index into a memory's table
Weights: TypeAlias = Mapping[tuple[int, int], Fraction]  # by iteration and rank


UNKNOWN = (-1, -1)  # key in weights


class Memory:
    """Store symbols by line, rank and shard; ``iteration`` counts iterations.

    Args:
        hosts: host number of each rank.
        lines: the lines of a route and their kinds, see ``Leg``.
        assumed: the answer of a leg that checks whether codes fit.

    Attributes:
        fits: that answer in this iteration; None before the check.
        misread: line, rank and shard of each partial value that was read.
        common: whether all updates so far used gradients equal on all ranks.
    """

    def __init__(self, hosts: Sequence[int], lines: Mapping[str, str], *, assumed: bool = True) -> None:
        self.hosts, self.size, self.iteration, self.places_lost = hosts, len(hosts), 0, 0
        self.fits: bool | None = None
        self.assumed = assumed
        self.misread: list[tuple[str, int, int]] = []
        self.common = True
        self.table: dict[tuple[object, ...], Symbol] = {}
        self.keys: list[tuple[str, tuple[int, ...]]] = []  # kind and parts of each symbol
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
        return ((rank, shard) for rank in range(self.size) for shard in range(self.size))

    def groups(self, level: str) -> Iterator[tuple[int, Sequence[int], int]]:
        """Yield each shard, the ranks in one collective of it, and the keeper of their sum."""
        for shard in range(self.size):
            serving = servers(shard, self.hosts if level else range(self.size))
            if level == INSIDE:
                yield from ((shard, *each) for each in zip(by_host(self.hosts), serving, strict=True))
            else:
                yield shard, serving, shard

    def symbol(self, kind: str, *parts: int) -> Symbol:
        """Return the symbol built from symbols or numbers; equal arguments give equal symbols."""
        key = (kind, *parts)
        if key not in self.table:
            self.table[key] = len(self.table)
            self.keys.append((kind, parts))
            self.weighed.append(self.weights(kind, *parts))
        return self.table[key]

    def weights(self, kind: str, *parts: int) -> Weights:
        """Count each gradient's contribution to a symbol."""
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
        """Return a symbol; record a misread if it is partial."""
        if (line, rank, shard) not in self.held:
            self.forget(line, rank, shard)
        found = self.held[line, rank, shard]
        if self.keys[found][0] == "partial":
            self.misread.append((line, rank, shard))
        return found

    def write(self, line: str, rank: int, shard: int, symbol: Symbol) -> None:
        self.held[line, rank, shard] = symbol

    def forget(self, line: str, rank: int, shard: int) -> None:
        self.places_lost += 1
        self.held[line, rank, shard] = self.symbol("partial", self.places_lost)
