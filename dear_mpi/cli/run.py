"""What commands share: they run on all ranks, write JSON, and end with one line and exit code 2 if input is bad."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import typer

from dear_mpi.cli.flags import Flags, config_of, parsed
from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.collectives.program.errors import AgreedError, ProgramError
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.ranks.streams import select_gpu
from dear_mpi.ranks.world import World, launched_rank, run_world
from dear_mpi.reporting.files import check_writable, replacing
from dear_mpi.reporting.terminal import console
from dear_mpi.reporting.units import parse_link
from dear_mpi.training.config import Config

__all__ = ["check_alone", "complain", "complaining", "run_job", "run_ranks"]


@contextmanager
def complaining(*, mpi: bool) -> Iterator[None]:
    """Turn bad input into one line of rank 0 on standard error, and exit code 2 on all ranks.

    Args:
        mpi: whether to ask MPI, which this may start, who is rank 0; otherwise the launcher's variables say it.
    """
    try:
        yield
    except (ValueError, AgreedError, ProgramError) as error:
        complain(str(error), launched_rank() if mpi else launch_of(os.environ).rank)
        raise typer.Exit(2) from None


def complain(message: str, rank: int) -> None:
    """Say it if this is rank 0: on one line however long it is, so that it can be searched for."""
    if rank == 0:
        console(stderr=True).print(f"error: {message}", style="bold red", markup=False, soft_wrap=True)


def check_alone(what: str, threads: int | None) -> None:
    """Refuse to start what runs in one process as several."""
    if threads is not None and launch_of(os.environ).size > 1:
        raise ValueError(f"{what} runs in one process: start it without mpirun")


def run_ranks(command: Callable[[World], Any], json_file: Path | None, *, device: str = "cpu", **how: Any) -> Any:
    """Call ``command(world)`` as every rank (``how``: see ``run_world``); the result, which rank 0 writes as JSON.

    Before the work it is checked that the file can be written.
    """

    def output(world: World, write: Callable[[Path], object]) -> None:
        """Collective: let rank 0 do something with the file; if it cannot, all ranks raise the same error."""

        def by_rank_0() -> Mapping[str, Any]:
            if json_file is not None and world.rank == 0:
                write(json_file)
            return {}

        agree(world.transport, "output", by_rank_0)

    def on_each_rank(world: World) -> Any:
        output(world, partial(check_writable, "--json"))
        result = command(world)
        output(world, partial(write_json, result))
        return result

    select_gpu(device)
    return run_world(on_each_rank, **how)


def write_json(content: Any, path: Path) -> None:
    with replacing("--json", path) as file:
        file.write_text(json.dumps(content, indent=1) + "\n")


def run_job(command: Callable[[World, Config], Any], flags: Flags) -> None:
    """Call ``command`` as every rank of the training job that the flags ask for."""
    threads = flags.get("threads")
    with complaining(mpi=threads is None):
        check_alone("--threads", threads)
        config = config_of(flags)
        link = parsed("--link", parse_link, flags["link"]) if "link" in flags else None
        if config.device == "cpu" and "device_memory" in flags:
            raise ValueError("device_memory does not apply to the device 'cpu'")
        how = {"device": config.device, "device_memory": flags.get("device_memory", "auto")}
        run_ranks(lambda world: command(world, config), flags.get("json_file"), link=link, threads=threads, **how)
