"""Split an algorithm's time at one size into its causes.

    |  latency  |  bytes  |  combining  |  processor  |      the model: costs on its longest path
    |                measured                         | late | rest |

The model's time (``collectives/program/cost.py`` on ``fit.py``'s network) sums the longest path: alpha per message,
beta per byte, gamma per combined byte, o per message that a processor handles. The time's derivatives count each of
them. If several paths are equally long, one counts.

Late: the delay from the middle to the last rank's end, minus the model's delay; the median over samples (``times_us``),
else a difference of means. Rest: everything else, negative if the model predicts more than the measured time.

An MPI call has no program: it gets the measured time, its whole lateness, and the least time of any algorithm on this
network (``bound_us``). The sentences name the part with the largest difference between two algorithms.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dear_mpi.bench.backends import candidate
from dear_mpi.bench.fit import Fit, gradient, programs_of, time_s
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.peers import merit
from dear_mpi.collectives.program.cost import cost
from dear_mpi.collectives.program.hosts import Rates
from dear_mpi.collectives.program.network import Network
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import TYPES
from dear_mpi.reporting.units import plural

APART = np.array((1.0, 1.7, 2.3, 3.1)) * 1e-6  # s; perturbs the costs, so that no two paths are equally long
STEP = 1e-9  # relative, and smaller than APART, so that the path stays the same
MOST_BYTES = 2**30  # the largest size of the search for a crossover


@dataclass(frozen=True)
class Model:
    """A program's modelled time as a sum, in us, with the count of each summand."""

    latency_us: float
    bytes_us: float
    combining_us: float
    processor_us: float
    messages: int
    nbytes: int
    combined_nbytes: int
    handled: int
    spread_us: float  # from the end of the middle rank to the end of the last one

    @property
    def time_us(self) -> float:
        return self.latency_us + self.bytes_us + self.combining_us + self.processor_us


@dataclass(frozen=True)
class Apart:
    """A row's time, split, in us."""

    row: Row
    name: str
    model: Model | None
    spread_us: float | None  # from the end of the middle rank to the end of the last one; None for calls in a row

    @property
    def measured_us(self) -> float:
        return self.row.p50_us

    @property
    def late_us(self) -> float | None:
        if self.spread_us is None or self.model is None:
            return self.spread_us
        open_us = self.measured_us - self.model.time_us
        return max(0.0, min(self.spread_us - self.model.spread_us, open_us))

    @property
    def rest_us(self) -> float | None:
        return None if self.model is None else self.measured_us - self.model.time_us - (self.late_us or 0.0)


@dataclass(frozen=True)
class Site:
    """The inputs of programs: the host of each rank, and link speeds."""

    hosts: Sequence[int] = ()
    rates: Rates | None = None


def model_of(row: Row, network: Network, site: Site) -> Model | None:
    """Model a row; None if it ran no program of messages."""
    written = programs_of(row, site.hosts, site.rates)
    if not written:
        return None
    costs = np.array((network.alpha, network.beta, network.gamma, network.o))
    counts = np.array(gradient(row, written, costs * (1 + APART), relative=STEP))
    done_s = cost(written, row.count, TYPES[row.dtype].itemsize, network).done_s  # by rank
    parts_us = costs * counts * 1e6
    total_us = float(parts_us.sum())
    # The path's sum differs from the time only by the perturbation of 1e-6.
    parts_us *= max(done_s) * 1e6 / total_us if total_us else 0.0
    latency_us, bytes_us, combining_us, processor_us = parts_us.tolist()
    messages, nbytes, combined_nbytes, handled = map(round, counts.tolist())
    return Model(
        latency_us=latency_us,
        bytes_us=bytes_us,
        combining_us=combining_us,
        processor_us=processor_us,
        messages=messages,
        nbytes=nbytes,
        combined_nbytes=combined_nbytes,
        handled=handled,
        spread_us=behind_middle(np.array(done_s)) * 1e6,
    )


def behind_middle(times: Array) -> float:
    """Return the delay from the middle rank to the last one; for several samples (a row per rank) the median."""
    return float(np.median(times.max(axis=0) - np.median(times, axis=0)))


def spread_us(row: Row) -> float | None:
    if row.cadence != "isolated":
        return None
    if row.times_us is not None:
        return behind_middle(np.array(row.times_us))
    return row.mean_us - (row.rank_min_us + row.rank_max_us) / 2


def taken_apart(row: Row, fit: Fit | None, site: Site, name: str) -> Apart:
    model = None if fit is None else model_of(row, fit.network, site)
    return Apart(row, name, model, spread_us(row))


def nearest(rows: Sequence[Row], nbytes: int) -> list[Row]:
    """Return the rows of the size with the smallest ratio to ``nbytes``."""
    size = min((row.bytes for row in rows), key=lambda each: abs(math.log((each or 1) / nbytes)))
    return [row for row in rows if row.bytes == size]


def of_interest(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Return the named rows of one case, and each library's fastest call."""
    fastest: dict[str, Row] = {}
    for row in rows:
        if candidate(row.algorithm).is_library:
            maker = candidate(row.algorithm).maker
            fastest[maker] = min(fastest.get(maker, row), row, key=merit)
    chosen = {id(row) for row in fastest.values()}
    return [row for row in rows if row.algorithm in names or id(row) in chosen]


def crossover(mine: Apart, other: Apart, network: Network, site: Site) -> int | None:
    """Return the larger size at which the model first ranks the slower of two rows first.

    None if there is no such size up to 1 GiB, if one row has no program, or if the model already disagrees here.
    """
    itemsize = TYPES[mine.row.dtype].itemsize

    def difference_s(count: int) -> float:
        sized = [replace(each.row, bytes=count * itemsize, count=count) for each in (mine, other)]
        ran = [(row, programs_of(row, site.hosts, site.rates)) for row in sized]
        times_s = [time_s(row, written, network) if written else math.nan for row, written in ran]
        return times_s[0] - times_s[1]

    count, slower = max(1, mine.row.count), mine.measured_us - other.measured_us
    before = difference_s(count)
    while before * slower > 0 and count * itemsize <= MOST_BYTES:
        after = difference_s(4 * count)
        if after * before <= 0:
            return int((count + 3 * count * before / (before - after)) * itemsize)
        before, count = after, 4 * count
    return None


UNKNOWN = 0.25  # share of a time: with a larger rest, no reason is given
MOST_OPEN = 0.5  # share of a difference between two times, likewise
UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def rounded_bytes(nbytes: float) -> str:
    """Round a size to two digits.

    >>> rounded_bytes(400_000), rounded_bytes(15_999_999), rounded_bytes(12)
    ('390 KiB', '15 MiB', '12 B')
    """
    factor, unit = next((factor, unit) for factor, unit in UNITS if nbytes >= factor or factor == 1)
    value = nbytes / factor
    digits = 2 - math.ceil(math.log10(max(value, 1.1)))
    return f"{round(value, digits):g} {unit}"


def us(value: float) -> str:
    return f"{value:.0f} us" if abs(value) >= 10 else f"{value:.1f} us"


def of_model(name: str) -> Callable[[Apart], float]:
    return lambda each: getattr(each.model, name) if each.model else 0.0


@dataclass(frozen=True)
class Part:
    """A summand of a time, in us, and the unit that it counts."""

    us: Callable[[Apart], float]
    text: str  # with its count
    count: Callable[[Apart], str]

    def told(self, each: Apart) -> str:
        return f"{self.text.format(self.count(each))} ({us(self.us(each))})"

    def briefly(self, each: Apart) -> str:
        """Return the short form, after the full text."""
        return f"{self.count(each)} ({us(self.us(each))})" if self.us(each) else "none of that"


PARTS = {
    "latency": Part(of_model("latency_us"), "{} after one another", lambda each: plural(count(each)[0], "message")),
    "bytes": Part(of_model("bytes_us"), "{} on its longest path", lambda each: rounded_bytes(count(each)[1])),
    "combining": Part(
        of_model("combining_us"), "{} to combine on its longest path", lambda each: rounded_bytes(count(each)[2])
    ),
    "processor": Part(of_model("processor_us"), "{} for a processor", lambda each: plural(count(each)[3], "message")),
    "late": Part(lambda each: each.late_us or 0.0, "a late rank, mostly {}", lambda each: f"rank {each.row.slow_rank}"),
}


def count(each: Apart) -> tuple[int, int, int, int]:
    """Count the messages, bytes, combined bytes and handled messages on the longest path."""
    model = each.model
    return (0, 0, 0, 0) if model is None else (model.messages, model.nbytes, model.combined_nbytes, model.handled)


def sentence(mine: Apart, others: Sequence[Apart], size: str, fit: Fit | None, site: Site) -> str:
    """Explain a row's time compared with the fastest other row (with the next one, if it is the fastest)."""
    if not others:
        return f"At {size} {mine.name} takes {us(mine.measured_us)}: {alone(mine)}."
    other = min(others, key=lambda each: merit(each.row))
    times = f"({us(mine.measured_us)})", f"({us(other.measured_us)})"
    if overlap(mine, other):
        told_apart = f"{mine.name} {times[0]} and {other.name} {times[1]} cannot be told apart"
        return f"At {size} {told_apart}: their intervals overlap. As for {mine.name}, {alone(mine)}."
    slower = mine.measured_us > other.measured_us
    beside = f"At {size} {mine.name} {times[0]} is {'slower' if slower else 'faster'} than {other.name} {times[1]}"
    if unknown := why_not_known(mine, other):
        return f"{beside}; why is not known: {unknown}."
    return f"{beside}{reason(mine, other, slower=slower)}{crossover_text(mine, other, fit, site)}."


def overlap(mine: Apart, other: Apart) -> bool:
    return mine.row.ci_low_us <= other.row.ci_high_us and other.row.ci_low_us <= mine.row.ci_high_us


def why_not_known(mine: Apart, other: Apart) -> str:
    """Name the unexplained share if it is too large for a reason; else return nothing."""
    if mine.rest_us is None:
        return f"{mine.name} has no program of messages that could be priced"
    if other.rest_us is None:
        if abs(mine.rest_us) <= UNKNOWN * mine.measured_us:
            return ""
        explained = us(mine.measured_us - mine.rest_us)
        return f"model and late ranks come to {explained} for {mine.name}, not {us(mine.measured_us)}"
    difference_us, rest_us = mine.measured_us - other.measured_us, mine.rest_us - other.rest_us
    if abs(rest_us) <= MOST_OPEN * abs(difference_us):
        return ""
    sign = math.copysign(1, difference_us)
    return f"model and late ranks put {us(sign * (difference_us - rest_us))} between them, not {us(abs(difference_us))}"


def reason(mine: Apart, other: Apart, *, slower: bool) -> str:
    if other.model is None:
        what = f": {most_of(mine)}" if largest(mine).us(mine) else ""
        if other.row.bound_us is not None and other.measured_us < (1 - UNKNOWN) * other.row.bound_us:
            return (
                f"{what}, and {other.name} takes less than messages on this network can: it moves data in another way"
            )
        return f"{what}; what {other.name} does inside is not known"
    sign = 1 if slower else -1
    most = max(PARTS.values(), key=lambda part: sign * (part.us(mine) - part.us(other)))
    if sign * (most.us(mine) - most.us(other)) <= 0:
        return ", which is in no part of the model"
    if not most.us(mine):
        return f" because {other.name} has {most.told(other)}, and {mine.name} none of that"
    return f" because it has {most.told(mine)}, where {other.name} has {most.briefly(other)}"


def largest(mine: Apart) -> Part:
    return max(PARTS.values(), key=lambda part: part.us(mine))


def most_of(mine: Apart) -> str:
    part = largest(mine)
    known_us = sum(each.us(mine) for each in PARTS.values())  # exceeds the measured time if the rest is negative
    return f"{part.us(mine) / max(mine.measured_us, known_us):.0%} of its time is {part.told(mine)}"


def alone(mine: Apart) -> str:
    part = largest(mine)
    if not part.us(mine):
        return "it cannot be taken apart"
    if mine.rest_us is not None and abs(mine.rest_us) > UNKNOWN * mine.measured_us:
        return "the model does not explain it"
    return most_of(mine)


def crossover_text(mine: Apart, other: Apart, fit: Fit | None, site: Site) -> str:
    """Name the size at which the model reverses the order."""
    if fit is None or mine.model is None:
        return ""
    if other.model is None:
        latency, moved = mine.model.latency_us, mine.model.bytes_us + mine.model.combining_us
        if latency > moved > 0:
            size = rounded_bytes(mine.row.bytes * latency / moved)
            return f"; from about {size} on its bytes take longer than its latency"
        return ""
    nbytes = crossover(mine, other, fit.network, site)
    if nbytes is None:
        return ""
    faster = mine if mine.measured_us > other.measured_us else other
    return f"; from about {rounded_bytes(nbytes)} on {faster.name} is the faster one, by the model"
