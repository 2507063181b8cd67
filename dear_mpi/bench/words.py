"""What the figures of a benchmark mean, in plain words: for each collective its sizes and its bandwidths; for a run how
calls were made."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dear_mpi.bench.collective import Report
from dear_mpi.bench.contestants import contestant
from dear_mpi.bench.fit import MOST_RANKS, Fit
from dear_mpi.bench.machine_file import Row
from dear_mpi.reporting.units import format_bytes, format_hosts, plural


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
    "isolated": "a sample is one call, from its start to its end on the slowest rank",
    "streaming": "a sample is the mean over calls in a row and over ranks; barriers between calls are not timed",
}
STARTS = {
    "barrier": "ranks leave a barrier",
    "clock": "ranks wait for a moment of a clock that all have set",
}


def part(row: Row, of: int) -> int:
    """What other tools call the count (or the size) of a row, where ours is ``of``: of the largest part, if it is made
    of parts, in whole elements."""
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
    counted = "elements of the largest part" if about.parted else "its elements"
    yield f"size: bytes of {about.size}; count: {counted}"
    arrival = (
        "" if first.arrival == "none" else f", and arrive as --arrival {first.arrival} says; times are from the last"
    )
    yield (
        f"time: median over {span([row.samples for row in rows], 'sample')}, in us; {SAMPLES[first.cadence]} "
        f"({first.cadence}). At the start {STARTS[first.start]}{arrival}"
    )
    ratio = next((row.busbw_GBps / row.algbw_GBps for row in rows if row.algbw_GBps), 0.0)
    here = "" if "n" not in about.factor else f" (n = {plural(first.ranks, 'rank')}: {ratio:.3g})"
    yield f"algbw = size / time, busbw = algbw x {about.factor}{here}, in GB/s: 1e9 bytes in a second"


def columns(rows: Sequence[Row]) -> Iterator[str]:
    """What stands beside a time."""
    yield (
        "±%: half of the 95 % interval of the median, in % of the median. !: the interval is wider than the median, so "
        "the row tells nothing, and means leave it out"
    )
    peers = dict.fromkeys(row.peer for row in rows)
    of_libraries = all(contestant(peer).is_library for peer in peers)
    what = "the fastest call of an MPI library" if of_libraries else ", ".join(peers)
    yield (
        f"/peer: the time over that of {what} for the same. *: clearly different, because the 95 % interval of the "
        "ratio excludes 1"
    )
    yield "model: us that the network below predicts for the algorithm's messages; - where it predicts nothing"
    yield "slow: the rank that was most often the last to end; memory: where the buffers were"


def left_out(report: Report) -> Iterator[str]:
    """Who was not measured, and why."""
    for why, places in report.left_out.items():
        where = (f"{name} of {', '.join(map(format_bytes, sizes))}" for name, sizes in places.items())
        yield f"left out: {why} ({'; '.join(where)})"


def fit_text(fit: Fit | None) -> str:
    """The network that explains the rows."""
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


def name_of(row: Row) -> str:
    who = contestant(row.algorithm)
    return who.maker if who.is_library else row.algorithm


def label(row: Row, *, cuts: bool) -> str:
    """The contestant, what ``auto`` has chosen, and the segment where there are several."""
    name = row.algorithm if row.chosen == row.algorithm else f"{row.algorithm} ({row.chosen})"
    is_ours = contestant(row.algorithm).maker == "ours"
    return f"{name}, {format_bytes(row.segment_bytes)}" if cuts and is_ours else name
