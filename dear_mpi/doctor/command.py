"""The command ``dear-mpi doctor``: runs wherever it is started, also where there is no MPI that works."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dear_mpi.collectives.launch.cuda_aware import OVERRIDES
from dear_mpi.collectives.launch.launcher import OPEN_MPI, Launch, launch_of
from dear_mpi.collectives.launch.mpi_facts import MpiFacts, mpi_facts, without_pmix
from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.doctor.facts import Facts, gather_facts, rank_facts
from dear_mpi.doctor.findings import Finding, findings
from dear_mpi.doctor.links import measure_links
from dear_mpi.doctor.show import show_doctor
from dear_mpi.figures.json_file import json_writer
from dear_mpi.figures.units import parse_bytes
from dear_mpi.kernels.gpu import Gpu, current_gpu
from dear_mpi.kernels.lookup import lookup
from dear_mpi.ranks.streams import STREAMS, select_gpu
from dear_mpi.ranks.world import World, run_world

__all__ = ["doctor", "examine", "look"]


def doctor(
    device: Annotated[str | None, typer.Option(help="cpu or cuda; what there is, if not given.")] = None,
    device_memory: Annotated[
        str, typer.Option(help="How a GPU's memory gets to MPI: auto, direct or staged.")
    ] = "auto",
    size: Annotated[str, typer.Option(help="Messages with which bandwidth is measured.")] = "4MiB",
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON.")] = None,
) -> None:
    """Say what MPI, GPUs and links this job really has, and what to do about what is wrong.

    mpirun -n 4 dear-mpi doctor
    """
    launch = launch_of(os.environ)

    def command(world: World) -> bool:
        write = json_writer(world, json_file if launch.rank == 0 else None)
        facts = examine(world, alone, device_memory=device_memory, nbytes=nbytes)
        found = findings(facts)
        if launch.rank == world.rank == 0:  # without MPI, each is alone in its world
            show_doctor(facts, found)
        write(as_object(facts, found))
        return any(finding.severity == "broken" for finding in found)

    try:
        lookup("device", device or "cpu", STREAMS)
        lookup("device_memory", device_memory, dict.fromkeys(OVERRIDES))
        nbytes = parse_bytes(size)
        if nbytes < 1:
            raise ValueError(f"size must be at least 1 B, not {size}")
        alone = look(launch, device)
        broken = run_world(command, threads=None if alone.usable else 1)
    except (ValueError, AgreedError) as error:
        if launch.rank == 0:
            typer.secho(f"error: {error}", fg="red", bold=True, err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(int(broken))


def look(launch: Launch, device: str | None) -> Facts:
    """What this process finds out by itself; starts MPI, if that can be."""
    gpu = gpu_of(device)  # before MPI starts
    mpi, problem = started(launch)
    return Facts(launch, mpi, [rank_facts(launch.rank, launch, mpi, gpu)], problem, device)


def examine(world: World, alone: Facts, *, device_memory: str, nbytes: int) -> Facts:
    """Collective: the facts of all ranks and of their links; those of this rank, where MPI is not usable."""
    flags = {"device": alone.device, "device_memory": device_memory, "size": nbytes}
    agree(world.transport, "doctor", lambda: flags)
    if not alone.usable:
        return alone
    facts = gather_facts(world, alone, device_memory)
    links = [row for path in paths(facts) for row in measure_links(world.transport, nbytes, path)]
    return replace(facts, links=links)


def started(launch: Launch) -> tuple[MpiFacts | None, str | None]:
    """Start MPI; or say why it cannot be."""
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
    """From which memory to which messages are measured; never so that MPI would crash."""
    on_device = bool(facts.ranks) and all(rank.gpu for rank in facts.ranks)
    if not on_device or facts.device_memory is None or facts.probed is None:
        return ["host"]
    if facts.device_memory.direct:
        return ["host", "device"] if facts.probed.direct else ["host"]
    return ["host", "staged"]


def as_object(facts: Facts, found: list[Finding]) -> dict[str, Any]:
    """For ``--json``."""
    return asdict(facts) | {"findings": [asdict(finding) for finding in found]}
