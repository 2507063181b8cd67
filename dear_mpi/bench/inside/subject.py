"""What is looked at more closely: a contestant at one size, on so many ranks."""

from dataclasses import dataclass
from typing import Any

from dear_mpi.bench.case import Case
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.reporting.units import format_bytes, plural


@dataclass(frozen=True)
class Subject:
    collective: str
    algorithm: str
    backend: str
    ranks: int
    bytes: int
    dtype: str
    op: str
    placement: str

    @property
    def kind(self) -> str:
        """All but who at which size, such as: all_reduce, 2 ranks, fp32, sum, in place, over MPICH."""
        op = [self.op] * (self.op != "none")
        texts = [self.collective, plural(self.ranks, "rank"), self.dtype, *op, self.placement, f"over {self.backend}"]
        return ", ".join(texts)

    @property
    def name(self) -> str:
        """Such as: all_reduce, 2 ranks, ring, 4 KiB."""
        return f"{self.collective}, {plural(self.ranks, 'rank')}, {self.algorithm}, {format_bytes(self.bytes)}"


def subject(name: str, case: Case, transport: Transport) -> dict[str, Any]:
    """The fields of a contestant, by what a reader calls it."""
    where = {"backend": transport.name, "ranks": transport.size}
    return {"collective": case.collective, "algorithm": name, **where, "bytes": case.used_bytes, **case.facts}
