"""All that is known about a job: plain values, so that tests can make them up."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dear_mpi.bench.machine_file import Link
from dear_mpi.collectives.launch.cuda_aware import DeviceMemory
from dear_mpi.collectives.launch.launcher import Launch
from dear_mpi.collectives.launch.mpi_facts import MpiFacts
from dear_mpi.collectives.transports.patience import Limit
from dear_mpi.kernels.gpu import Gpu


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
    links: list[Link] = field(default_factory=list)

    @property
    def ranks_per_host(self) -> list[int]:
        """How many of the ranks each host has."""
        return list(Counter(rank.host for rank in self.ranks).values())

    @property
    def usable(self) -> bool:
        return self.mpi is not None and self.mpi.threads_suffice and not self.foreign

    @property
    def foreign(self) -> bool:
        """Whether the launcher belongs to another MPI than the library."""
        return self.mpi is not None and self.mpi.size == 1 < self.launch.size
