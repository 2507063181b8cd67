"""Run ``dear-mpi train``."""

from functools import partial
from pathlib import Path
from typing import Any

from dear_mpi.cli.commands import typed_acts
from dear_mpi.cli.files import check_files, timeline_writer, written_by
from dear_mpi.cli.flags import Flags, files_of, flag
from dear_mpi.cli.job import JOB_FLAGS, run_job
from dear_mpi.cli.run import with_flags
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import bar, console
from dear_mpi.see.tables import show_training
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import Saving
from dear_mpi.training.runs.train import train as run_training

EVERY = "Also write the checkpoint of --save after every N iterations."
PROFILE = "Write the measured time of each layer to FILE, for simulate --profile."
FLAGS = (
    JOB_FLAGS
    | flag("save", Path | None, "Write a checkpoint after the last iteration.", metavar="FILE")
    | flag("every", int | None, EVERY, min=1, metavar="N", show_default="none")
    | flag("resume", bool, "Continue from the checkpoint of --save, on any number of ranks.", False)
    | flag("profile", Path | None, PROFILE, metavar="FILE")
)


@with_flags(FLAGS)
def train(flags: Flags) -> None:
    """Example: mpirun -n 4 dear-mpi train --model cnn --data digits --schedule dear"""
    check_files(files_of(Config, flags), written_by(flags, save="--save", profile="--profile"))
    how: dict[str, Any] = {"profile": flags.get("profile"), "timeline": timeline_writer(flags)}
    how["observers"] = typed_acts("train", flags)
    if "save" in flags:
        how["saving"] = Saving(flags["save"], flags.get("every"), flags.get("resume", False))
    for name in ("every", "resume"):
        if name in flags and "save" not in flags:
            raise ValueError(f"--{name} needs --save FILE, the checkpoint")
    run_job(partial(train_and_show, **how), flags, written_by(flags))


def train_and_show(world: World, config: Config, **how: Any) -> dict[str, Any]:
    """Train with additional arguments of ``train`` in training/runs/train.py, and show the result."""
    what = f"{config.model}, {config.schedule}"
    with bar(world, config.iterations, what) as advance:
        report = run_training(config, world, lambda _, loss: advance(f"{what}, loss {loss:.4f}"), **how)
    show_training(world, report)
    for name, observer in how.get("observers", {}).items():
        observer.show(console(world), report[name])
    return report
