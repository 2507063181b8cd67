"""What people see on a terminal, and what a file gets instead. Rank 0 alone shows anything."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from dear_mpi.collectives.launch.launcher import OPEN_MPI, launch_of, launcher_process
from dear_mpi.reporting.output import printable, to_nowhere

if TYPE_CHECKING:
    from dear_mpi.ranks.world import World

T = TypeVar("T")

PLUS_MINUS = "± is the distance to the farther end of the 95 % interval"
UNKNOWN_COLUMNS = 80  # of a terminal that does not tell
FILE_COLUMNS = 1000  # of a file: no table is cut or wrapped
REDRAW_S = 0.2
COMMENT = "# "


class Screen(Console):
    """A console on which text of any file commands nothing: ``printable``, and no markup.

    What nobody reads any more, such as behind ``head``, goes nowhere; all else that a command does is done.
    """

    def render_str(self, text: str, **how: Any) -> Text:
        """Before a table measures its cells."""
        return super().render_str(printable(text), **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for each in super().render(renderable, options):
            yield each if each.control else each._replace(text=printable(each.text))

    def on_broken_pipe(self) -> None:
        self.quiet = True
        to_nowhere(self.file)


def console(world: World | None = None, *, stderr: bool = False) -> Console:
    """Where this rank writes: nowhere, unless it is rank 0. A file gets no styles, and tables as wide as they are."""
    columns = columns_of(sys.stderr if stderr else sys.stdout)
    asked = os.environ.get("COLUMNS", "")
    return Screen(
        quiet=world is not None and world.rank != 0,
        stderr=stderr,
        highlight=False,
        markup=False,  # a name in a file may have brackets
        emoji=False,  # the function x in mine.py is mine.py:x: and no cross
        force_terminal=columns is not None,
        width=int(asked) if asked.isdigit() else columns or FILE_COLUMNS,
    )


def note(world: World | None, text: str) -> None:
    """Rank 0 says something beside what was asked for."""
    console(world, stderr=True).print(f"note: {text}", markup=False, soft_wrap=True)


def complain(message: str, rank: int) -> None:
    """Rank 0 says what is wrong: on one line however long it is, so that it can be searched for."""
    if rank == 0:
        console(stderr=True).print(f"error: {message}", style="bold red", markup=False, soft_wrap=True)


@contextmanager
def commented(screen: Console) -> Iterator[None]:
    """What is shown meanwhile comes after it, each line as a comment: readers of rows skip it."""
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
    """How wide the terminal is on which this standard stream is seen; None if it ends elsewhere or that is unknown.

    Under a launcher its own streams do not tell: Open MPI gives each rank a terminal as standard output, whether its
    own goes to one or to a file, and a pipe as standard error; MPICH gives pipes. So the launcher's streams are looked
    at, in /proc. Where that cannot be done, as on another host than the launcher's, we take it that nobody looks on.
    """
    try:
        number, launcher = stream.fileno(), launch_of(os.environ).launcher
        process = None if launcher == "none" else launcher_process()
        if process is None:
            return None if launcher == OPEN_MPI else width_of(number)
        # Opened anew, as it is another process's: without waiting for a reader, and never as our own terminal.
        opened = os.open(process / "fd" / str(number), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            return width_of(opened)
        finally:
            os.close(opened)
    except OSError:  # no such descriptor, no terminal, or a process that we may not look into
        return None


def width_of(descriptor: int) -> int:
    """An OSError says that this is no terminal."""
    return os.get_terminal_size(descriptor).columns or UNKNOWN_COLUMNS


def table(
    groups: Iterable[Iterable[T]], columns: Mapping[str, Callable[[T], str]], *, left: Container[str] = (), **look: Any
) -> Table:
    """A line for each row, a section for each group; figures stand on the right, the columns of ``left`` do not. A
    column has a head, and a text for each row; ``look`` is what else rich's ``Table`` takes."""
    made = Table(**look)
    for head in columns:
        made.add_column(head, justify="left" if head in left else "right", overflow="fold")
    for group in groups:
        made.add_section()
        for row in group:
            made.add_row(*(text(row) for text in columns.values()))
    return made


def listing(rows: Mapping[str, str | None], **look: Any) -> Table:
    """A line for each name of which something is said, and no heads."""
    said = [(name, text) for name, text in rows.items() if text]
    columns: dict[str, Callable[[tuple[str, str]], str]] = {"name": itemgetter(0), "said": itemgetter(1)}
    return table([said], columns, left=columns, show_header=False, **look)


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
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
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


def alike(key: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all rows of a table have the same of it."""
    return len({row[key] for row in rows}) == 1
