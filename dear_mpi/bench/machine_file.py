"""The file of a machine: ``bench`` writes its rows, ``doctor`` the links of its ranks, and ``simulate`` reads it."""

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from dear_mpi.bench.case import Count, Microseconds, Row, Size
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup

Speed = Annotated[float, Meta(ge=1e-9, le=1e9)]  # GB/s


@dataclass(frozen=True)
class Link:
    """Two neighbours in the ring, measured; ``path`` is host, device (handed to MPI) or staged."""

    source: Size
    dest: Size
    path: str
    latency_us: Microseconds
    latency_bytes: Size
    latency_samples: Count
    GBps: Speed
    bytes: Count
    samples: Count
    latency_low_us: Microseconds  # ends of the 95 % intervals
    latency_high_us: Microseconds
    GBps_low: Speed
    GBps_high: Speed


@dataclass(frozen=True)
class Place:
    host: str


@dataclass(frozen=True)
class MachineFile:
    """What counts of a file; its other keys are ignored. It has rows, or links and the place of each rank."""

    rows: list[Row] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    ranks: list[Place] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.rows and not self.links:
            raise ValueError("it has neither rows nor links")
        for row in self.rows:
            lookup("dtype", row.dtype, DTYPES)
        for link in self.links:
            if max(link.source, link.dest) >= len(self.ranks):
                raise ValueError(f"it has {len(self.ranks)} ranks, and a link from {link.source} to {link.dest}")
