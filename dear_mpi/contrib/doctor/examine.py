"""Start MPI if possible, gather each rank's facts, and measure links."""

import os
import sys
from collections import Counter
from collections.abc import Mapping
from ctypes import get_errno
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dear_mpi.bench.machine_file import Link
from dear_mpi.collectives.launch.cuda_aware import DeviceMemory, decide
from dear_mpi.collectives.launch.launcher import OPEN_MPI, Launch
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.shared_memory import HUGE_BYTES, collapse, file_in_memory
from dear_mpi.collectives.transports.wait_policy import Limit, cgroup_limit, machine, own_cores
from dear_mpi.contrib.doctor.library import MpiFacts, mpi_facts, without_pmix
from dear_mpi.contrib.doctor.links import measure_links, neighbours
from dear_mpi.kernels.array import Gpu, current_gpu
from dear_mpi.ranks.host import CONGESTION, read, system, versions
from dear_mpi.ranks.streams import select_gpu
from dear_mpi.ranks.world import World

INTERFACES = Path("/sys/class/net")
UP = ("up", "unknown")  # tunnels that are up report unknown
NAMES = {"python": "Python", "numpy": "NumPy"}  # in the comparison of versions


def software(mpi_library: str | None) -> dict[str, str]:
    """mpi4py only if MPI started."""
    found = {NAMES.get(name, name): version for name, version in versions().items()}
    found |= {"the MPI library": mpi_library, "dear-mpi": str(sys.modules["dear_mpi"].__version__)}
    return {name: version or "none" for name, version in found.items()}


def mtus(folder: Path = INTERFACES) -> dict[str, int]:
    """Return the largest packets, in bytes, of each interface that is up, without loopback."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []  # Linux only
    up = [path for path in found if path.name != "lo" and read(path / "operstate") in UP]
    return {path.name: int(text) for path in up if (text := read(path / "mtu")).isdigit()}


# They decide how messages travel.
SETTINGS = (
    *("OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_mtl", "OMPI_MCA_smsc", "OMPI_MCA_opal_cuda_support"),
    *("OMPI_MCA_opal_common_ucx_tls", "OMPI_MCA_opal_common_ucx_devices"),
    *("UCX_TLS", "UCX_NET_DEVICES", "FI_PROVIDER", "MPICH_GPU_SUPPORT_ENABLED", "MPIR_CVAR_ENABLE_GPU"),
    *("MPIR_CVAR_CH4_NETMOD", "I_MPI_FABRICS", "I_MPI_OFFLOAD", "CUDA_VISIBLE_DEVICES"),
)
BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")


@dataclass(frozen=True)
class RankFacts:
    """``gpu_problem``: the reason for a missing GPU."""

    rank: int
    host: str
    local_rank: int
    local_size: int
    launched_local_rank: int | None
    cores: tuple[int, ...]
    host_cores: int
    blas_threads: int
    huge_pages: bool  # in shared memory
    huge_pages_text: str  # its source
    gpu: Gpu | None = None
    gpu_problem: str | None = None
    congestion: str = ""  # TCP's, if reported
    software: Mapping[str, str] = field(default_factory=dict)  # versions
    kernel: str = ""
    mtus: Mapping[str, int] = field(default_factory=dict)  # of interfaces, in bytes
    machine: str = ""  # with its kernel: several hosts may be one machine
    limit: Limit | None = None  # the cgroup that allows the fewest cores


@dataclass(frozen=True)
class Facts:
    """The facts of a job. Without a usable MPI, ``problem`` has the reason, and ``ranks`` only this process."""

    launch: Launch
    mpi: MpiFacts | None
    ranks: list[RankFacts]
    problem: str | None = None
    device: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    probed: DeviceMemory | None = None
    device_memory: DeviceMemory | None = None
    links: list[Link] = field(default_factory=list)

    @property
    def hosts(self) -> list[int]:
        return list(Counter(rank.host for rank in self.ranks).values())

    @property
    def usable(self) -> bool:
        return self.mpi is not None and self.mpi.threads_suffice and not self.foreign

    @property
    def foreign(self) -> bool:
        """Whether the launcher belongs to another MPI than the library."""
        return self.mpi is not None and self.mpi.size == 1 < self.launch.size


def look(launch: Launch, device: str | None) -> Facts:
    gpu, why = gpu_of(device)  # before MPI starts
    mpi, problem = started(launch)
    huge_pages, huge_pages_text = shared_huge_pages()
    rank = RankFacts(
        rank=launch.rank,
        host=os.uname().nodename if mpi is None else mpi.host,
        local_rank=0 if mpi is None else mpi.node_rank,
        local_size=1 if mpi is None else mpi.node_size,
        launched_local_rank=launch.local_rank,
        cores=tuple(sorted(own_cores())),
        host_cores=os.cpu_count() or 1,
        blas_threads=blas_threads(os.environ, len(own_cores())),
        huge_pages=huge_pages,
        huge_pages_text=huge_pages_text,
        gpu=gpu,
        gpu_problem=why,
        congestion=read(CONGESTION),
        software=software(None if mpi is None else mpi.library),
        kernel=system(),
        mtus=mtus(),
        machine=machine(),
        limit=cgroup_limit(),
    )
    return Facts(launch, mpi, [rank], problem, device)


def started(launch: Launch) -> tuple[MpiFacts | None, str | None]:
    foreign = without_pmix() if launch.launcher == OPEN_MPI else None
    if foreign is not None:
        return None, f"it is {foreign}, which cannot be started by {launch.launcher}"
    try:
        return mpi_facts(), None
    except (ImportError, RuntimeError) as error:
        return None, " ".join(str(error).split())


def gpu_of(device: str | None) -> tuple[Gpu | None, str | None]:
    """Return this rank's GPU, or the reason for its absence; neither if none is requested."""
    if device == "cpu":
        return None, None
    select_gpu()
    try:
        return current_gpu(), None
    except ValueError as error:
        return None, str(error)


def blas_threads(environment: Mapping[str, str], cores: int) -> int:
    """Return the threads of NumPy's linear algebra: as set, else one per usable core.

    >>> blas_threads({"OMP_NUM_THREADS": "2,1"}, 8), blas_threads({}, 8)
    (2, 8)
    """
    values = [environment.get(name, "").partition(",")[0] for name in BLAS_VARIABLES]
    return next((int(value) for value in values if value.isdigit() and int(value) > 0), cores)


def shared_huge_pages(folder: Path = HUGE_PAGES) -> tuple[bool, str]:
    """Return whether plans' shared memory can have huge pages, by a trial, and the kernel's setting.

    With 4 KiB pages messages take up to twice as long if MPI lets the kernel copy them (CMA).
    """
    try:
        descriptor, block = file_in_memory("dear-mpi-doctor", HUGE_BYTES)
        os.close(descriptor)
        why = os.strerror(get_errno()) if collapse(block) else ""
        problem = f"none: MADV_COLLAPSE failed: {why}" if why else ""
    except (OSError, AttributeError) as error:
        problem = f"none: {error}"
    # Brackets mark the active word.
    words = {name: read(folder / name).partition("[")[2].partition("]")[0] for name in ("enabled", "shmem_enabled")}
    said = ", ".join(f"{name} {word}" for name, word in words.items() if word)
    return not problem, f"{problem or 'collapsed on demand'} ({said or 'no such kernel settings'})"


def examine(world: World, alone: Facts, *, device_memory: str, nbytes: int) -> Facts:
    """Collective: gather facts, and measure links (messages of ``nbytes``). Without MPI, only this rank's facts."""
    flags = {"device": alone.device, "device_memory": device_memory, "size": nbytes}
    agree(world.transport, "doctor", lambda: flags)
    if not alone.usable:
        return alone
    comm: Any = world.transport.native
    ranks: list[RankFacts] = world.transport.gather_values(replace(alone.ranks[0], rank=world.rank))
    probed = decide(comm) if any(rank.gpu for rank in ranks) else None
    facts = replace(
        alone,
        ranks=ranks,
        settings={name: os.environ[name] for name in SETTINGS if name in os.environ},
        probed=probed,
        device_memory=decide(comm, device_memory) if probed and device_memory != "auto" else probed,
    )
    ring = neighbours(world.size)
    links = [row for path in paths(facts) for row in measure_links(world.transport, ring, nbytes, path)]
    return replace(facts, links=links)


def paths(facts: Facts) -> list[str]:
    """Return the paths to measure; none that would crash MPI."""
    memory, probed = facts.device_memory, facts.probed
    if memory is None or probed is None or not all(rank.gpu for rank in facts.ranks):
        return ["host"]
    if memory.direct:
        return ["host", "device"] if probed.direct else ["host"]
    return ["host", "staged"]
