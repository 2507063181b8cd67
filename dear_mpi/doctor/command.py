"""The command ``dear-mpi doctor``: runs wherever it is started, also where there is no MPI that works."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dear_mpi.collectives.agree import agree
from dear_mpi.collectives.cuda_aware import OVERRIDES
from dear_mpi.collectives.errors import AgreedError
from dear_mpi.collectives.mpi_facts import MpiFacts, mpi_facts, without_pmix
from dear_mpi.doctor.facts import Facts, gather_facts, rank_facts
from dear_mpi.doctor.findings import Finding, findings
from dear_mpi.doctor.gpus import Gpu, take_gpu
from dear_mpi.doctor.launcher import OPEN_MPI, Launch, launch_of
from dear_mpi.doctor.links import measure_links
from dear_mpi.doctor.show import show_doctor
from dear_mpi.kernels.choose import choose
from dear_mpi.units import parse_bytes
from dear_mpi.world import World, run_world

__all__ = ["doctor", "examine"]


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
    wishes = Wishes(device, device_memory, size, json_file)
    try:
        facts = examine(launch, wishes)
    except (ValueError, AgreedError) as error:
        if launch.rank == 0:
            typer.secho(f"error: {error}", fg="red", bold=True, err=True)
        raise typer.Exit(2) from None
    found = findings(facts)
    if speaks(facts):
        show_doctor(facts, found)
        if json_file is not None:
            json_file.write_text(json.dumps(as_object(facts, found), indent=1) + "\n")
    raise typer.Exit(int(any(finding.severity == "broken" for finding in found)))


@dataclass(frozen=True)
class Wishes:
    """The flags."""

    device: str | None = None
    device_memory: str = "auto"
    size: str = "4MiB"
    json_file: Path | None = None

    @property
    def nbytes(self) -> int:
        return parse_bytes(self.size)

    def check(self, *, writes: bool) -> dict[str, Any]:
        """What must be equal on all ranks.

        Args:
            writes: this rank is the one that writes the file.

        Raises:
            ValueError: a flag is not allowed.
        """
        choose("device", self.device or "cpu", {"cpu": None, "cuda": None})
        choose("device_memory", self.device_memory, dict.fromkeys(OVERRIDES))
        if self.nbytes < 1:
            raise ValueError(f"size must be at least 1 B, not {self.size}")
        if writes and self.json_file is not None and not os.access(self.json_file.parent, os.W_OK):
            why = "there is no such folder, or it is read-only"
            raise ValueError(f"--json {str(self.json_file)!r} cannot be written: {why}")
        return {"device": self.device, "device_memory": self.device_memory, "size": self.nbytes}


def examine(launch: Launch, wishes: Wishes) -> Facts:
    """Collective, where there is an MPI: the facts, with links where there are several ranks.

    Raises:
        ValueError: a flag is not allowed.
    """
    wishes.check(writes=False)
    gpu = gpu_of(wishes.device)  # before MPI starts
    mpi, problem = started(launch)
    if mpi is None or not mpi.threads_suffice or mpi.size == 1 < launch.size:
        wishes.check(writes=launch.rank == 0)
        return Facts(launch, mpi, [rank_facts(launch.rank, launch, mpi, gpu)], problem, wishes.device)

    def on_rank(world: World) -> Facts:
        agree(world.transport, "doctor", lambda: wishes.check(writes=world.rank == 0))
        facts = gather_facts(world.transport, launch, mpi, gpu, device=wishes.device, override=wishes.device_memory)
        links = [row for path in paths(facts) for row in measure_links(world.transport, wishes.nbytes, path)]
        return replace(facts, links=links)

    return run_world(on_rank)


def started(launch: Launch) -> tuple[MpiFacts | None, str | None]:
    """Start MPI; or say why it cannot be."""
    foreign = without_pmix() if launch.launcher == OPEN_MPI else None
    if foreign is not None:
        return None, f"it is {foreign}, which cannot be started by {launch.launcher}"
    try:
        return mpi_facts(), None
    except (ImportError, RuntimeError) as error:
        return None, " ".join(str(error).split())


def speaks(facts: Facts) -> bool:
    """Whether this process prints for all. Where MPI does not work, each of them is MPI's rank 0."""
    return facts.launch.rank == 0 if facts.launch.size > 1 else facts.mpi is None or facts.mpi.rank == 0


def gpu_of(device: str | None) -> Gpu | str | None:
    """The GPU of this rank, or why there is none; None where it is not wanted."""
    if device == "cpu":
        return None
    try:
        return take_gpu()
    except (ValueError, RuntimeError) as error:  # CuPy's errors are RuntimeErrors
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
