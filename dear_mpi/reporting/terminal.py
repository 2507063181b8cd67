"""What people see on a terminal, and what a file gets instead. Rank 0 alone shows anything."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dear_mpi.ranks.world import World
from dear_mpi.reporting.screen import columns_of

PLUS_MINUS = "± is the distance to the farther end of the 95 % interval"
FILE_COLUMNS = 1000  # of a file: no table is cut or wrapped
REDRAW_S = 0.2


def console(world: World | None = None, *, stderr: bool = False) -> Console:
    """Where this rank writes: nowhere, unless it is rank 0. A file gets no styles, and tables as wide as they are."""
    columns = columns_of(sys.stderr if stderr else sys.stdout)
    asked = os.environ.get("COLUMNS", "")
    return Console(
        quiet=world is not None and world.rank != 0,
        stderr=stderr,
        highlight=False,
        force_terminal=columns is not None,
        width=int(asked) if asked.isdigit() else columns or FILE_COLUMNS,
    )


class WholeLines(Progress):
    """Each frame ends with a new line, and the next one begins above it: Open MPI's launcher forwards whole lines."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield ""


@contextmanager
def bar(world: World | None, total: int, note: str) -> Iterator[Callable[[str], object]]:
    """A progress bar on a terminal, if there is one; the call advances it by one and replaces the note.

    It is drawn by these calls alone, and seldom: a thread that draws would disturb what is measured.
    """
    screen = console(world)  # where the tables go, too, so that both arrive in order
    screen = screen if screen.is_terminal else console(world, stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = screen.quiet or not screen.is_terminal
    with WholeLines(*columns, console=screen, transient=True, auto_refresh=False, disable=hidden) as progress:
        task = progress.add_task(note, total=total)
        screen.show_cursor(True)  # a job that is killed would leave it hidden
        drawn = time.monotonic()

        def advance(note: str) -> None:
            nonlocal drawn
            due = time.monotonic() - drawn >= REDRAW_S
            progress.update(task, advance=1, description=note, refresh=due)
            drawn = time.monotonic() if due else drawn

        yield advance


def interval(value: float, low: float, high: float, unit: float, digits: int) -> str:
    """A value with the reach of its interval, which ``PLUS_MINUS`` explains.

    >>> interval(0.010, 0.009, 0.013, 1e3, 1)
    '10.0 ±3.0'
    """
    return f"{value * unit:.{digits}f} ±{max(value - low, high - value) * unit:.{digits}f}"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
