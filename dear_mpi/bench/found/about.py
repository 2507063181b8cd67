"""What a finding is about: a row of the benchmark, of balanced calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from dear_mpi.bench.case import Case, Samples
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.makers.contestants import contestant, named
from dear_mpi.reporting.units import format_bytes, plural

IN_NAME = ("collective", "ranks", "dtype", "op", "placement", "segment_bytes")  # where rows differ in it
place_of: Callable[[Any], tuple[object, ...]] = attrgetter(*IN_NAME, "bytes", "algorithm")
"""What tells a row, or what is about one, from others."""


@dataclass(frozen=True)
class About:
    collective: str
    algorithm: str
    chosen: str  # the algorithm that was carried out
    segment_bytes: int
    bytes: int
    ranks: int
    dtype: str
    op: str
    placement: str

    def name(self, varied: Sequence[str] = ()) -> str:
        """Beside rows that differ in ``varied``."""
        cut = f"segments of {format_bytes(self.segment_bytes)}" if contestant(self.algorithm).segments else "none"
        facts = {each: getattr(self, each) for each in IN_NAME}
        facts |= {"ranks": plural(self.ranks, "rank"), "segment_bytes": cut}
        more = [facts[each] for each in varied if facts[each] != "none"]
        return ", ".join([named(self.algorithm, self.chosen), format_bytes(self.bytes), *more])


def varied_in(rows: Sequence[Row]) -> list[str]:
    """What a name needs beside these rows."""
    return [each for each in IN_NAME if len({getattr(row, each) for row in rows}) > 1]


def about(case: Case, key: tuple[str, int], samples: Samples, ranks: int) -> dict[str, Any]:
    """The fields of a contestant's row; its key is its name and its segments."""
    name, segment_bytes = key
    who = {"algorithm": name, "chosen": samples.chosen or name, "segment_bytes": segment_bytes}
    return {**who, "collective": case.collective, "bytes": case.used_bytes, "ranks": ranks, **case.facts}
