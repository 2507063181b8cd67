"""All that is known about a job: plain values, gathered on every rank, so that tests can make them up."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dear_mpi.collectives.launch.cuda_aware import DeviceMemory, decide
from dear_mpi.collectives.launch.launcher import Launch
from dear_mpi.collectives.launch.mpi_facts import MpiFacts, loaded, queries
from dear_mpi.collectives.transports.patience import Limit, cgroup_limit, machine, own_cores
from dear_mpi.doctor.huge_pages import shared_huge_pages
from dear_mpi.doctor.in_use import in_use
from dear_mpi.doctor.settings import read
from dear_mpi.kernels.gpu import Gpu
from dear_mpi.ranks.world import World

# Settings that decide how messages travel, where they are set.
SETTINGS = (
    *("OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_mtl", "OMPI_MCA_smsc", "OMPI_MCA_opal_cuda_support"),
    *("OMPI_MCA_opal_common_ucx_tls", "OMPI_MCA_opal_common_ucx_devices"),
    *("UCX_TLS", "UCX_NET_DEVICES", "FI_PROVIDER", "MPICH_GPU_SUPPORT_ENABLED", "MPIR_CVAR_ENABLE_GPU"),
    *("MPIR_CVAR_CH4_NETMOD", "I_MPI_FABRICS", "I_MPI_OFFLOAD", "CUDA_VISIBLE_DEVICES"),
)
BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")


@dataclass(frozen=True)
class RankFacts:
    """One rank; ``gpu_problem`` says why it has no GPU."""

    rank: int
    host: str
    local_rank: int
    local_size: int
    launched_local_rank: int | None
    cores: tuple[int, ...]
    host_cores: int
    blas_threads: int
    huge_pages: bool  # whether memory that it shares can have them
    huge_pages_text: str  # and how that is known
    gpu: Gpu | None = None
    gpu_problem: str | None = None
    congestion: str = ""  # TCP's congestion control, if the kernel says it
    machine: str = ""  # whose kernel schedules it: several hosts may be one machine
    limit: Limit | None = None  # the cgroup that allows it the fewest cores


@dataclass(frozen=True)
class LinkFacts:
    """Two neighbours in the ring, measured; ``path`` is host, device (handed to MPI) or staged."""

    source: int
    dest: int
    path: str
    latency_us: float
    latency_bytes: int
    latency_samples: int
    GBps: float
    bytes: int
    samples: int
    latency_low_us: float  # ends of the 95 % intervals
    latency_high_us: float
    GBps_low: float
    GBps_high: float


@dataclass(frozen=True)
class Facts:
    """The job. Without an MPI that can be used, ``problem`` says why, and ``ranks`` holds this process alone."""

    launch: Launch
    mpi: MpiFacts | None
    ranks: list[RankFacts]
    problem: str | None = None
    device: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    in_use: str | None = None  # what carries messages, if that is known
    ucx: str | None = None
    ucx_cuda: bool = False
    queries: Mapping[str, bool | str | None] = field(default_factory=dict)
    probed: DeviceMemory | None = None
    device_memory: DeviceMemory | None = None
    links: list[LinkFacts] = field(default_factory=list)

    @property
    def ranks_per_host(self) -> list[int]:
        """How many of the ranks each host has."""
        return list(Counter(rank.host for rank in self.ranks).values())

    @property
    def usable(self) -> bool:
        """Whether the ranks can talk over MPI."""
        return self.mpi is not None and self.mpi.threads_suffice and not self.foreign

    @property
    def foreign(self) -> bool:
        """Whether the launcher belongs to another MPI than the library."""
        return self.mpi is not None and self.mpi.size == 1 < self.launch.size


def rank_facts(rank: int, launch: Launch, mpi: MpiFacts | None, gpu: Gpu | str | None) -> RankFacts:
    """What this process knows about itself; ``gpu`` is one, or why there is none."""
    huge_pages, huge_pages_text = shared_huge_pages()
    return RankFacts(
        rank=rank,
        host=os.uname().nodename if mpi is None else mpi.host,
        local_rank=0 if mpi is None else mpi.node_rank,
        local_size=1 if mpi is None else mpi.node_size,
        launched_local_rank=launch.local_rank,
        cores=tuple(sorted(own_cores())),
        host_cores=os.cpu_count() or 1,
        blas_threads=blas_threads(os.environ, len(own_cores())),
        huge_pages=huge_pages,
        huge_pages_text=huge_pages_text,
        gpu=gpu if isinstance(gpu, Gpu) else None,
        gpu_problem=gpu if isinstance(gpu, str) else None,
        congestion=read(CONGESTION),
        machine=machine(),
        limit=cgroup_limit(),
    )


def blas_threads(environment: Mapping[str, str], cores: int) -> int:
    """How many threads NumPy's linear algebra starts in a process: as it is told, else one on each core it may use.

    >>> blas_threads({"OMP_NUM_THREADS": "2,1"}, 8), blas_threads({}, 8)
    (2, 8)
    """
    values = [environment.get(name, "").partition(",")[0] for name in BLAS_VARIABLES]
    return next((int(value) for value in values if value.isdigit() and int(value) > 0), cores)


def gather_facts(world: World, alone: Facts, override: str) -> Facts:
    """Collective, where MPI is usable: what each rank knows by itself, and what they can only find out together."""
    comm = world.transport.native
    assert comm is not None, "MPI is usable"
    ranks: list[RankFacts] = world.transport.gather_values(replace(alone.ranks[0], rank=world.rank))
    library = "" if alone.mpi is None else alone.mpi.library
    carries = in_use(library) if world.rank == 0 else None
    world.transport.barrier(asleep=True)
    probed = decide(comm) if any(rank.gpu for rank in ranks) else None
    return replace(
        alone,
        ranks=ranks,
        settings={name: os.environ[name] for name in SETTINGS if name in os.environ},
        in_use=world.transport.gather_values(carries)[0],
        ucx=next(iter(loaded("libucp")), None),
        ucx_cuda=bool(loaded("libuct_cuda")),
        queries=queries(comm),
        probed=probed,
        device_memory=decide(comm, override) if probed and override != "auto" else probed,
    )
