"""All that is known about a job: plain values, gathered on every rank, so that tests can make them up."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from dear_mpi.collectives.cuda_aware import Verdict, decide, queries
from dear_mpi.collectives.mpi_facts import MpiFacts, loaded
from dear_mpi.collectives.transport import Transport
from dear_mpi.doctor.gpus import Gpu
from dear_mpi.doctor.launcher import Launch

__all__ = ["Facts", "LinkFacts", "RankFacts", "gather_facts", "rank_facts"]

# What decides how messages travel, where somebody has set it.
SETTINGS = (
    *("OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_mtl", "OMPI_MCA_smsc", "OMPI_MCA_opal_cuda_support"),
    *("OMPI_MCA_opal_common_ucx_tls", "OMPI_MCA_opal_common_ucx_devices"),
    *("UCX_TLS", "UCX_NET_DEVICES", "FI_PROVIDER", "MPICH_GPU_SUPPORT_ENABLED", "MPIR_CVAR_ENABLE_GPU"),
    *("MPIR_CVAR_CH4_NETMOD", "I_MPI_FABRICS", "I_MPI_OFFLOAD", "CUDA_VISIBLE_DEVICES"),
)
BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class RankFacts:
    """One rank. ``gpu_problem`` says why it has no GPU, ``cma_error`` why it cannot read a neighbour's memory."""

    rank: int
    host: str
    local_rank: int
    local_size: int
    launched_local_rank: int | None
    cores: tuple[int, ...]
    host_cores: int
    blas_threads: int
    gpu: Gpu | None = None
    gpu_problem: str | None = None
    cma_error: str | None = None


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


@dataclass(frozen=True)
class Facts:
    """The job. Without an MPI that can be used, ``problem`` says why, and ``ranks`` holds this process alone."""

    launch: Launch
    mpi: MpiFacts | None
    ranks: list[RankFacts]
    problem: str | None = None
    device: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    ucx: str | None = None
    ucx_cuda: bool = False
    queries: Mapping[str, bool | str | None] = field(default_factory=dict)
    probed: Verdict | None = None
    device_memory: Verdict | None = None
    links: list[LinkFacts] = field(default_factory=list)


def rank_facts(rank: int, launch: Launch, mpi: MpiFacts | None, gpu: Gpu | str | None) -> RankFacts:
    """What this process knows about itself; ``gpu`` is one, or why there is none."""
    return RankFacts(
        rank=rank,
        host=os.uname().nodename if mpi is None else mpi.host,
        local_rank=0 if mpi is None else mpi.node_rank,
        local_size=1 if mpi is None else mpi.node_size,
        launched_local_rank=launch.local_rank,
        cores=tuple(sorted(os.sched_getaffinity(0))),
        host_cores=os.cpu_count() or 1,
        blas_threads=blas_threads(os.environ, len(os.sched_getaffinity(0))),
        gpu=gpu if isinstance(gpu, Gpu) else None,
        gpu_problem=gpu if isinstance(gpu, str) else None,
    )


def blas_threads(environment: Mapping[str, str], cores: int) -> int:
    """How many threads NumPy's linear algebra starts in a process: as it is told, else one on each core it may use.

    >>> blas_threads({"OMP_NUM_THREADS": "2,1"}, 8), blas_threads({}, 8)
    (2, 8)
    """
    values = [environment.get(name, "").partition(",")[0] for name in BLAS_VARIABLES]
    return next((int(value) for value in values if value.isdigit() and int(value) > 0), cores)


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in SETTINGS if name in environment}


def gather_facts(
    transport: Transport, launch: Launch, mpi: MpiFacts, gpu: Gpu | str | None, *, device: str | None, override: str
) -> Facts:
    """Collective: the facts of all ranks, without the links."""
    from dear_mpi.collectives.mpi_transport import world_communicator  # imports MPI, which this module must not

    comm = world_communicator()
    mine = rank_facts(transport.rank, launch, mpi, gpu)
    blocked = cma_error(transport, mine.host)
    ranks: list[RankFacts] = transport.gather_values(RankFacts(**vars(mine) | {"cma_error": blocked}))
    probed = decide(comm) if any(rank.gpu for rank in ranks) else None
    return Facts(
        launch=launch,
        mpi=mpi,
        ranks=ranks,
        device=device,
        settings=settings(os.environ),
        ucx=loaded("libucp"),
        ucx_cuda=loaded("libuct_cuda") is not None,
        queries=queries(comm),
        probed=probed,
        device_memory=decide(comm, override) if probed and override != "auto" else probed,
    )


def cma_error(transport: Transport, host: str) -> str | None:
    """Collective: why this rank cannot read the memory of another rank of its host; None where it can, or is alone.

    MPI libraries move large messages between processes of a host by one copy (process_vm_readv, "CMA"), which needs
    the right to trace them; containers often lack it.
    """
    there = ctypes.create_string_buffer(b"marvello")
    places = transport.gather_values((host, os.getpid(), ctypes.addressof(there)))
    others = [(pid, address) for at, pid, address in places if at == host and pid != os.getpid()]
    error = read_other(*others[0]) if others else None
    transport.gather_values(None)  # nobody's buffer goes before all have read
    return error


class Vector(ctypes.Structure):
    """C's struct iovec."""

    _fields_ = (("base", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


def read_other(pid: int, address: int) -> str | None:
    """Read 8 bytes of another process; the error if that fails."""
    here = ctypes.create_string_buffer(8)
    to, origin = Vector(ctypes.addressof(here), 8), Vector(address, 8)
    read = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
    if read is None:
        return None
    count = read(pid, ctypes.byref(to), ctypes.c_ulong(1), ctypes.byref(origin), ctypes.c_ulong(1), ctypes.c_ulong(0))
    return None if count == 8 else os.strerror(ctypes.get_errno())
