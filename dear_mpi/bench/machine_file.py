"""Define a machine file, written by ``bench`` (rows), ``doctor`` or ``links``."""

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from dear_mpi.kernels.dtypes import TYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.stats import Median

MOST_COUNTED, MOST_US = 10**15, 86400e6  # limits of a measurable row; a day
Size = Annotated[int, Meta(ge=0, le=MOST_COUNTED)]
Count = Annotated[int, Meta(ge=1, le=MOST_COUNTED)]
Microseconds = Annotated[float, Meta(ge=0, le=MOST_US)]
Measured = Annotated[float, Meta(ge=1e-6, le=MOST_US)]  # us
Speed = Annotated[float, Meta(ge=1e-9, le=1e9)]  # GB/s


# Chosen columns of a row, without size and candidate.
KIND = ("collective", "ranks", "device", "dtype", "op", "placement", "cadence")


@dataclass(frozen=True)
class Row:
    collective: str
    algorithm: str
    backend: str
    device: str
    ranks: Count
    bytes: Size
    count: Size
    dtype: str
    op: str
    placement: str
    segment_bytes: Count
    samples: int
    min_us: float
    p50_us: Measured
    ci_low_us: Microseconds
    ci_high_us: Microseconds
    mean_us: Measured
    p99_us: float
    max_us: float
    algbw_GBps: float
    busbw_GBps: float
    wrong: int  # elements that differ from the exact result, over all ranks and calls
    slow_rank: int  # the most frequent slowest rank
    model_us: float | None  # the prediction of `fit_network`; None without one
    hosts: list[int]  # ranks on each host
    cadence: str  # isolated: a sample is a call on its slowest rank; streaming: calls in sequence, the mean over ranks
    rank_min_us: float  # the smallest of the ranks' means
    rank_max_us: float
    memory: str  # of the buffers: shared, private or device
    chosen: str  # the choice of ``auto``
    peer: str = ""  # the fastest MPI call at this size, else the first candidate
    over_peer: float = 1.0
    start: str = "barrier"
    late: int = 0  # dropped: a rank was late
    times_us: list[list[float]] | None = None  # of each timed rank, with --raw
    rank_mean_us: Microseconds | None = None  # the mean of the ranks' means, as in OSU's benchmarks
    over_peer_low: float | None = None  # ends of its 95 % interval; None: too few samples
    over_peer_high: float | None = None
    bound_us: float | None = None  # least time of any algorithm on the fitted network

    @property
    def kind(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in KIND)

    @property
    def case(self) -> tuple[object, ...]:
        """What comparable rows share."""
        return (*self.kind, self.bytes)

    @property
    def median_us(self) -> Median:
        return Median(self.p50_us, self.ci_low_us, self.ci_high_us)


@dataclass(frozen=True)
class Link:
    """A link between two ranks; ``path``: host, device (handed to MPI) or staged."""

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
    messages: Count = 1  # of ``bytes`` in a one-way stream


@dataclass(frozen=True)
class Place:
    host: str


@dataclass(frozen=True)
class MachineFile:
    """The known keys: rows, or links and each rank's host."""

    rows: list[Row] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    ranks: list[Place] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.rows and not self.links:
            raise ValueError("it has neither rows nor links")
        for row in self.rows:
            lookup("dtype", row.dtype, TYPES)
        for link in self.links:
            if max(link.source, link.dest) >= len(self.ranks):
                raise ValueError(f"it has {len(self.ranks)} ranks, and a link from {link.source} to {link.dest}")
