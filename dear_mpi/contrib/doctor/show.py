from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from rich.console import Console
from rich.text import Text

from dear_mpi.bench.machine_file import Link
from dear_mpi.contrib.doctor.examine import Facts, RankFacts
from dear_mpi.contrib.doctor.findings import Finding
from dear_mpi.contrib.doctor.pairs import MEASURES, PAIR_COLUMNS, by_kind, explained, outliers, pairs_of
from dear_mpi.reporting.terminal import console, listing, table
from dear_mpi.reporting.units import format_hosts, format_numbers, plural

SHOWN = ("Python", "NumPy", "mpi4py", "dear-mpi")
STYLES = {"broken": "bold red", "warning": "yellow", "note": "cyan"}


def as_object(facts: Facts, found: Sequence[Finding]) -> dict[str, Any]:
    return asdict(facts) | {"hosts": facts.hosts, "findings": [asdict(finding) for finding in found]}


def show_doctor(facts: Facts, found: Sequence[Finding]) -> None:
    screen = console()
    screen.print(listing(job_rows(facts), title=format_hosts(facts.hosts)))
    screen.print(table([facts.ranks], RANK_COLUMNS, left=RANK_COLUMNS))
    screen.print(
        "local rank: counted by shared memory / given by the launcher; cores: those that the rank may use\n",
        style="dim",
        soft_wrap=True,
    )
    if facts.links:
        hosts = [rank.host for rank in facts.ranks]
        pairs = sorted(pairs_of(facts.links, hosts), key=lambda pair: (pair.forth.source, pair.forth.path != "host"))
        screen.print(table([pairs], PAIR_COLUMNS, left=("ranks", "memory")))
        legend = f"neighbours in the ring, one pair at a time; {explained(facts.links)}; staged: copied to the host, "
        screen.print(f"{legend}sent, and copied back\n", style="dim", soft_wrap=True)
    show_findings(screen, found)
    if not any(finding.severity != "note" for finding in found):
        screen.print("nothing wrong was found", style="green")


def show_findings(screen: Console, found: Sequence[Finding]) -> None:
    for finding in found:
        severity = finding.severity, STYLES[finding.severity]
        screen.print(Text.assemble(severity, f": {finding.text}"), soft_wrap=True)
        if finding.advice:
            screen.print(f"    -> {finding.advice}", soft_wrap=True)


def job_rows(facts: Facts) -> dict[str, str]:
    launch, mpi, first = facts.launch, facts.mpi, facts.ranks[0]
    rows = {"launcher": f"{launch.launcher}, {plural(launch.size, 'rank')}" if launch.size > 1 else launch.launcher}
    if mpi is None:
        return rows | {"MPI library": "none"}
    return rows | {
        "MPI library": f"{mpi.library} (MPI {mpi.standard}), sees {plural(mpi.size, 'rank')}",
        "thread level": mpi.thread_level,
        "MPICH device": mpi.device,
        "runs on": ", ".join([first.kernel, *(f"{name} {first.software.get(name, '')}" for name in SHOWN)]),
        "interfaces (MTU)": ", ".join(f"{name} ({mtu})" for name, mtu in first.mtus.items()),
        "shared huge pages": first.huge_pages_text,
        "TCP controlled by": first.congestion,
        "settings": "\n".join(f"{name}={value}" for name, value in facts.settings.items()) or "the library's defaults",
        "CUDA-aware": facts.probed.why if facts.probed else "not tried, as no rank has a GPU",
        "device memory": facts.device_memory.why if facts.device_memory and facts.device_memory != facts.probed else "",
    }


RANK_COLUMNS: dict[str, Callable[[RankFacts], str]] = {
    "rank": lambda rank: str(rank.rank),
    "host": lambda rank: rank.host,
    "local rank": lambda rank: (
        f"{rank.local_rank} of {rank.local_size} / "
        f"{'-' if rank.launched_local_rank is None else rank.launched_local_rank}"
    ),
    "cores": lambda rank: format_numbers(rank.cores),
    "BLAS threads": lambda rank: str(rank.blas_threads),
    "GPU": lambda rank: (
        f"{rank.gpu.number}: {rank.gpu.name}, {rank.gpu.address}"
        if rank.gpu
        else (rank.gpu_problem or "-").partition(" (")[0]
    ),
}


MOST_PAIRS = 20  # in a table


def show_links(screen: Console, links: Sequence[Link], hosts: Sequence[str], transport: str) -> dict[str, Any]:
    """Print the worst pairs, usual values and outliers. Returns the report, for ``simulate --network FILE``."""
    pairs, found = sorted(pairs_of(links, hosts), key=lambda pair: -pair.slowdown), outliers(links, hosts)
    ranks_per_host = [hosts.count(host) for host in dict.fromkeys(hosts)]
    columns = {"ranks": PAIR_COLUMNS["ranks"], "hosts": lambda pair: pair.where, **PAIR_COLUMNS}
    columns |= {"slowdown": lambda pair: f"{pair.slowdown:.2f}"}
    del columns["memory"]
    title = f"{format_hosts(ranks_per_host)}, over {transport}"
    screen.print(table([pairs[:MOST_PAIRS]], columns, left=("ranks", "hosts"), title=title))
    if left := len(pairs[MOST_PAIRS:]):
        screen.print(f"left out: {plural(left, 'pair')} less slow than these; --json has all")
    legend = (
        f"{links[0].path} memory, one pair at a time, the worst first; {explained(links)}; slowdown: the worst of "
        "these figures over the median of the pairs inside hosts, or of those between them\n"
    )
    screen.print(legend, style="dim", soft_wrap=True)
    for kind, rows in by_kind(links, hosts).items():
        screen.print(f"{kind}: {plural(len(rows) // 2, 'pair')}, {usual(rows)}", soft_wrap=True)
    show_findings(screen, found)
    if not found and len(pairs) > 1:
        screen.print("no host, rank or pair stands out", style="green")
    return {
        "transport": transport,
        "hosts": ranks_per_host,
        "ranks": [{"rank": rank, "host": host} for rank, host in enumerate(hosts)],
        "links": [asdict(row) for row in links],
        "findings": [asdict(finding) for finding in found],
    }


def usual(rows: Sequence[Link]) -> str:
    """Return each measure's median, and its range from the best to the worst."""
    said = []
    for name, measure in MEASURES.items():
        costs = [measure.cost(row) for row in rows]
        middle, best, worst = (measure.shown(pick(costs)) for pick in (median, min, max))
        said.append(f"{name} {middle} ({best} to {worst})")
    return ", ".join(said)
