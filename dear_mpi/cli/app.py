"""Train with DeAR and other communication schedules, and time, explain and simulate collectives and training runs.

Under mpirun, every rank runs the command, and rank 0 alone prints. Wrong input ends all ranks with exit code 2.
"""

import os
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from dear_mpi.cli.advise import advise
from dear_mpi.cli.bench import bench
from dear_mpi.cli.bench_diff import bench_diff
from dear_mpi.cli.bench_kernels import bench_kernels
from dear_mpi.cli.blame import blame
from dear_mpi.cli.compare import compare
from dear_mpi.cli.demo import demo
from dear_mpi.cli.doctor import doctor
from dear_mpi.cli.explain import explain
from dear_mpi.cli.flags import PanelledCommand, as_switch
from dear_mpi.cli.links import links
from dear_mpi.cli.plot import plot
from dear_mpi.cli.run import WITHOUT_WORK, check_all_ask, complain
from dear_mpi.cli.simulate import simulate
from dear_mpi.cli.timeline import timeline
from dear_mpi.cli.train import train
from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.reporting.terminal import console

HELP_COLUMNS = 120

# To add a command, write its file and its line here.
COMMANDS: dict[str, Callable[..., None]] = {
    "train": train,
    "compare": compare,
    "demo": demo,
    "bench": bench,
    "bench-diff": bench_diff,
    "plot": plot,
    "timeline": timeline,
    "blame": blame,
    "bench-kernels": bench_kernels,
    "doctor": doctor,
    "links": links,
    "explain": explain,
    "simulate": simulate,
    "advise": advise,
}

# Flags of nccl-tests and of OSU's benchmarks, and what ``bench`` has for them.
SIZES = "--sizes 8B:128MiB:x2 (nccl-tests: -b 8 -e 128M -f 2; OSU: -m 8:134217728)"
INSTEAD = dict.fromkeys(("-b", "-e", "-f", "-m", "--minbytes", "--maxbytes", "--stepfactor"), SIZES)
INSTEAD |= {"--datatype": "--dtype", "-d": "--dtype (nccl-tests: -d) or --device (OSU: -d)", "-o": "--op"}
INSTEAD |= dict.fromkeys(("-n", "--iters"), "--iterations")
INSTEAD |= {"-i": "--iterations (OSU: -i) or --sizes with a step (nccl-tests: -i)"}
INSTEAD |= {"-w": "--warmup", "-x": "--warmup"} | dict.fromkeys(
    ("-g", "-t"), "--threads, or mpirun (nccl-tests: -g, -t)"
)

UsageError: type[Any] = typer.BadParameter.__bases__[0]  # of the click that this Typer brings or uses


class Commands(TyperGroup):
    """Help, the version, and flags that cannot be read: told by one rank.

    After a wrong flag, ``__main__.py`` lets the ranks of a job meet through MPI, so that all end together.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        return [as_switch(flag) for flag in super().get_params(ctx)]

    def main(self, *given: Any, **how: Any) -> Any:
        arguments = given[0] if given else how.get("args")
        arguments = sys.argv[1:] if arguments is None else arguments
        launch = launch_of(os.environ)
        rank = launch.rank
        if launch.size > 1 and (not arguments or not set(WITHOUT_WORK).isdisjoint(arguments)):
            check_all_ask(arguments)
            if rank > 0:
                sys.exit(0)
        if not arguments or "--help" in arguments:
            fit_help_to_screen()
        try:
            sys.exit(super().main(*given, **how | {"standalone_mode": False}))
        except UsageError as error:
            said = ""
            if error.message or hasattr(error, "param"):  # not so where help was shown because nothing was asked for
                where = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
                said = f"{error.format_message().rstrip('.')}{typed_for(error, arguments)}"
                instead = INSTEAD.get(getattr(error, "option_name", ""), "") if "bench" in arguments[:1] else ""
                said += f": use {instead}" * bool(instead) + where
                complain(said, rank)
            raise SystemExit(2) from ValueError(said)  # for ``__main__.py``: without the flag its own text tells little


def typed_for(error: Any, arguments: Sequence[str]) -> str:
    """What was typed for the flag that an error is about, if the error does not say it: not all Typers do."""
    names = getattr(getattr(error, "param", None), "opts", ())
    typed = [value for name, value in pairwise(arguments) if name in names]
    typed += [each.partition("=")[2] for each in arguments if each.partition("=")[0] in names and "=" in each]
    return f", not {typed[-1]!r}" if typed and repr(typed[-1]) not in error.format_message() else ""


def fit_help_to_screen() -> None:
    """Let help come as the tables do: plain in a file."""
    from typer import rich_utils  # for help alone: it takes longer to import than a small simulation runs

    screen = console()
    rich_utils.FORCE_TERMINAL = screen.is_terminal
    rich_utils.MAX_WIDTH = screen.width if "COLUMNS" in os.environ else min(screen.width, HELP_COLUMNS)


app = typer.Typer(cls=Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
for name, command in COMMANDS.items():
    app.command(name, cls=PanelledCommand)(command)


def show_version(asked: bool) -> None:
    if asked:
        print(f"dear-mpi {sys.modules['dear_mpi'].__version__}")  # the package is in no room: nothing here imports it
        raise typer.Exit


VERSION = Option("--version", is_eager=True, callback=show_version, help="Show the version.")


@app.callback(help=__doc__)
def options(version: Annotated[bool, VERSION] = False) -> None: ...
