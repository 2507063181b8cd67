"""Run training jobs for several commands."""

from collections.abc import Callable
from typing import Any

from dear_mpi.cli.files import Written
from dear_mpi.cli.flags import RUN_FLAGS, Flags, chosen, flags_of, shared
from dear_mpi.cli.run import run_ranks
from dear_mpi.ranks.world import World
from dear_mpi.training.runs.config import Config

JOB_FLAGS = flags_of(Config) | RUN_FLAGS | shared("timeline")


def run_job(command: Callable[[World, Config], Any], flags: Flags, written: Written = ()) -> None:
    """Call ``command`` on every rank of the flags' training job; rank 0 checks the files first."""
    config = Config.of(chosen(Config, flags))
    if config.device == "cpu" and "device_memory" in flags:
        raise ValueError("--device-memory does not apply to the device 'cpu'")
    others = [(flag, path) for flag, path in written if flag != "--json"]
    run_ranks(lambda world: command(world, config), flags, device=config.device, others=others)
