"""The command ``dear-mpi compare``: the flags of ``train``, with several schedules instead of one."""

from collections.abc import Sequence
from typing import Annotated, Any

from typer import Option

from dear_mpi.cli.flags import JOB_FLAGS, Flags, listed, parameter, with_flags
from dear_mpi.cli.run import complaining, run_job
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import bar
from dear_mpi.see.tables import show_comparison
from dear_mpi.training.compare import compare as run_comparison
from dear_mpi.training.compare import turns
from dear_mpi.training.config import Config

__all__ = ["compare", "compare_and_show"]

Schedules = Annotated[str, Option(help="Schedules to compare, with commas; speed-ups are over the first one.")]
COMPARE_FLAGS = {"schedules": parameter("schedules", Schedules)} | JOB_FLAGS
del COMPARE_FLAGS["schedule"]


@with_flags(COMPARE_FLAGS, schedules="wfbp,dear", model="synthetic:resnet50")
def compare(flags: Flags) -> None:
    """Time one model under several schedules, which take turns.

    Example: mpirun -n 4 dear-mpi compare --schedules sequential,wfbp,dear --link 1gbit,50us
    """
    with complaining(mpi="threads" not in flags):
        schedules = listed("--schedules", flags["schedules"])
    run_job(lambda world, config: compare_and_show(world, config, schedules), flags)


def compare_and_show(world: World, config: Config, schedules: Sequence[str]) -> list[dict[str, Any]]:
    with bar(world, len(turns(config.iterations)) * len(schedules), config.model) as advance:
        rows = run_comparison(config, world, schedules, lambda name: advance(f"{config.model}, {name}"))
    show_comparison(world, rows)
    return rows
