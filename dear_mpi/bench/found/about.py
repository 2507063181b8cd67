"""What a finding is about: a row of the benchmark."""

from dataclasses import dataclass
from typing import Any

from dear_mpi.bench.case import Case, Samples
from dear_mpi.bench.makers.contestants import named
from dear_mpi.reporting.units import format_bytes


@dataclass(frozen=True)
class About:
    collective: str
    algorithm: str
    chosen: str  # the algorithm that was carried out
    segment_bytes: int
    bytes: int

    @property
    def row(self) -> tuple[str, int, str, int]:
        """What tells its row from others."""
        return self.collective, self.bytes, self.algorithm, self.segment_bytes

    @property
    def name(self) -> str:
        return f"{named(self.algorithm, self.chosen)}, {format_bytes(self.bytes)}"


def about(case: Case, key: tuple[str, int], samples: Samples) -> dict[str, Any]:
    """The fields of a contestant's row; its key is its name and its segments."""
    name, segment_bytes = key
    facts = {"collective": case.collective, "algorithm": name, "chosen": samples.chosen or name}
    return {**facts, "segment_bytes": segment_bytes, "bytes": case.used_bytes}
