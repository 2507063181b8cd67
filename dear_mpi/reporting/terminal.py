"""Show output on a terminal, or its plain form in a file, on rank 0."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from dear_mpi.collectives.launch.launcher import OPEN_MPI, launch_of, launcher_process
from dear_mpi.reporting.files import printable

if TYPE_CHECKING:
    from dear_mpi.ranks.world import World

T = TypeVar("T")

PLUS_MINUS = "± is the distance to the farther end of the 95 % interval"
UNKNOWN_COLUMNS = 80
FILE_COLUMNS = 1000  # columns of a file: no table is cut or wrapped
REDRAW_S = 0.2
COMMENT = "# "


class Screen(Console):
    """Show files' contents literally: ``printable``, no markup."""

    def render_str(self, text: str, **how: Any) -> Text:
        """Escape before a table measures cells."""
        return super().render_str(printable(text), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for each in super().render(renderable, options):
            yield each if each.control else each._replace(text=printable(each.text))


def console(world: World | None = None, *, stderr: bool = False) -> Console:
    """Return this rank's console: silent except on rank 0; in a file, wide and without styles."""
    columns = columns_of(sys.stderr if stderr else sys.stdout)
    asked = os.environ.get("COLUMNS", "")
    return Screen(
        quiet=world is not None and world.rank != 0,
        stderr=stderr,
        highlight=False,
        markup=False,  # in file names
        emoji=False,  # mine.py:x: has no cross
        force_terminal=columns is not None,
        width=int(asked) if asked.isdigit() else columns or FILE_COLUMNS,
    )


def note(world: World | None, text: str) -> None:
    console(world, stderr=True).print(f"note: {text}", soft_wrap=True)


def complain(message: str, rank: int) -> None:
    """Print rank 0's error on one line, for searches."""
    if rank == 0:
        console(stderr=True).print(f"error: {message}", style="bold red", soft_wrap=True)


@contextmanager
def commented(screen: Console) -> Iterator[None]:
    """Print comment lines, which readers of rows skip."""
    width = screen.width
    screen.width = width - len(COMMENT)
    try:
        with screen.capture() as shown:
            yield
    finally:
        screen.width = width
    for line in shown.get().splitlines():
        screen.print(Text.from_ansi(f"{COMMENT}{line}".rstrip()), soft_wrap=True)


def columns_of(stream: TextIO) -> int | None:
    """Return the width of this standard stream's terminal, or None.

    Under a launcher a rank's own streams are no evidence: Open MPI gives each rank a terminal even if output goes to a
    file, and MPICH gives pipes. So this looks up the launcher's in /proc.
    """
    try:
        number, launcher = stream.fileno(), launch_of(os.environ).launcher
        process = None if launcher == "none" else launcher_process()
        if process is None:
            return None if launcher == OPEN_MPI else width_of(number)
        # do not wait for a reader, nor take it as controlling terminal
        opened = os.open(process / "fd" / str(number), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            return width_of(opened)
        finally:
            os.close(opened)
    except OSError:  # no such descriptor, no terminal, or no access
        return None


def width_of(descriptor: int) -> int:
    return os.get_terminal_size(descriptor).columns or UNKNOWN_COLUMNS


def table(
    groups: Iterable[Iterable[T]], columns: Mapping[str, Callable[[T], str]], *, left: Container[str] = (), **look: Any
) -> Table:
    """Return a table with a section per group; ``columns`` maps a head to a row's text, ``look`` goes to rich."""
    made = Table(**look)
    for head in columns:
        widest = max(map(len, head.split()), default=0)  # heads are not folded
        made.add_column(head, justify="left" if head in left else "right", overflow="fold", min_width=widest)
    for group in groups:
        made.add_section()
        for row in group:
            made.add_row(*(text(row) for text in columns.values()))
    return made


def listing(rows: Mapping[str, str | None], **look: Any) -> Table:
    said = [(name, text) for name, text in rows.items() if text]
    columns: dict[str, Callable[[tuple[str, str]], str]] = {"name": itemgetter(0), "said": itemgetter(1)}
    return table([said], columns, left=columns, show_header=False, **look)


class Advance(Protocol):
    def __call__(self, note: str, *, at: int | None = None, above: str = "") -> None:
        """Advance by one, or to ``at``; replace the note; print a line ``above``."""


class WholeLines(Progress):
    """End each frame with a new line: Open MPI's launcher forwards whole lines."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield ""


@contextmanager
def bar(world: World | None, total: int, note: str) -> Iterator[Advance]:
    """Show a progress bar on a terminal; yields a call that advances it, see ``Advance``.

    Only calls draw: a thread would disturb measurements.
    """
    screen = console(world)  # the tables', to keep order
    screen = screen if screen.is_terminal else console(world, stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = screen.quiet or not screen.is_terminal
    with WholeLines(*columns, console=screen, transient=True, auto_refresh=False, disable=hidden) as progress:
        task = progress.add_task(note, total=total)
        screen.show_cursor(True)  # a killed job would leave it hidden
        drawn = time.monotonic()

        def advance(note: str, *, at: int | None = None, above: str = "") -> None:
            nonlocal drawn
            if screen.quiet and world is not None and world.rank == 0:  # rank 0 has died
                screen.quiet, progress.disable = False, not screen.is_terminal
                progress.start()
            if above:
                (console(world, stderr=True) if progress.disable else screen).print(f"note: {above}", soft_wrap=True)
            due = time.monotonic() - drawn >= REDRAW_S
            progress.update(task, advance=1 if at is None else None, completed=at, description=note, refresh=due)
            drawn = time.monotonic() if due else drawn

        yield advance


def interval(value: float, low: float, high: float, unit: float, digits: int) -> str:
    """Format a value ± half its interval (``PLUS_MINUS``).

    >>> interval(0.010, 0.009, 0.013, 1e3, 1)
    '10.0 ±3.0'
    """
    return f"{value * unit:.{digits}f} ±{max(value - low, high - value) * unit:.{digits}f}"


def alike(key: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    return len({row[key] for row in rows}) == 1
