"""What the figures of a benchmark mean, in plain words: for each collective its sizes and its bandwidths; for a run how
calls were made."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from dear_mpi.bench.fit import MOST_RANKS, Fit
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.makers.contestants import contestant, name_of
from dear_mpi.bench.operations import OPERATIONS
from dear_mpi.bench.report import Report
from dear_mpi.reporting.stats import FEWEST_SAMPLES
from dear_mpi.reporting.units import format_bytes, format_hosts, grouped, plural


@dataclass(frozen=True)
class Meaning:
    """Of the sizes of a collective. ``parted``: they are made of a part for each rank, and tools count one part."""

    size: str
    factor: str = "1"  # busbw / algbw on n ranks
    parted: bool = False
    root: int = -1


PAIR = "a message between the first and the last rank"
MEANINGS = {
    "all_reduce": Meaning("the buffer that each rank brings, and ends with", "2(n-1)/n"),
    "reduce_scatter": Meaning("the buffer that each rank brings; it ends with a part of it", "(n-1)/n", parted=True),
    "all_gather": Meaning("the buffer that each rank ends with; it brings a part of it", "(n-1)/n", parted=True),
    "broadcast": Meaning("the buffer that the root brings, and all end with", root=0),
    "reduce": Meaning("the buffer that each rank brings, and the root ends with", root=0),
    "all_to_all": Meaning("the buffer that each rank brings, with a part for each rank", "(n-1)/n", parted=True),
    "gather": Meaning(
        "the buffer that the root ends with; each rank brings a part of it", "(n-1)/n", parted=True, root=0
    ),
    "scatter": Meaning(
        "the buffer that the root brings; each rank ends with a part of it", "(n-1)/n", parted=True, root=0
    ),
    "sendrecv": Meaning("what each rank sends to its successor, while as much arrives from its predecessor"),
    "barrier": Meaning("nothing: a barrier moves no data", "0"),
    "ping_pong": Meaning(f"{PAIR}, and back; time is for one way"),
    "bandwidth": Meaning(f"{PAIR}, of many in a row; time is for one of them"),
    "both_ways": Meaning(f"{PAIR}, of many in a row in each direction; time is for one of each", "2"),
}
SAMPLES = {
    "isolated": "a sample is one call, from its start to its end on {end}",
    "streaming": "a sample is the mean over calls in a row{mean}; barriers between calls are not timed",
}
OF_ALL, OF_PAIR = (
    {"end": "the slowest rank", "mean": " and over ranks"},
    {"end": "the first rank", "mean": ", on the first rank"},
)
KEPT = "GLIBC_TUNABLES=glibc.malloc.mmap_threshold=67108864:glibc.malloc.trim_threshold=268435456"
STARTS = {
    "barrier": "ranks leave a barrier",
    "clock": "ranks wait for a moment of a clock that all have set",
}


def of_one_part(row: Row, of: int) -> int:
    """The count (or the size) of a row as other tools have it, where ours is ``of``: that of the largest part, in whole
    elements, if the buffer is made of parts."""
    if not row.count or not MEANINGS[row.collective].parted:
        return of
    return -(-row.count // row.ranks) * (of // row.count)


def span(numbers: Sequence[int], what: str) -> str:
    """
    >>> span([11, 200, 11], "sample"), span([1], "sample")
    ('11 to 200 samples', '1 sample')
    """
    least, most = min(numbers), max(numbers)
    return f"{least} to {plural(most, what)}" if least < most else plural(most, what)


def title(rows: Sequence[Row]) -> str:
    """What the rows of one collective and number of ranks are about."""
    first = rows[0]
    others = {name_of(row): row.backend for row in rows if row.backend != first.backend}
    over = ", ".join([f"over {first.backend}", *(f"{name}: {library}" for name, library in others.items())])
    return f"{first.collective}, {format_hosts(first.hosts)}, {first.device}, {over}"


def meaning(rows: Sequence[Row]) -> Iterator[str]:
    """How to read the rows of one collective and number of ranks: sizes, times, bandwidths."""
    first = rows[0]
    about = MEANINGS[first.collective]
    yield f"size: bytes of {about.size}"
    arrival = (
        "" if first.arrival == "none" else f", and arrive as --arrival {first.arrival} says; times are from the last"
    )
    start = " or ".join(STARTS[each] for each in dict.fromkeys(row.start for row in rows))
    yield f"time: {time_text(rows)}. At the start {start}{arrival}"
    factor = OPERATIONS[first.collective].factor(first.ranks)
    here = "" if "n" not in about.factor else f" (n = {plural(first.ranks, 'rank')}: {factor:.3g})"
    yield f"algbw = size / time, busbw = algbw x {about.factor}{here}, in GB/s: 1e9 bytes in a second"


def fitted(value: float, width: int) -> str:
    """A number in as many characters: with 2, 1 or 0 decimals, else with an exponent.

    >>> [fitted(value, 7) for value in (0.123, 9999.994, 12345.67, 1e7 - 1, 1e9)], fitted(1e9, 6)
    (['0.12', '9999.99', '12345.7', '9999999', '1.0e+09'], '1e+09')
    """
    texts = [f"{value:{form}}" for form in (".2f", ".1f", ".0f", ".1e", ".0e")]
    return next((text for text in texts if len(text) <= width), texts[-1])


def time_text(rows: Sequence[Row]) -> str:
    """Describe how the times of rows of one cadence were measured."""
    first = rows[0]
    sample = SAMPLES[first.cadence].format(**OF_PAIR if OPERATIONS[first.collective].pair else OF_ALL)
    return f"median over {span([row.samples for row in rows], 'sample')}, in us; {sample} ({first.cadence})"


def columns(rows: Sequence[Row]) -> Iterator[str]:
    """What stands beside a time."""
    yield (
        f"±%: half of the 95 % interval of the median, in % of the median; - of fewer than {FEWEST_SAMPLES} samples. "
        "!: the interval is wider than the median, so the row tells nothing, and means leave it out"
    )
    peers = dict.fromkeys(row.peer for row in rows)
    of_libraries = all(contestant(peer).is_library for peer in peers)
    what = "the fastest call of an MPI library" if of_libraries else ", ".join(peers)
    yield (
        f"/peer: the time over that of {what} for the same. *: clearly different, because the 95 % interval of the "
        "ratio excludes 1"
    )


def left_out(report: Report) -> Iterator[str]:
    """Who was not measured, and why. A collective without sizes was left out at all of its sizes."""
    by_collective = grouped(report.rows, lambda row: row.collective)
    measured = {name: {row.bytes for row in rows} for name, rows in by_collective.items()}

    def place(name: str, sizes: Sequence[int]) -> str:
        everywhere = measured.get(name) == set(sizes)
        return name if everywhere else f"{name} of {', '.join(map(format_bytes, dict.fromkeys(sizes)))}"

    for why, places in report.left_out.items():
        where = (place(name, sizes) for name, sizes in places.items())
        yield f"left out: {why} ({'; '.join(where)})"


def fits_text(report: Report) -> Iterator[str]:
    """The network that explains the rows, of each number of ranks."""
    for ranks, fit in report.fits.items():
        yield f"On {plural(ranks, 'rank')}: {fit_text(fit)}" if len(report.fits) > 1 else fit_text(fit)


def fit_text(fit: Fit | None) -> str:
    if fit is None:
        needed = "two sizes of an algorithm of ours that sends messages"
        return f"No network fitted: that needs {needed}, on 2 to {MOST_RANKS} ranks."
    network = fit.network
    beta, gamma = (f"{1e-9 / value:.2f} GB/s" if value else "no limit" for value in (network.beta, network.gamma))
    if "gamma" not in fit.told:
        gamma = "unknown (these rows cannot tell gamma from beta: 1/beta covers both)"
    o = f"{network.o * 1e6:.1f} us"
    if "o" not in fit.told:
        o = "unknown (these rows cannot tell o from alpha, which has both)"
    return (
        f"Network fitted to {plural(fit.rows, 'row')}: alpha {network.alpha * 1e6:.1f} us, o {o}, 1/beta {beta}, "
        f"1/gamma {gamma}; the median row is {fit.residual:.0%} off the model."
    )


def clocks(report: Report) -> Iterator[str]:
    """What a figure contains that is not the collective's: the loop's own cost, and how the ranks' clocks differ."""
    if own := report.own_cost:
        calls = ", ".join(f"{name} {us:.2f} us" for name, us in own.self_us.items())
        alone = f"; MPI's call of 4 B on one rank alone: {calls}" if calls else ""
        yield f"Each time contains the loop's own cost: a call of nothing takes {own.empty_us:.2f} us{alone}."
    if known := report.clock:
        apart = (
            "one clock for all ranks"
            if known["one_clock"]
            else (
                f"offsets up to {known['offset_s'] * 1e6:.1f} us, known within {known['uncertainty_s'] * 1e6:.1f} us; "
                f"drift up to {known['drift'] * 1e6:.2f} us/s; off by {known['residual_s'] * 1e6:.1f} us at most when "
                "they were looked at again"
            )
        )
        yield f"Clocks of the start: {apart}. Ranks begin {known['lead_s'] * 1e6:.1f} us after the last one has come."


FAULT_US, FELT = 0.5, 0.1
"""What a page fault takes at least (in a virtual machine it was 2 us), and the part of a time that is worth a word."""


def page_faults(rows: Sequence[Row]) -> Iterator[str]:
    """Calls whose time is in part the system's: for memory that is taken, and given back, in each of them."""
    felt = [row for row in rows if row.page_faults * FAULT_US >= FELT * row.p50_us]
    for name, several in grouped(felt, name_of).items():
        most = max(several, key=attrgetter("page_faults"))
        yield (
            f"{name}, {', '.join(dict.fromkeys(format_bytes(row.bytes) for row in several))}: calls take memory from "
            f"the system and give it back, with up to {most.page_faults:.0f} page faults a call, of {FAULT_US} us and "
            f"more each. With {KEPT} glibc keeps it"
        )
