"""The memory of all ranks in symbols, for the proof of a route: what each holds of each shard of each line of a bucket.

A symbol stands for how a value was computed. Symbols are equal exactly where values are computed alike:

    value s, state s                the values of shard s at first, and what is kept for them
    gradient t r s                  what rank r computes in iteration t
    sum a b ..., average a b ...    over ranks, in their order
    new n g v z, kept n g v z       value v after an update by n times gradient g with state z; and the state after it
    code a ..., lost c              what was rounded, and what its code has lost

Where there is none, there is a partial sum, or nothing: who reads it goes wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import TypeAlias

Symbol: TypeAlias = int  # a number in the table of a memory
Weights: TypeAlias = Mapping[tuple[int, int], Fraction]  # by iteration and rank


class GarbledError(Exception):
    """A leg reads what is a partial sum on its rank, or was never written; its arguments: line, rank, shard."""


class Memory:
    """Symbols by line, rank and shard; ``turn`` counts iterations, and ``zeros`` are lines that are zero at first."""

    def __init__(self, size: int, zeros: Iterable[str] = ()) -> None:
        self.size, self.turn = size, 0
        self.table: dict[tuple[object, ...], Symbol] = {}
        self.keys: list[tuple[str, tuple[int, ...]]] = []  # of each symbol
        self.weighed: list[Weights] = []
        self.held: dict[tuple[str, int, int], Symbol] = {}
        for rank, shard in self.places:
            self.held["values", rank, shard] = self.held["layers", rank, shard] = self.symbol("value", shard)
            self.held["state", rank, shard] = self.symbol("state", shard)
            for line in zeros:
                self.held[line, rank, shard] = self.symbol("zero")

    @property
    def places(self) -> Iterator[tuple[int, int]]:
        """All ranks with all shards."""
        return ((rank, shard) for rank in range(self.size) for shard in range(self.size))

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
            turn, rank, _ = parts
            return {(turn, rank): Fraction(1)}
        scales: dict[Symbol, Fraction] = dict.fromkeys(parts, Fraction(0))
        if kind in ("sum", "average"):
            for part in parts:
                scales[part] += Fraction(1, len(parts) if kind == "average" else 1)
        elif kind == "code":
            scales = {parts[0]: Fraction(1)}
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
        """
        Raises:
            GarbledError: there is nothing that can be used.
        """
        found = self.held.get((line, rank, shard))
        if found is None:
            raise GarbledError(line, rank, shard)
        return found

    def write(self, line: str, rank: int, shard: int, symbol: Symbol) -> None:
        self.held[line, rank, shard] = symbol

    def forget(self, line: str, rank: int, shard: int) -> None:
        """From now on it is a partial sum."""
        self.held.pop((line, rank, shard), None)
