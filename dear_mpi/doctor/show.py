"""The doctor's report for people: the job, its ranks, its links, and what was found."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from dear_mpi.doctor.facts import Facts, LinkFacts, RankFacts
from dear_mpi.doctor.findings import Finding
from dear_mpi.reporting import terminal
from dear_mpi.reporting.units import format_bytes, format_hosts, format_numbers, plural

STYLES = {"broken": "bold red", "warning": "yellow", "note": "cyan"}


def show_doctor(facts: Facts, found: Sequence[Finding]) -> None:
    """Print all of it."""
    console = terminal.console()
    console.print(job_table(facts))
    console.print(rank_table(facts.ranks))
    console.print(
        "local rank: counted by shared memory / given by the launcher; cores: those that the rank may use\n",
        style="dim",
        soft_wrap=True,
    )
    if facts.links:
        console.print(link_table(facts.links))
        console.print(link_caption(facts.links[0]) + "\n", style="dim", soft_wrap=True)
    for finding in found:
        console.print(f"[{STYLES[finding.severity]}]{finding.severity}[/]: {escape(finding.text)}", soft_wrap=True)
        if finding.advice:
            console.print(f"    -> {finding.advice}", markup=False, soft_wrap=True)
    if not any(finding.severity != "note" for finding in found):
        console.print("nothing wrong was found", style="green")


def job_table(facts: Facts) -> Table:
    table = Table(title=format_hosts(facts.ranks_per_host), show_header=False)
    table.add_column()
    table.add_column(overflow="fold")  # paths whole
    for name, text in job_rows(facts).items():
        table.add_row(name, escape(text))
    return table


def job_rows(facts: Facts) -> dict[str, str]:
    """What is known about MPI."""
    launch, mpi = facts.launch, facts.mpi
    rows = {"launcher": f"{launch.launcher}, {plural(launch.size, 'rank')}" if launch.size > 1 else launch.launcher}
    if mpi is None:
        return rows | {"MPI library": "none"}
    cuda = "" if facts.ucx_cuda else "not "
    rows |= {
        "MPI library": f"{mpi.library} (MPI {mpi.standard}), sees {plural(mpi.size, 'rank')}",
        "thread level": mpi.thread_level,
        "MPICH device": mpi.device,
        "carries messages": f"{facts.in_use} (in use)" if facts.in_use else "",
        "built with": f"UCX, {facts.ucx}, its CUDA module {cuda}loaded" if facts.ucx else "",
        "shared huge pages": facts.ranks[0].huge_pages_text,
        "TCP controlled by": facts.ranks[0].congestion,
        "settings": "\n".join(f"{name}={value}" for name, value in facts.settings.items()) or "the library's defaults",
        "CUDA-aware, MPI says": "\n".join(f"{name}: {said(answer)}" for name, answer in facts.queries.items()),
        "CUDA-aware, tried out": facts.probed.why if facts.probed else "not tried, as no rank has a GPU",
        "device memory": facts.device_memory.why if facts.device_memory and facts.device_memory != facts.probed else "",
    }
    return {name: text for name, text in rows.items() if text}


def rank_table(ranks: Sequence[RankFacts]) -> Table:
    table = Table()
    for head in ("rank", "host", "local rank", "cores", "BLAS threads", "GPU"):
        table.add_column(head)
    for rank in ranks:
        told = "-" if rank.launched_local_rank is None else rank.launched_local_rank
        problem = (rank.gpu_problem or "-").partition(" (")[0]  # what to do about it is said once, as a finding
        gpu = f"{rank.gpu.number}: {rank.gpu.name}, {rank.gpu.address}" if rank.gpu else problem
        local = f"{rank.local_rank} of {rank.local_size} / {told}"
        table.add_row(
            str(rank.rank), escape(rank.host), local, format_numbers(rank.cores), str(rank.blas_threads), escape(gpu)
        )
    return table


def link_table(links: Sequence[LinkFacts]) -> Table:
    table = Table("ranks", "memory")
    for head in ("latency (us)", "GB/s"):
        table.add_column(head, justify="right")
    for row in sorted(links, key=lambda row: (row.source, row.path != "host")):
        table.add_row(f"{row.source} - {row.dest}", row.path, *spread(row))
    return table


def spread(row: LinkFacts) -> tuple[str, str]:
    """
    >>> from types import SimpleNamespace as Row
    >>> row = Row(latency_us=2.0, latency_low_us=1.8, latency_high_us=2.1, GBps=9.0, GBps_low=4.0, GBps_high=9.5)
    >>> spread(row)
    ('2.0 (1.8 to 2.1)', '9.00 (4.00 to 9.50)')
    """
    latency = f"{row.latency_us:.1f} ({row.latency_low_us:.1f} to {row.latency_high_us:.1f})"
    return latency, f"{row.GBps:.2f} ({row.GBps_low:.2f} to {row.GBps_high:.2f})"


def link_caption(row: LinkFacts) -> str:
    """What the figures are."""
    return (
        f"neighbours in the ring, one pair at a time; latency: half the median of {row.latency_samples} round trips of "
        f"{format_bytes(row.latency_bytes)}; GB/s: from the median of {row.samples} round trips of "
        f"{format_bytes(row.bytes)}; in brackets: the 95 % interval of the median; staged: copied to the host, sent, "
        "and copied back"
    )


def said(answer: bool | str | None) -> str:
    """An answer of the library."""
    return {True: "yes", False: "no", None: "not in this library"}[answer] if not isinstance(answer, str) else answer
