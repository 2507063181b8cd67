"""Train with DeAR and other communication schedules, and time, explain and simulate collectives and training runs.

Under mpirun, every rank runs the command, and only rank 0 prints. Wrong input ends all ranks with exit code 2.
"""

import inspect
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperCommand, TyperGroup

from dear_mpi.cli.commands import WITHOUT_WORK, all_commands, find_command
from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.collectives.program.user_file import load_place
from dear_mpi.reporting.terminal import complain, console

HELP_COLUMNS = 120
UsageError: type[Any] = typer.BadParameter.__bases__[0]  # of Typer's own click


def shown(flags: list[Any]) -> list[Any]:
    """Hide ``--help``, and the types of switches."""
    for flag in flags:
        flag.hidden = flag.hidden or flag.name == "help"
        if getattr(flag, "is_flag", False):  # arguments lack the attribute
            flag.metavar = ""
    return flags


class PlainCommand(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return shown(super().get_params(ctx))


class Commands(TyperGroup):
    """Import a command when it runs: the group knows its name and first help line.

    On unreadable flags rank 0 reports; ``__main__.py`` lets a job's ranks meet through MPI, so that all end.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        return shown(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(all_commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = find_command(cmd_name)
        return None if command is None else PlainCommand(cmd_name, help=command.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        if find_command(args[0]) is None:
            known: Any = all_commands()
            self.commands = known  # Typer suggests names from it
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_command(args[0], rest), rest

    def main(self, args: Sequence[str] | None = None, *given: Any, **how: Any) -> Any:
        words = sys.argv[1:] if args is None else args
        launch = launch_of(os.environ)
        rank = launch.rank
        if launch.size > 1 and (not words or not set(WITHOUT_WORK).isdisjoint(words)):
            from dear_mpi.cli.run import check_all_ask

            check_all_ask(words)
            if rank > 0:
                sys.exit(0)
        if not words or "--help" in words:
            fit_help_to_screen()
        try:
            sys.exit(super().main(list(words), *given, **how | {"standalone_mode": False}))
        except UsageError as error:
            said = ""
            if error.message or hasattr(error, "param"):  # not after help for an empty command line
                where = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
                said = f"{error.format_message().rstrip('.')}{where}"
                complain(said, rank)
            raise SystemExit(2) from ValueError(said)  # click's text lacks the flag


def fit_help_to_screen() -> None:
    """Format help like the tables: plain in a file."""
    from typer import rich_utils  # only for help: its import is slow

    screen = console()
    rich_utils.FORCE_TERMINAL = screen.is_terminal
    rich_utils.MAX_WIDTH = screen.width if "COLUMNS" in os.environ else min(screen.width, HELP_COLUMNS)


def load_command(name: str, words: Sequence[str] | None = None) -> Any:
    """Load a command as Typer runs it; with extras' flags, unless ``words`` have only flags of core."""
    command = find_command(name)
    assert command is not None, "only commands that were found are loaded"
    function = load_place(command.place)(name, words)
    alone = typer.Typer(add_completion=False)
    more = inspect.getdoc(function)
    alone.command(name, cls=PlainCommand, help=f"{command.help}\n\n{more}" if more else command.help)(function)
    return typer.main.get_command(alone)


app = typer.Typer(cls=Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


def show_version(asked: bool) -> None:
    if asked:
        print(f"dear-mpi {sys.modules['dear_mpi'].__version__}")  # imported by ``__main__``
        raise typer.Exit


VERSION = Option("--version", is_eager=True, callback=show_version, help="Show the version.")


@app.callback(help=__doc__)
def options(version: Annotated[bool, VERSION] = False) -> None: ...
