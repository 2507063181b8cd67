"""Run ``dear-mpi doctor`` anywhere, even without a working MPI."""

import os
from typing import Any

import typer

from dear_mpi.cli.flags import Flags, flag, shared
from dear_mpi.cli.run import run_ranks, with_flags
from dear_mpi.collectives.launch.cuda_aware import OVERRIDES
from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.doctor.examine import examine, look
from dear_mpi.doctor.findings import findings
from dear_mpi.doctor.links import parse_message
from dear_mpi.doctor.show import as_object, show_doctor
from dear_mpi.kernels.lookup import lookup
from dear_mpi.ranks.streams import STREAMS
from dear_mpi.ranks.world import World
from dear_mpi.training.declared import parsed

FLAGS = shared("device_memory", "json_file")
FLAGS |= flag("device", str | None, "What to examine: cpu or cuda.", show_default="cuda on ranks that have a GPU")
FLAGS |= flag("size", str, "Size of the messages that measure bandwidth.")


@with_flags(FLAGS, device_memory="auto", size="1MiB")
def doctor(flags: Flags) -> None:
    """Example: mpirun -n 4 dear-mpi doctor"""
    launch, device, device_memory = launch_of(os.environ), flags.get("device"), flags["device_memory"]

    def command(world: World) -> dict[str, Any]:
        facts = examine(world, alone, device_memory=device_memory, nbytes=nbytes)
        found = findings(facts)
        if launch.rank == world.rank == 0:  # without MPI, each process is rank 0 of a separate world
            show_doctor(facts, found)
        return as_object(facts, found)

    alone = look(launch, device)  # collective: before errors of single ranks, which all ranks share later
    lookup("device", device or "cpu", STREAMS)
    lookup("device_memory", device_memory, OVERRIDES)
    nbytes = parsed("--size", parse_message, flags["size"])
    file = flags.get("json_file") if launch.rank == 0 else None
    report = run_ranks(command, {"json_file": file, "threads": None if alone.usable else 1})
    raise typer.Exit(int(any(finding["severity"] == "broken" for finding in report["findings"])))
