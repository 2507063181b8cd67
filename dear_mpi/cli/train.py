"""The command ``dear-mpi train``."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from dear_mpi.cli.files import check_files, written_by
from dear_mpi.cli.flags import JOB_FLAGS, Flags, files_of, parameter, with_flags
from dear_mpi.cli.run import complaining, run_job
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import bar
from dear_mpi.see.tables import show_training
from dear_mpi.see.timeline.write import write_timeline
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import Saving
from dear_mpi.training.runs.train import train as run_training

Save = Annotated[Path | None, Option("--save", metavar="FILE", help="Write a checkpoint after the last iteration.")]
EVERY = "Also write the checkpoint of --save after every N iterations."
Every = Annotated[int | None, Option(min=1, help=EVERY, metavar="N", show_default="none")]
Resume = Annotated[bool, Option("--resume", help="Continue from the checkpoint of --save, on any number of ranks.")]
PROFILE = "Write the measured time of each layer to FILE, for simulate --profile."
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
        written = written_by(flags, save="--save", profile="--profile")
        files = [path for flag, path in written if flag == "--timeline"]
        check_files(files_of(Config, flags), written)
        saving = saving_of(flags)
    how: dict[str, Any] = {"saving": saving, "profile": flags.get("profile"), "timeline": files}
    run_job(partial(train_and_show, **how), flags)


def saving_of(flags: Flags) -> Saving | None:
    """What the flags say about checkpoints; ValueError if one of them has no file."""
    if "save" in flags:
        return Saving(flags["save"], flags.get("every"), flags.get("resume", False))
    for name in ("every", "resume"):
        if name in flags:
            raise ValueError(f"--{name} needs --save FILE, the checkpoint")
    return None


def train_and_show(
    world: World,
    config: Config,
    saving: Saving | None = None,
    profile: Path | None = None,
    timeline: Sequence[Path] = (),
) -> dict[str, Any]:
    show = partial(write_timeline, "--timeline", timeline) if timeline else None
    what = f"{config.model}, {config.schedule}"
    with bar(world, config.iterations, what) as advance:
        report = run_training(
            config, world, lambda _, loss: advance(f"{what}, loss {loss:.4f}"), saving, profile, timeline=show
        )
    show_training(world, report)
    return report
