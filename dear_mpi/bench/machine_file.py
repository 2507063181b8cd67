"""Read a machine file, written by ``bench`` (rows), ``doctor`` or ``links``; fit a network to its rows."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from msgspec import Meta

from dear_mpi.collectives.algorithms.registry import programs, runner_of
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.collectives.program.hosts import Rates
from dear_mpi.collectives.program.program import Program
from dear_mpi.kernels.array import Array
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


UNKNOWNS = ("alpha", "beta", "gamma", "o")
FIRST = (1e-6, 1e-9, 1e-10, 1e-7)  # s, s/byte, s/byte, s
ROUNDS = 3
MOST_RANKS = 64  # ranks: a replay of more takes seconds
STEP = 1e-4  # relative
ALIKE = 0.02  # least distance of a separable column from the span of earlier ones


@dataclass(frozen=True)
class Fit:
    network: Network
    told: tuple[str, ...]  # costs that the rows determine; others are 0
    residual: float  # median relative error
    rows: int


def programs_of(row: Row, hosts: Sequence[int] = (), rates: Rates | None = None) -> list[Program]:
    """Return the message programs that a row ran, if any."""
    if runner_of(row.chosen) != "messages":
        return []
    pieces = -(-row.bytes // row.segment_bytes)
    try:
        return programs(row.chosen, row.collective, row.ranks, hosts=hosts, rates=rates, pieces=pieces)
    except ValueError:
        return []


def time_s(row: Row, written: Sequence[Program], network: Network) -> float:
    return cost(written, row.count, TYPES[row.dtype].itemsize, network).time_s


def gradient(row: Row, written: Sequence[Program], point: Array, *, relative: float = STEP) -> list[float]:
    """Return messages, bytes, combined bytes and handlings (o) on the longest path."""
    here = time_s(row, written, Network(*point))
    steps = [(value or first) * relative for value, first in zip(point, FIRST, strict=True)]
    moved = point + np.diag(steps)
    return [(time_s(row, written, Network(*there)) - here) / step for there, step in zip(moved, steps, strict=True)]


def fit_network(
    rows: Sequence[Row], hosts: Sequence[int] = (), rates: Rates | None = None, *, explains: str = "p50_us"
) -> Fit | None:
    """Fit alpha, beta, gamma and o to the column ``explains``; None: too many ranks, or fewer than two sizes.

    The longest path depends on these. So iterate: take coefficients at the estimate (exact differences), and solve for
    the least squares of relative errors without negative costs. A cost that rows cannot separate from earlier ones
    stays 0.
    """
    known = [(row, ran) for row in rows if 1 < row.ranks <= MOST_RANKS and (ran := programs_of(row, hosts, rates))]
    if len({row.bytes for row, _ in known}) < 2:
        return None
    measured_s = np.array([getattr(row, explains) for row, _ in known]) * 1e-6
    point, told = np.array(FIRST), list[int]()
    for _ in range(ROUNDS):
        relative = np.array([gradient(row, written, point) for row, written in known]) / measured_s[:, None]
        told = distinct(relative)
        point = non_negative(relative, told)
    network = Network(*point.tolist())
    errors = np.abs(np.array([time_s(row, written, network) for row, written in known]) / measured_s - 1)
    return Fit(network, tuple(UNKNOWNS[each] for each in told), float(np.median(errors)), len(known))


def distinct(relative: Array) -> list[int]:
    """Return the columns that are no mixtures of earlier ones; alpha and beta always are."""
    kept = [0, 1]
    for column in range(2, relative.shape[1]):
        others, new = relative[:, kept], relative[:, column]
        mixture = others @ np.linalg.lstsq(others, new, rcond=None)[0]
        if np.linalg.norm(new - mixture) > ALIKE * np.linalg.norm(new):
            kept.append(column)
    return kept


def non_negative(relative: Array, unknowns: Sequence[int]) -> Array:
    """Solve the least squares of ``relative @ point - 1``: the best subset without negatives."""
    best, error = np.zeros(relative.shape[1]), np.inf
    scale = np.maximum(np.linalg.norm(relative, axis=0), 1e-300)
    for size in range(1, len(unknowns) + 1):
        for chosen in map(list, itertools.combinations(unknowns, size)):
            part = (relative / scale)[:, chosen]
            values = np.linalg.lstsq(part, np.ones(len(part)), rcond=None)[0]
            missed = float(np.linalg.norm(part @ values - 1))
            if (values >= 0).all() and missed < error:
                best, error = np.zeros_like(best), missed
                best[chosen] = values / scale[chosen]
    return best
