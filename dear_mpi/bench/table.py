"""Format a benchmark's table, at most ``WIDTH`` characters wide, and explain figures in all formats.

Only rows begin with blanks; all other lines begin with ``#``. Settings that all rows share come first; ``--json`` has
all figures.
"""

import statistics
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from rich.text import Text

from dear_mpi.bench.backends import candidate, label, name_of, several_cuts
from dear_mpi.bench.case import OPERATIONS
from dear_mpi.bench.fit import MOST_RANKS, Fit
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.peers import (
    CLASSES,
    FAULTY,
    NOISE,
    against_mpi,
    is_noisy,
    mean_text,
    merit,
    ratio_mark,
    shown,
    spread_text,
    verdicts,
)
from dear_mpi.bench.run import Report
from dear_mpi.reporting.stats import FEWEST_SAMPLES
from dear_mpi.reporting.units import format_bytes, format_hosts, grouped, plural

WIDTH = 110
LEAST_NAME = 12  # characters of an algorithm's name
WRONG = " WRONG"
Key = tuple[object, ...]


@dataclass(frozen=True)
class Meaning:
    """The meaning of a collective's sizes. ``parted``: a buffer has a part per rank, and other tools count one part."""

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
    """Return a row's count or size (``of``) as in other tools.

    If the buffer has parts, it is the largest part's.
    """
    if not row.count or not MEANINGS[row.collective].parted:
        return of
    return -(-row.count // row.ranks) * (of // row.count)


def span(numbers: Sequence[int], what: str) -> str:
    """Format a range of counts.

    >>> span([11, 200, 11], "sample"), span([1], "sample")
    ('11 to 200 samples', '1 sample')
    """
    least, most = min(numbers), max(numbers)
    return f"{least} to {plural(most, what)}" if least < most else plural(most, what)


def title(rows: Sequence[Row]) -> str:
    """Return a title for the rows of one collective and number of ranks."""
    first = rows[0]
    others = {name_of(row): row.backend for row in rows if row.backend != first.backend}
    over = ", ".join([f"over {first.backend}", *(f"{name}: {library}" for name, library in others.items())])
    return f"{first.collective}, {format_hosts(first.hosts)}, {first.device}, {over}"


def meaning(rows: Sequence[Row]) -> Iterator[str]:
    """Explain the rows of one collective and number of ranks: sizes, times, bandwidths."""
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
    """Format a number in at most ``width`` characters: with 2, 1 or 0 decimals, else with an exponent.

    >>> [fitted(value, 7) for value in (0.123, 9999.994, 12345.67, 1e7 - 1, 1e9)], fitted(1e9, 6)
    (['0.12', '9999.99', '12345.7', '9999999', '1.0e+09'], '1e+09')
    """
    texts = [f"{value:{form}}" for form in (".2f", ".1f", ".0f", ".1e", ".0e")]
    return next((text for text in texts if len(text) <= width), texts[-1])


def time_text(rows: Sequence[Row]) -> str:
    """Describe the measurement of one cadence's times."""
    first = rows[0]
    sample = SAMPLES[first.cadence].format(**OF_PAIR if OPERATIONS[first.collective].pair else OF_ALL)
    return f"median over {span([row.samples for row in rows], 'sample')}, in us; {sample} ({first.cadence})"


def columns(rows: Sequence[Row]) -> Iterator[str]:
    """Explain the columns after the time."""
    yield (
        f"±%: half of the 95 % interval of the median, in % of the median; - of fewer than {FEWEST_SAMPLES} samples. "
        "!: the interval is wider than the median, so the row tells nothing, and means leave it out"
    )
    peers = dict.fromkeys(row.peer for row in rows)
    of_libraries = all(candidate(peer).is_library for peer in peers)
    what = "the fastest call of an MPI library" if of_libraries else ", ".join(peers)
    yield (
        f"/peer: the time over that of {what} for the same. *: clearly different, because the 95 % interval of the "
        "ratio excludes 1"
    )


def left_out(report: Report) -> Iterator[str]:
    """List candidates that were not measured, with the reason. Without sizes, it holds for all sizes."""
    by_collective = grouped(report.rows, lambda row: row.collective)
    measured = {name: {row.bytes for row in rows} for name, rows in by_collective.items()}

    def place(name: str, sizes: Sequence[int]) -> str:
        everywhere = measured.get(name) == set(sizes)
        return name if everywhere else f"{name} of {', '.join(map(format_bytes, dict.fromkeys(sizes)))}"

    for why, places in report.left_out.items():
        where = (place(name, sizes) for name, sizes in places.items())
        yield f"left out: {why} ({'; '.join(where)})"


def fits_text(report: Report) -> Iterator[str]:
    """Describe the fitted network of each number of ranks."""
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
    """Describe the loop's cost, and the difference of the ranks' clocks."""
    if own := report.own_cost:
        calls = ", ".join(f"{name} {us:.2f} us" for name, us in own.self_us.items())
        alone = f"; MPI's call of 4 B on a communicator of one rank: {calls}" if calls else ""
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
"""The least time of a page fault (it was 2 us in a virtual machine), and the share of a time that is mentioned."""


def page_faults(rows: Sequence[Row]) -> Iterator[str]:
    """List calls that spend time on memory that each call takes from the system and gives back."""
    felt = [row for row in rows if row.page_faults * FAULT_US >= FELT * row.p50_us]
    for name, several in grouped(felt, name_of).items():
        most = max(several, key=attrgetter("page_faults"))
        yield (
            f"{name}, {', '.join(dict.fromkeys(format_bytes(row.bytes) for row in several))}: calls take memory from "
            f"the system and give it back, with up to {most.page_faults:.0f} page faults a call, of {FAULT_US} us and "
            f"more each. With {KEPT} glibc keeps it"
        )


# They are a column if rows differ, else a line above the rows. Memory: of the buffers.
SETTINGS: dict[str, Callable[[Row], str]] = {
    "type": lambda row: row.dtype,
    "op": lambda row: row.op,
    "placed": lambda row: row.placement.partition(" ")[0],
    "memory": lambda row: row.memory,
}
FIGURES: dict[str, Callable[[Row], str]] = {
    "time us": lambda row: fitted(row.p50_us, 7),
    "±%": lambda row: spread_text(row, partial(fitted, width=6)) + "!" * is_noisy(row),
    "busbw GB/s": lambda row: fitted(row.busbw_GBps, 6),
    "/peer": lambda row: fitted(row.over_peer, 5) + ratio_mark(row),
    "wrong": lambda row: f"{row.wrong}{WRONG}" if row.wrong else "0",
}


def table_lines(report: Report) -> Iterator[Text]:
    """Return a table for each collective and number of ranks; all lines but rows begin with ``#``."""
    for rows in grouped(report.rows, table_of).values():
        first, alike = rows[0], [name for name, text in SETTINGS.items() if len(set(map(text, rows))) == 1]
        words = {"type": first.dtype, "op": first.op, "placed": first.placement, "memory": f"{first.memory} memory"}
        shared = ", ".join(words[name] for name in alike if words[name] != "none")
        yield from comments(title(rows), *[shared] * bool(shared), *meaning(rows), "")
        yield from lines_of(rows, report.names)
        yield from comments(*footer(rows, report), "")
    yield from comments(*left_out(report), *fits_text(report), *clocks(report))


def table_of(row: Row) -> Key:
    """Return the columns that are equal in a table."""
    return row.collective, row.ranks, row.device, row.cadence, row.arrival


def comments(*texts: str) -> Iterator[Text]:
    """Format lines that begin with ``#``; long texts are folded and indented."""
    for text in texts:
        indent = " " * (len(text) - len(text.lstrip()) + 4)
        lines = textwrap.wrap(text, WIDTH - 2, subsequent_indent=indent, break_on_hyphens=False) or [""]
        yield from (Text(f"# {line}".rstrip()) for line in lines)


def lines_of(rows: Sequence[Row], names: Sequence[str]) -> Iterator[Text]:
    """Return the heads, and a line for each shown row; each case's fastest is bold."""
    cuts, rows = several_cuts(rows), shown(rows, names)
    varied = {name: text for name, text in SETTINGS.items() if len(set(map(text, rows))) > 1}
    texts = {"size": lambda row: format_bytes(row.bytes), **varied, **FIGURES}
    cells = [list(texts), *([text(row) for text in texts.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    labels = [label(row, cuts=cuts) for row in rows]
    room = max(LEAST_NAME, WIDTH - 2 - sum(widths) - 2 * len(widths))
    left = min(room, max(map(len, ("algorithm", *labels))))
    fastest = {case: min(same, key=merit).p50_us for case, same in grouped(rows, lambda row: row.case).items()}

    def line(begin: str, name: str, texts: Sequence[str]) -> str:
        return (
            begin + name.ljust(left) + "".join(f"  {text:>{width}}" for text, width in zip(texts, widths, strict=True))
        )

    yield Text(line("# ", "algorithm", cells[0]))
    long = dict.fromkeys(name for name in labels if len(name) > left)
    yield from comments(*(f"{shortened(name, left)} is {name}" for name in long))
    for row, name, texts_of_row in zip(rows, labels, cells[1:], strict=True):
        style = "bold" if fastest[row.case] == row.p50_us else ""
        yield Text(line("  ", shortened(name, left), texts_of_row), style="bold red" if row.wrong else style)


def shortened(name: str, width: int) -> str:
    """Shorten a name from the left.

    >>> shortened("recursive_doubling", 12), shortened("ring", 12)
    ('…ve_doubling', 'ring')
    """
    return name if len(name) <= width else f"…{name[1 - width :]}"


def footer(rows: Sequence[Row], report: Report) -> Iterator[str]:
    """Return nccl-tests' two sums, explanations of columns, means over the fastest MPI calls, and differences."""
    wrong, quiet = sum(row.wrong for row in rows), [row.busbw_GBps for row in rows if not is_noisy(row)]
    yield f"{'Out of bounds values':20} : {wrong} {'FAILED' if wrong else 'OK'}"
    average = f"{statistics.fmean(quiet):g}" if quiet else "none: all rows are noisy"
    yield f"{'Avg bus bandwidth':20} : {average}"
    yield "  (the mean over the rows of all sizes, algorithms and placements: it depends on what was asked for)"
    yield from columns(rows)
    yield from page_faults(rows)
    if late := sum(row.late for row in rows):
        yield f"{late} samples do not count, because a rank was late for their start"
    for same in grouped(rows, lambda row: (row.placement, row.dtype, row.op)).values():
        yield from summary(same)
        yield from differences(same, report.names)


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Return means of our times over the fastest MPI call; nothing without MPI calls."""
    found = against_mpi(rows)
    if not found:
        return
    yield ""
    yield f"time / fastest MPI call, geometric means, {of_kind(rows[0])}"
    peers = dict.fromkeys(row.peer for row in rows)
    faulty = f"; {FAULTY}: none with right results; only these count" * any(row.wrong for row in rows)
    yield f"  (fastest were: {', '.join(peers)}; {NOISE}: no case in which both medians are sure{faulty})"
    width = max(map(len, found))
    yield f"  {'':{width}}" + "".join(f"  {name:>15}" for name in CLASSES)
    for name, means in found.items():
        yield f"  {name:{width}}" + "".join(f"  {mean_text(mean):>15}" for mean in means)


def differences(rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    """List candidates that are faster or slower than the peer, or cannot be told from it."""
    found = list(verdicts(shown(rows, names), cuts=several_cuts(rows)))
    if found:
        yield ""
        yield f"who is faster, {of_kind(rows[0])} (each interval has 95 %, over all calls that may be the fastest)"
        yield from (f"  {line}" for line in found)


def of_kind(row: Row) -> str:
    return f"{row.placement}, {row.elements}"
