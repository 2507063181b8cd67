"""Examine a job: start MPI if that can be, gather what all ranks know, and measure their links."""

from dataclasses import asdict, replace
from typing import Any

from dear_mpi.collectives.launch.launcher import OPEN_MPI, Launch
from dear_mpi.collectives.launch.mpi_facts import MpiFacts, mpi_facts, without_pmix
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.doctor.facts import Facts, gather_facts, rank_facts
from dear_mpi.doctor.findings import Finding
from dear_mpi.doctor.links import measure_links
from dear_mpi.kernels.gpu import Gpu, current_gpu
from dear_mpi.ranks.streams import select_gpu
from dear_mpi.ranks.world import World


def look(launch: Launch, device: str | None) -> Facts:
    """What this process finds out by itself. It starts MPI if that is possible."""
    gpu = gpu_of(device)  # before MPI starts
    mpi, problem = started(launch)
    return Facts(launch, mpi, [rank_facts(launch.rank, launch, mpi, gpu)], problem, device)


def examine(world: World, alone: Facts, *, device_memory: str, nbytes: int) -> Facts:
    """Collective: the facts of all ranks and of their links; only this rank's facts, where MPI is not usable."""
    flags = {"device": alone.device, "device_memory": device_memory, "size": nbytes}
    agree(world.transport, "doctor", lambda: flags)
    if not alone.usable:
        return alone
    facts = gather_facts(world, alone, device_memory)
    links = [row for path in paths(facts) for row in measure_links(world.transport, nbytes, path)]
    return replace(facts, links=links)


def started(launch: Launch) -> tuple[MpiFacts | None, str | None]:
    """Start MPI, or say why that is not possible."""
    foreign = without_pmix() if launch.launcher == OPEN_MPI else None
    if foreign is not None:
        return None, f"it is {foreign}, which cannot be started by {launch.launcher}"
    try:
        return mpi_facts(), None
    except (ImportError, RuntimeError) as error:
        return None, " ".join(str(error).split())


def gpu_of(device: str | None) -> Gpu | str | None:
    """The GPU of this rank, or why there is none; None where it is not wanted."""
    if device == "cpu":
        return None
    select_gpu()
    try:
        return current_gpu()
    except ValueError as error:
        return str(error)


def paths(facts: Facts) -> list[str]:
    """The paths on which messages are measured; none on which MPI would crash."""
    on_device = bool(facts.ranks) and all(rank.gpu for rank in facts.ranks)
    if not on_device or facts.device_memory is None or facts.probed is None:
        return ["host"]
    if facts.device_memory.direct:
        return ["host", "device"] if facts.probed.direct else ["host"]
    return ["host", "staged"]


def as_object(facts: Facts, found: list[Finding]) -> dict[str, Any]:
    """For ``--json``."""
    return asdict(facts) | {"hosts": facts.ranks_per_host, "findings": [asdict(finding) for finding in found]}
