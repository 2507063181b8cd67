"""The command ``dear-mpi train``."""

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from dear_mpi.cli.flags import JOB_FLAGS, Flags, parameter, with_flags
from dear_mpi.cli.run import complaining, run_job
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import bar
from dear_mpi.see.tables import show_training
from dear_mpi.training.config import Config
from dear_mpi.training.train import Saving
from dear_mpi.training.train import train as run_training

__all__ = ["train", "train_and_show"]

Save = Annotated[Path | None, Option("--save", metavar="FILE", help="Write a checkpoint when training is over.")]
Every = Annotated[int | None, Option(min=1, help="And one each N iterations.", metavar="N", show_default="none")]
Resume = Annotated[bool, Option("--resume", help="Go on from the checkpoint FILE, on any number of ranks.")]
TRAIN_FLAGS = JOB_FLAGS | {
    "save": parameter("save", Save),
    "every": parameter("every", Every),
    "resume": parameter("resume", Resume, False),
}


@with_flags(TRAIN_FLAGS)
def train(flags: Flags) -> None:
    """Train a model with one communication schedule.

    Example: mpirun -n 4 dear-mpi train --model cnn --data digits --schedule dear
    """
    with complaining(mpi="threads" not in flags):
        saving = saving_of(flags)
    run_job(lambda world, config: train_and_show(world, config, saving), flags)


def saving_of(flags: Flags) -> Saving | None:
    """What the flags say about checkpoints.

    Raises:
        ValueError: one of them has no file.
    """
    if "save" in flags:
        if flags.get("json_file") is not None and flags["save"].resolve() == flags["json_file"].resolve():
            raise ValueError(f"--save and --json must be different files, not both {str(flags['save'])!r}")
        return Saving(flags["save"], flags.get("every"), flags.get("resume", False))
    for name in ("every", "resume"):
        if name in flags:
            raise ValueError(f"--{name} needs --save FILE, the checkpoint")
    return None


def train_and_show(world: World, config: Config, saving: Saving | None = None) -> dict[str, Any]:
    what = f"{config.model}, {config.schedule}"
    with bar(world, config.iterations, what) as advance:
        report = run_training(config, world, lambda _, loss: advance(f"{what}, loss {loss:.4f}"), saving)
    show_training(world, report)
    return report
