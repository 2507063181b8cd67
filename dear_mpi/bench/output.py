"""Print a benchmark on rank 0. Table rows begin with blanks; other lines begin with ``#``."""

import statistics
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from typing import Any, NamedTuple

from rich.text import Text

from dear_mpi.bench.backends import candidate, labels
from dear_mpi.bench.case import OPERATIONS
from dear_mpi.bench.fit import MOST_RANKS, Fit
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.run import Report, merit, ratio_mark, shown
from dear_mpi.bench.suite import Suite
from dear_mpi.collectives.algorithms.registry import programs
from dear_mpi.collectives.program.user_file import WithExtras
from dear_mpi.collectives.program.verify import sums_alike
from dear_mpi.kernels.lookup import lookup
from dear_mpi.ranks.world import World
from dear_mpi.reporting.stats import FEWEST_SAMPLES
from dear_mpi.reporting.terminal import console, note
from dear_mpi.reporting.units import format_bytes, format_hosts, grouped, plural

WIDTH = 110
LEAST_NAME = 12  # characters of an algorithm's name
STARTS = {"barrier": "ranks leave a barrier", "clock": "ranks wait for a moment of a clock that all have set"}
SAMPLES = {  # of all ranks; of a pair's first one
    "isolated": (
        "a sample is one call, from its start to its end on the slowest rank",
        "a sample is one call, from its start to its end on the first rank",
    ),
    "streaming": (
        "a sample is the mean over calls in a row and over ranks; barriers between calls are not timed",
        "a sample is the mean over calls in a row, on the first rank; barriers between calls are not timed",
    ),
}


def fitted(value: float, width: int) -> str:
    """Format a number in ``width`` characters: with 2, 1 or 0 decimals, else an exponent.

    >>> [fitted(value, 7) for value in (0.123, 9999.994, 12345.67, 1e7 - 1, 1e9)], fitted(1e9, 6)
    (['0.12', '9999.99', '12345.7', '9999999', '1.0e+09'], '1e+09')
    """
    texts = [f"{value:{form}}" for form in (".2f", ".1f", ".0f", ".1e", ".0e")]
    return next((text for text in texts if len(text) <= width), texts[-1])


def time_text(rows: Sequence[Row]) -> str:
    least, most = min(row.samples for row in rows), max(row.samples for row in rows)
    samples = f"{least} to {plural(most, 'sample')}" if least < most else plural(most, "sample")
    cadence = rows[0].cadence
    sample = SAMPLES[cadence][OPERATIONS[rows[0].collective].pair]
    return f"median over {samples}, in us; {sample} ({cadence})"


def average_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Return nccl-tests' two sums; the mean is without noisy rows."""
    wrong, quiet = sum(row.wrong for row in rows), [row.busbw_GBps for row in rows if not row.median_us.is_noisy]
    yield f"Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    yield f"Avg bus bandwidth    : {statistics.fmean(quiet) if quiet else 0.0:g}"


def left_out(report: Report) -> Iterator[str]:
    for why, places in grouped(report.left_out, lambda each: each[0]).items():
        sizes = grouped(dict.fromkeys(places), lambda each: each[1])
        where = (f"{name} of {', '.join(format_bytes(each[2]) for each in same)}" for name, same in sizes.items())
        yield f"left out: {why} ({'; '.join(where)})"


def spread_text(row: Row) -> str:
    """Return half of the median's interval, in % of the median."""
    half = fitted(50 * (row.ci_high_us - row.ci_low_us) / row.p50_us, 6)
    return f"{'-' if row.samples < FEWEST_SAMPLES else half}{'!' * row.median_us.is_noisy}"


# A column if rows differ, else a line above them.
SETTINGS: dict[str, Callable[[Row], str]] = {
    "type": lambda row: row.dtype,
    "op": lambda row: row.op,
    "placed": lambda row: row.placement.partition(" ")[0],
    "memory": lambda row: row.memory,
}
FIGURES: dict[str, Callable[[Row], str]] = {
    "time us": lambda row: fitted(row.p50_us, 7),
    "±%": spread_text,
    "busbw GB/s": lambda row: fitted(row.busbw_GBps, 6),
    "/peer": lambda row: fitted(row.over_peer, 5) + ratio_mark(row),
    "wrong": lambda row: f"{row.wrong} WRONG" if row.wrong else "0",
}


def table_lines(report: Report) -> Iterator[Text]:
    for rows in grouped(report.rows, lambda row: (row.collective, row.ranks, row.device, row.cadence)).values():
        first, alike = rows[0], [name for name, text in SETTINGS.items() if len(set(map(text, rows))) == 1]
        words = {"type": first.dtype, "op": first.op, "placed": first.placement, "memory": f"{first.memory} memory"}
        shared = ", ".join(words[name] for name in alike if words[name] != "none")
        yield from comments(title(rows), *[shared] * bool(shared), *meaning(rows), "")
        yield from lines_of(shown(rows, report.names))
        yield from comments(*average_lines(rows), *columns(rows), *bits(rows))
        if late := sum(row.late for row in rows):
            yield from comments(f"{late} samples do not count, because a rank was late for their start")
        yield from comments("")
    yield from comments(*left_out(report), fit_text(report.fit), *clocks(report))


def comments(*texts: str) -> Iterator[Text]:
    """Begin lines with ``#``, folded and indented."""
    for text in texts:
        indent = " " * (len(text) - len(text.lstrip()) + 4)
        lines = textwrap.wrap(text, WIDTH - 2, subsequent_indent=indent, break_on_hyphens=False) or [""]
        yield from (Text(f"# {line}".rstrip()) for line in lines)


def title(rows: Sequence[Row]) -> str:
    first = rows[0]
    others = {row.algorithm: row.backend for row in rows if row.backend != first.backend}
    over = ", ".join([f"over {first.backend}", *(f"{name}: {library}" for name, library in others.items())])
    return f"{first.collective}, {format_hosts(first.hosts)}, {first.device}, {over}"


def meaning(rows: Sequence[Row]) -> Iterator[str]:
    first, operation = rows[0], OPERATIONS[rows[0].collective]
    start = " or ".join(STARTS[each] for each in dict.fromkeys(row.start for row in rows))
    here = f" (n = {plural(first.ranks, 'rank')}: {operation.factor(first.ranks):.3g})" * ("n" in operation.busbw)
    yield f"size: bytes of {operation.size}"
    yield f"time: {time_text(rows)}. At the start {start}"
    yield f"algbw = size / time, busbw = algbw x {operation.busbw}{here}, in GB/s: 1e9 bytes in a second"


def lines_of(rows: Sequence[Row]) -> Iterator[Text]:
    """Return heads and rows; each case's fastest is bold."""
    varied = {name: text for name, text in SETTINGS.items() if len(set(map(text, rows))) > 1}
    texts = {"size": lambda row: format_bytes(row.bytes), **varied, **FIGURES}
    cells = [list(texts), *([text(row) for text in texts.values()] for row in rows)]
    widths, names = [max(map(len, column)) for column in zip(*cells, strict=True)], labels(rows)
    room = max(LEAST_NAME, WIDTH - 2 - sum(widths) - 2 * len(widths))
    left = min(room, max(map(len, ("algorithm", *names))))
    fastest = {case: min(same, key=merit).p50_us for case, same in grouped(rows, lambda row: row.case).items()}

    def line(begin: str, name: str, texts: Sequence[str]) -> str:
        short = name if len(name) <= left else f"…{name[1 - left :]}"
        return f"{begin}{short:{left}}" + "".join(
            f"  {text:>{width}}" for text, width in zip(texts, widths, strict=True)
        )

    yield Text(line("# ", "algorithm", cells[0]))
    long = dict.fromkeys(name for name in names if len(name) > left)
    yield from comments(*(f"…{name[1 - left :]} is {name}" for name in long))
    for row, name, texts_of_row in zip(rows, names, cells[1:], strict=True):
        style = "bold" if fastest[row.case] == row.p50_us else ""
        yield Text(line("  ", name, texts_of_row), style="bold red" if row.wrong else style)


def columns(rows: Sequence[Row]) -> Iterator[str]:
    yield (
        f"±%: half of the 95 % interval of the median, in % of the median; - of fewer than {FEWEST_SAMPLES} samples. "
        "!: the interval is wider than the median, so the row tells nothing"
    )
    peers = dict.fromkeys(row.peer for row in rows)
    of_libraries = all(candidate(peer).is_library for peer in peers)
    what = "the fastest call of an MPI library" if of_libraries else ", ".join(peers)
    yield f"/peer: the time over that of {what}. *: the 95 % interval of the ratio excludes 1"


def bits(rows: Sequence[Row]) -> Iterator[str]:
    """Tell what changes no bit of our algorithms' sums."""
    first, found = rows[0], dict[str, bool]()
    hosts = [host for host, ranks in enumerate(first.hosts) for _ in range(ranks)]
    for row in rows if OPERATIONS[first.collective].reduces and first.ranks <= MOST_RANKS else ():
        if row.chosen not in found:
            with suppress(ValueError):  # a library's has no program
                found[row.chosen] = sums_alike(programs(row.chosen, row.collective, row.ranks, hosts=hosts))
    names = ", ".join(name for name, alike in found.items() if alike)
    also = f", and for {names} also with all sizes and cuts" * bool(names)
    if found:
        yield f"Bits of our sums are the same in all runs and schedules{also}, but not on other numbers of ranks."


def fit_text(fit: Fit | None) -> str:
    if fit is None:
        needed = f"two sizes of an algorithm of ours that sends messages, on 2 to {MOST_RANKS} ranks"
        return f"No network fitted: that needs {needed}."
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
    if own := report.own_cost:
        calls = ", ".join(f"{name} {us:.2f} us" for name, us in own["self_us"].items())
        alone = f"; MPI's call of 4 B on a communicator of one rank: {calls}" if calls else ""
        yield f"Each time contains the loop's own cost: a call of nothing takes {own['empty_us']:.2f} us{alone}."
    if known := report.clock:
        us = {name: f"{1e6 * known[name]:.1f} us" for name in ("offset_s", "uncertainty_s", "residual_s", "lead_s")}
        apart = f"offsets up to {us['offset_s']}, known within {us['uncertainty_s']}, later off by {us['residual_s']}"
        apart = "one clock for all ranks" if known["one_clock"] else apart
        yield f"Clocks of the start: {apart}. Ranks begin {us['lead_s']} after the last one has come."


COLUMNS = tuple(each.name for each in fields(Row) if each.name != "times_us")


def object_of(row: Row, *, raw: bool) -> dict[str, Any]:
    """Return a row for ``--json``; ``raw``: with all samples of each rank."""
    return asdict(row) if raw else {name: getattr(row, name) for name in COLUMNS}


class Format(NamedTuple):
    """How rows are printed; extras add some (``dear_mpi.formats``)."""

    lines: Callable[[Report], Iterator[str] | Iterator[Text]]
    names_missing: bool = False
    suited: Callable[[Suite, Mapping[str, Any]], Suite] = lambda suite, flags: suite  # or refuses it
    tuned: Callable[[Report], str] | None = None  # the content of --tune FILE, instead of rules of ``auto``


FORMATS = WithExtras({"table": Format(table_lines, names_missing=True)}, "formats")
DEFAULT = "table"


def show_bench(world: World, report: Report, form: str) -> None:
    """Print the rows, and missing candidates if the format does not."""
    chosen = lookup("format", form, FORMATS)
    if world.rank:
        return
    screen = console(world)
    for line in chosen.lines(report):
        screen.print(line, soft_wrap=True)
    for text in () if chosen.names_missing else left_out(report):
        note(world, text)
