"""The doctor's report for people: the job, its ranks, its links, and what was found."""

from collections.abc import Callable, Sequence

from rich.markup import escape

from dear_mpi.bench.machine_file import Link
from dear_mpi.doctor.facts import Facts, RankFacts
from dear_mpi.doctor.findings import Finding
from dear_mpi.reporting.terminal import console, table
from dear_mpi.reporting.units import format_bytes, format_hosts, format_numbers, plural

STYLES = {"broken": "bold red", "warning": "yellow", "note": "cyan"}


def show_doctor(facts: Facts, found: Sequence[Finding]) -> None:
    screen = console()
    job = {"what": lambda item: item[0], "found": lambda item: item[1]}
    title = format_hosts(facts.ranks_per_host)
    screen.print(table([job_rows(facts).items()], job, left=job, title=title, show_header=False))
    screen.print(table([facts.ranks], RANK_COLUMNS, left=RANK_COLUMNS))
    screen.print(
        "local rank: counted by shared memory / given by the launcher; cores: those that the rank may use\n",
        style="dim",
        soft_wrap=True,
    )
    if facts.links:
        links = sorted(facts.links, key=lambda row: (row.source, row.path != "host"))
        screen.print(table([links], LINK_COLUMNS, left=("ranks", "memory")))
        screen.print(link_caption(facts.links[0]) + "\n", style="dim", soft_wrap=True)
    for finding in found:
        screen.print(f"[{STYLES[finding.severity]}]{finding.severity}[/]: {escape(finding.text)}", soft_wrap=True)
        if finding.advice:
            screen.print(f"    -> {finding.advice}", markup=False, soft_wrap=True)
    if not any(finding.severity != "note" for finding in found):
        screen.print("nothing wrong was found", style="green")


def job_rows(facts: Facts) -> dict[str, str]:
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
        else (rank.gpu_problem or "-").partition(" (")[0]  # what to do about it is said once, as a finding
    ),
}
LINK_COLUMNS: dict[str, Callable[[Link], str]] = {
    "ranks": lambda row: f"{row.source} - {row.dest}",
    "memory": lambda row: row.path,
    "latency (us)": lambda row: f"{row.latency_us:.1f} ({row.latency_low_us:.1f} to {row.latency_high_us:.1f})",
    "GB/s": lambda row: f"{row.GBps:.2f} ({row.GBps_low:.2f} to {row.GBps_high:.2f})",
}


def link_caption(row: Link) -> str:
    return (
        f"neighbours in the ring, one pair at a time; latency: half the median of {row.latency_samples} round trips of "
        f"{format_bytes(row.latency_bytes)}; GB/s: from the median of {row.samples} round trips of "
        f"{format_bytes(row.bytes)}; in brackets: the 95 % interval of the median; staged: copied to the host, sent, "
        "and copied back"
    )


def said(answer: bool | str | None) -> str:
    return {True: "yes", False: "no", None: "not in this library"}[answer] if not isinstance(answer, str) else answer
