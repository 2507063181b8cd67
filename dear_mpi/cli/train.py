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
PROFILE = "Write what each layer takes to a file, for simulate."
Profile = Annotated[Path | None, Option("--profile", metavar="FILE", help=PROFILE)]
TRAIN_FLAGS = JOB_FLAGS | {
    "save": parameter("save", Save),
    "every": parameter("every", Every),
    "resume": parameter("resume", Resume, False),
    "profile": parameter("profile", Profile),
}


@with_flags(TRAIN_FLAGS)
def train(flags: Flags) -> None:
    """Train a model with one communication schedule.

    Example: mpirun -n 4 dear-mpi train --model cnn --data digits --schedule dear
    """
    with complaining(mpi="threads" not in flags):
        check_files(flags)
        saving = saving_of(flags)
    run_job(lambda world, config: train_and_show(world, config, saving, flags.get("profile")), flags)


def check_files(flags: Flags) -> None:
    """See that no file is to be written for two ends.

    Raises:
        ValueError: one is.
    """
    taken: dict[Path, str] = {}
    for flag, name in (("--save", "save"), ("--profile", "profile"), ("--json", "json_file")):
        path: Path | None = flags.get(name)
        if path is not None and taken.setdefault(path.resolve(), flag) != flag:
            raise ValueError(f"{taken[path.resolve()]} and {flag} must be different files, not both {str(path)!r}")


def saving_of(flags: Flags) -> Saving | None:
    """What the flags say about checkpoints.

    Raises:
        ValueError: one of them has no file.
    """
    if "save" in flags:
        return Saving(flags["save"], flags.get("every"), flags.get("resume", False))
    for name in ("every", "resume"):
        if name in flags:
            raise ValueError(f"--{name} needs --save FILE, the checkpoint")
    return None


def train_and_show(
    world: World, config: Config, saving: Saving | None = None, profile: Path | None = None
) -> dict[str, Any]:
    what = f"{config.model}, {config.schedule}"
    with bar(world, config.iterations, what) as advance:
        report = run_training(config, world, lambda _, loss: advance(f"{what}, loss {loss:.4f}"), saving, profile)
    show_training(world, report)
    return report
