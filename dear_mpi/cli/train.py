"""The command ``dear-mpi train``."""

from typing import Any

from dear_mpi.cli.flags import JOB_FLAGS, Flags, with_flags
from dear_mpi.cli.run import run_job
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import bar
from dear_mpi.see.tables import show_training
from dear_mpi.training.config import Config
from dear_mpi.training.train import train as run_training

__all__ = ["train", "train_and_show"]


@with_flags(JOB_FLAGS)
def train(flags: Flags) -> None:
    """Train a model with one communication schedule.

    Example: mpirun -n 4 dear-mpi train --model cnn --data digits --schedule dear
    """
    run_job(train_and_show, flags)


def train_and_show(world: World, config: Config) -> dict[str, Any]:
    what = f"{config.model}, {config.schedule}"
    with bar(world, config.iterations, what) as advance:
        report = run_training(config, world, lambda _, loss: advance(f"{what}, loss {loss:.4f}"))
    show_training(world, report)
    return report
