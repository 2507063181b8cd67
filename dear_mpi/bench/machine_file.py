"""The file of a machine: ``bench`` writes its rows, ``doctor`` and ``links`` its links, and ``simulate`` reads it."""

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from dear_mpi.kernels.dtypes import TYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.stats import Median

MOST, MOST_US = 10**15, 86400e6  # in a row that can be measured; a day
Size = Annotated[int, Meta(ge=0, le=MOST)]
Count = Annotated[int, Meta(ge=1, le=MOST)]
Microseconds = Annotated[float, Meta(ge=0, le=MOST_US)]
Measured = Annotated[float, Meta(ge=1e-6, le=MOST_US)]  # us
Speed = Annotated[float, Meta(ge=1e-9, le=1e9)]  # GB/s


BALANCED = "none"  # the arrival of ranks that come to a call together
# The columns of a row that are chosen, without its size and its candidate.
KIND = ("collective", "ranks", "device", "dtype", "op", "placement", "cadence", "arrival")


@dataclass(frozen=True)
class Row:
    """One candidate at one size."""

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
    wrong: int  # elements that differed from the exact result, over all ranks and calls
    slow_rank: int  # the one that was most often the slowest
    model_us: float | None  # what fit.py predicts, where it can
    hosts: list[int]  # ranks on each host
    cadence: str  # isolated: a sample is a call on its slowest rank; streaming: calls in a row, the mean over ranks
    rank_min_us: float  # of the ranks' means, the smallest
    rank_max_us: float
    memory: str  # where the buffers were: shared, private or device
    chosen: str  # the algorithm that was carried out, which may be another one than ``auto``
    peer: str = ""  # the fastest call of an MPI library at this size, else the first candidate
    over_peer: float = 1.0  # time / its time
    start: str = "barrier"  # how the ranks of a sample began together
    late: int = 0  # samples that do not count, because a rank was late for the start
    arrival: str = BALANCED  # how ranks came to a call; if they did not come together, times are from the last one
    spikes: float = 0.0  # the part of the samples that took over 1.5 times the median
    times_us: list[list[float]] | None = None  # all samples of each rank whose time counts, where --raw asks for them
    rank_mean_us: Microseconds | None = None  # the mean of the ranks' means, as OSU's benchmarks have it
    arrival_us: Microseconds = 0.0  # the longest delay of a rank
    over_peer_low: float | None = None  # ends of its 95 % interval (peers.py); None of too few samples
    over_peer_high: float | None = None
    turn_us: Microseconds | None = None  # of a turn of all candidates: their calls, new data, and the check of results
    page_faults: float = 0.0  # of a call, on the rank that has most: pages that the system had to give it first
    bound_us: float | None = (
        None  # the least time of any algorithm on the fitted network (``bound_us`` in run.py), where known
    )

    @property
    def kind(self) -> tuple[object, ...]:
        """The choices without the size and the candidate."""
        return tuple(getattr(self, name) for name in KIND)

    @property
    def case(self) -> tuple[object, ...]:
        """The columns that comparable rows share: kind and size."""
        return (*self.kind, self.bytes)

    @property
    def elements(self) -> str:
        """Their type, and how they are combined, if they are: fp32, sum."""
        return self.dtype if self.op == "none" else f"{self.dtype}, {self.op}"

    @property
    def is_balanced(self) -> bool:
        return self.arrival == BALANCED

    @property
    def median_us(self) -> Median:
        return Median(self.p50_us, self.ci_low_us, self.ci_high_us)


@dataclass(frozen=True)
class Link:
    """One rank to another, measured as ``doctor/links.py`` says; ``path`` is host, device (handed to MPI) or staged."""

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
    messages: Count = 1  # of ``bytes`` in a stream one way
    both_GBps: Speed | None = None  # of both directions together, while both are busy
    both_GBps_low: Speed | None = None
    both_GBps_high: Speed | None = None


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
            lookup("dtype", row.dtype, TYPES)
        for link in self.links:
            if max(link.source, link.dest) >= len(self.ranks):
                raise ValueError(f"it has {len(self.ranks)} ranks, and a link from {link.source} to {link.dest}")
