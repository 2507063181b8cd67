"""Explain one size (``bench --why SIZE``): split times for each case, and a sentence for each of our rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from dear_mpi.bench.analysis.why import Apart, Site, nearest, of_interest, rounded_bytes, sentence, taken_apart
from dear_mpi.bench.backends import candidate, label, several_cuts
from dear_mpi.bench.fit import Fit
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.peers import figure
from dear_mpi.bench.run import Report
from dear_mpi.ranks.world import World
from dear_mpi.reporting.units import aligned, format_bytes, format_hosts, grouped

COLUMNS: dict[str, Callable[[Apart], str]] = {
    "algorithm": lambda each: each.name,
    "time": lambda each: f"{each.measured_us:.1f}",
    "latency (messages)": lambda each: part(each, "latency_us", lambda model: str(model.messages)),
    "bytes": lambda each: part(each, "bytes_us", lambda model: rounded_bytes(model.nbytes)),
    "combining": lambda each: part(each, "combining_us", lambda model: rounded_bytes(model.combined_nbytes)),
    "processor (messages)": lambda each: part(each, "processor_us", lambda model: str(model.handled)),
    "late": lambda each: figure(each.late_us),
    "rest": lambda each: figure(each.rest_us),
    "least": lambda each: figure(each.row.bound_us),
}
MEANING = (
    "us: time, the median, is latency + bytes + combining + processor (of the model; in brackets how many of each are "
    "on its longest path) + late (the last rank after the middle one) + rest (in none of these); "
    "least: of any algorithm on the fitted network; -: not known"
)

UNTOLD = {"gamma": "combining is in bytes", "o": "processor is in latency"}


def part(each: Apart, name: str, count: Callable[[Any], str]) -> str:
    return "-" if each.model is None else f"{getattr(each.model, name):.1f} ({count(each.model)})"


@dataclass(frozen=True)
class Explained:
    """One case at one size, with a sentence for each of our candidates."""

    asked_bytes: int
    apart: Sequence[Apart]
    sentences: Sequence[str]

    @property
    def title(self) -> str:
        row = self.apart[0].row
        asked = "" if row.bytes == self.asked_bytes else f" (nearest to {format_bytes(self.asked_bytes)})"
        where = f"{row.collective} of {format_bytes(row.bytes)}{asked}, {format_hosts(row.hosts)}"
        return f"why: {where}, {row.elements}, {row.placement}, {row.cadence}"

    def lines(self) -> Iterator[str]:
        yield self.title
        yield from aligned([list(COLUMNS), *([text(each) for text in COLUMNS.values()] for each in self.apart)])
        yield from self.sentences

    def as_report(self) -> dict[str, Any]:
        row = self.apart[0].row
        case = {name: getattr(row, name) for name in CASE_KEYS}
        parts = [
            {
                "algorithm": each.name,
                "time_us": each.measured_us,
                "late_us": each.late_us,
                "spread_us": each.spread_us,
                "rest_us": each.rest_us,
                "least_us": each.row.bound_us,
                "model": each.model and asdict(each.model),
            }
            for each in self.apart
        ]
        return {"asked_bytes": self.asked_bytes, **case, "parts": parts, "sentences": list(self.sentences)}


CASE_KEYS = ("collective", "bytes", "ranks", "dtype", "op", "placement", "cadence")


def explained(
    rows: Sequence[Row], names: Sequence[str], fits: Mapping[int, Fit | None], site: Site, nbytes: int
) -> list[Explained]:
    """Explain each case's balanced calls at the size nearest to ``nbytes``; ``fits``: by number of ranks."""
    found = []
    for case in grouped([row for row in rows if row.is_balanced], lambda row: row.kind).values():
        at = of_interest(nearest(case, nbytes), names)
        fit = fits[at[0].ranks]
        cuts = several_cuts(at)
        apart = [taken_apart(row, fit, site, label(row, cuts=cuts)) for row in at]
        size = format_bytes(at[0].bytes)
        told = [
            sentence(each, [other for other in apart if other is not each], size, fit, site)
            for each in apart
            if not candidate(each.row.algorithm).is_library
        ]
        found.append(Explained(nbytes, apart, told))
    return found


def show_why(screen: Console, world: World, report: Report, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Print the reasons for the times at these sizes, as comments. Returns their part of ``--json``."""
    site = Site(world.transport.hosts, world.transport.rates)
    found = [each for size in sizes for each in explained(report.rows, report.names, report.fits, site, size)]
    for each in found:
        for line in each.lines():
            screen.print(f"# {line}", markup=False, soft_wrap=True)
        screen.print("#")
    fits = [fit for fit in report.fits.values() if fit is not None]
    untold = [text for name, text in UNTOLD.items() if any(name not in fit.told for fit in fits)]
    for line in [MEANING] * bool(found) + ["; ".join(untold) + ": these rows cannot tell them apart"] * bool(untold):
        screen.print(f"# {line}", soft_wrap=True)
    return [each.as_report() for each in found]
