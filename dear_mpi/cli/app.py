"""Train with DeAR and other communication schedules, and time, explain and simulate collectives and training runs.

Under mpirun, every rank runs the command, and rank 0 alone prints. Wrong input ends all ranks with exit code 2.
"""

import inspect
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from dear_mpi.cli.commands import WITHOUT_WORK, all_commands, find_command
from dear_mpi.cli.panels import PanelledCommand, as_switch
from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.collectives.program.extras import load_place
from dear_mpi.reporting.terminal import complain, console

HELP_COLUMNS = 120

# Flags of nccl-tests and OSU's benchmarks, with the equivalent of ``bench``.
SIZES = "--sizes 8B:128MiB:x2 (nccl-tests: -b 8 -e 128M -f 2; OSU: -m 8:134217728)"
INSTEAD = dict.fromkeys(("-b", "-e", "-f", "-m", "--minbytes", "--maxbytes", "--stepfactor"), SIZES)
INSTEAD |= {"--datatype": "--dtype", "-d": "--dtype (nccl-tests: -d) or --device (OSU: -d)", "-o": "--op"}
INSTEAD |= dict.fromkeys(("-n", "--iters"), "--iterations")
INSTEAD |= {"-i": "--iterations (OSU: -i) or --sizes with a step (nccl-tests: -i)"}
INSTEAD |= {"-w": "--warmup", "-x": "--warmup"} | dict.fromkeys(
    ("-g", "-t"), "--threads, or mpirun (nccl-tests: -g, -t)"
)

UsageError: type[Any] = typer.BadParameter.__bases__[0]  # from the click that this Typer bundles or uses


class Commands(TyperGroup):
    """Load commands lazily, show help and the version, and report unreadable flags from one rank.

    The group knows a command's name and first help line; it imports the rest when the command runs. After a wrong flag,
    ``__main__.py`` lets the ranks of a job meet through MPI, so that all end together.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        return [as_switch(flag) for flag in super().get_params(ctx)]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(all_commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = find_command(cmd_name)
        return None if command is None else PanelledCommand(cmd_name, help=command.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if find_command(args[0]) is None:
            known: Any = all_commands()
            self.commands = known  # Typer suggests names from it
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_command(args[0]), rest

    def main(self, *given: Any, **how: Any) -> Any:
        arguments = given[0] if given else how.get("args")
        arguments = sys.argv[1:] if arguments is None else arguments
        launch = launch_of(os.environ)
        rank = launch.rank
        if launch.size > 1 and (not arguments or not set(WITHOUT_WORK).isdisjoint(arguments)):
            from dear_mpi.cli.run import check_all_ask

            check_all_ask(arguments)
            if rank > 0:
                sys.exit(0)
        if not arguments or "--help" in arguments:
            fit_help_to_screen()
        try:
            sys.exit(super().main(*given, **how | {"standalone_mode": False}))
        except UsageError as error:
            said = ""
            if error.message or hasattr(error, "param"):  # not after help for an empty command line
                where = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
                said = f"{error.format_message().rstrip('.')}{typed_for(error, arguments)}"
                instead = INSTEAD.get(getattr(error, "option_name", ""), "") if "bench" in arguments[:1] else ""
                said += f": use {instead}" * bool(instead) + where
                complain(said, rank)
            raise SystemExit(2) from ValueError(said)  # for ``__main__.py``: without the flag, click's text is unclear


def typed_for(error: Any, arguments: Sequence[str]) -> str:
    """Return the typed flag of an error if its text lacks it: some Typers omit it."""
    names = getattr(getattr(error, "param", None), "opts", ())
    typed = [value for name, value in pairwise(arguments) if name in names]
    typed += [each.partition("=")[2] for each in arguments if each.partition("=")[0] in names and "=" in each]
    return f", not {typed[-1]!r}" if typed and repr(typed[-1]) not in error.format_message() else ""


def fit_help_to_screen() -> None:
    """Format help like the tables: plain in a file."""
    from typer import rich_utils  # only for help: the import takes longer than a small simulation

    screen = console()
    rich_utils.FORCE_TERMINAL = screen.is_terminal
    rich_utils.MAX_WIDTH = screen.width if "COLUMNS" in os.environ else min(screen.width, HELP_COLUMNS)


def load_command(name: str) -> Any:
    """Load a command by name as Typer runs it, with its flags."""
    command = find_command(name)
    assert command is not None, "only commands that were found are loaded"
    function = load_place(command.place)
    alone = typer.Typer(add_completion=False)
    more = inspect.getdoc(function)
    alone.command(name, cls=PanelledCommand, help=f"{command.help}\n\n{more}" if more else command.help)(function)
    return typer.main.get_command(alone)


app = typer.Typer(cls=Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def show_version(asked: bool) -> None:
    if asked:
        print(f"dear-mpi {sys.modules['dear_mpi'].__version__}")  # ``__main__`` imported the package; nothing here does
        raise typer.Exit


VERSION = Option("--version", is_eager=True, callback=show_version, help="Show the version.")


@app.callback(help=__doc__)
def options(version: Annotated[bool, VERSION] = False) -> None: ...
