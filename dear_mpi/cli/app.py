"""Train with DeAR and other communication schedules, measure collectives, and look into them.

Under mpirun, every rank runs the command and rank 0 alone prints. Bad input ends all ranks with exit code 2.
"""

from collections.abc import Callable

import typer

from dear_mpi.cli.bench import bench
from dear_mpi.cli.bench_kernels import bench_kernels
from dear_mpi.cli.compare import compare
from dear_mpi.cli.demo import demo
from dear_mpi.cli.doctor import doctor
from dear_mpi.cli.explain import explain
from dear_mpi.cli.train import train

__all__ = ["COMMANDS", "app"]

# To add a command, write its file and its line here.
COMMANDS: dict[str, Callable[..., None]] = {
    "train": train,
    "compare": compare,
    "demo": demo,
    "bench": bench,
    "bench-kernels": bench_kernels,
    "doctor": doctor,
    "explain": explain,
}

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
for name, command in COMMANDS.items():
    app.command(name)(command)
