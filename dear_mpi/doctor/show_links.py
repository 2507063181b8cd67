"""The links of all pairs, for people: the worst first, and what stands out; and for files."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.console import Console

from dear_mpi.bench.machine_file import Link
from dear_mpi.doctor.finding import Finding
from dear_mpi.doctor.outliers import outliers
from dear_mpi.doctor.pairs import MEASURES, PAIR_COLUMNS, by_kind, explained, pairs_of
from dear_mpi.doctor.show import show_findings
from dear_mpi.reporting.terminal import table
from dear_mpi.reporting.units import format_hosts, plural


@dataclass(frozen=True)
class LinksReport:
    """Both directions of each pair of ranks; ``hosts`` has a name for the host of each rank."""

    links: Sequence[Link]
    hosts: Sequence[str]
    transport: str
    at_once: bool

    @property
    def ranks_per_host(self) -> list[int]:
        return [self.hosts.count(host) for host in dict.fromkeys(self.hosts)]

    @property
    def findings(self) -> list[Finding]:
        return outliers(self.links, self.hosts)

    def as_object(self) -> dict[str, Any]:
        """What ``simulate --network FILE`` reads, and more."""
        return {
            "transport": self.transport,
            "hosts": self.ranks_per_host,
            "at_once": self.at_once,
            "ranks": [{"rank": rank, "host": host} for rank, host in enumerate(self.hosts)],
            "links": [asdict(row) for row in self.links],
            "findings": [asdict(finding) for finding in self.findings],
        }


def show_links(screen: Console, report: LinksReport, worst: int) -> None:
    """The ``worst`` pairs, what is usual inside hosts and between them, and what stands out."""
    pairs = sorted(pairs_of(report.links, report.hosts), key=lambda pair: -pair.slowdown)
    shown, title = pairs[:worst], f"{format_hosts(report.ranks_per_host)}, over {report.transport}"
    columns = {"ranks": PAIR_COLUMNS["ranks"], "hosts": lambda pair: pair.where, **PAIR_COLUMNS}
    columns |= {"slowdown": lambda pair: f"{pair.slowdown:.2f}"}
    del columns["memory"]  # the same in all rows
    screen.print(table([shown], columns, left=("ranks", "hosts"), title=title))
    if left := len(pairs) - len(shown):
        screen.print(f"left out: {plural(left, 'pair')} less slow than these; --worst shows more, --json has all")
    how = "pairs without a common rank at the same time" if report.at_once else "one pair at a time"
    legend = (
        f"{report.links[0].path} memory, {how}, the worst first; {explained(report.links)}; slowdown: the worst of "
        "these figures over the median of the pairs inside hosts, or of those between them\n"
    )
    screen.print(legend, style="dim", soft_wrap=True)
    for kind, rows in by_kind(report.links, report.hosts).items():
        screen.print(f"{kind}: {plural(len(rows) // 2, 'pair')}, {usual(rows)}", soft_wrap=True)
    show_findings(screen, report.findings)
    if not report.findings and len(pairs) > 1:
        screen.print("no host, rank or pair stands out", style="green")


def usual(rows: Sequence[Link]) -> str:
    """The median of each measure, and from the best to the worst."""
    said = []
    for name, measure in MEASURES.items():
        costs = [measure.cost(row) for row in rows]
        middle, best, worst = (measure.shown(pick(costs)) for pick in (median, min, max))
        said.append(f"{name} {middle} ({best} to {worst})")
    return ", ".join(said)
