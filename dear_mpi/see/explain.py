"""Show an algorithm: its lesson, its steps, what every rank holds after each of them, its cost, and a proof."""

import inspect
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console

from dear_mpi.collectives import programs
from dear_mpi.collectives.algorithms.registry import ALGORITHMS, find_algorithm, runner_of
from dear_mpi.collectives.lowering import phases
from dear_mpi.collectives.program.contract import COLLECTIVES
from dear_mpi.collectives.program.cost import cost
from dear_mpi.collectives.program.network import Network
from dear_mpi.collectives.program.program import Program
from dear_mpi.collectives.program.user_file import is_in_file
from dear_mpi.collectives.program.verify import keeps_rank_order
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.terminal import bar, console
from dear_mpi.reporting.units import plural
from dear_mpi.see.fault import Replayed
from dear_mpi.see.figure import check_figure
from dear_mpi.see.picture import draw_steps
from dear_mpi.see.proof import PROMISES, prove
from dear_mpi.see.steps import phase_lines, step_lines

MOST_RANKS_IN_TABLES = 16
MOST_COLUMNS = 100


def explain_algorithm(
    name: str, collective: str, size: int, *, hosts: int = 1, check: bool = False, picture: Path | None = None
) -> None:
    """Print an algorithm for ``size`` ranks.

    Args:
        hosts: on how many hosts the ranks are, as many on each as possible.
        check: prove it for all numbers of ranks up to ``size``.
        picture: draw it into this file.

    Raises:
        ValueError: a name is unknown, or the picture cannot be drawn.
        ProgramError: the algorithm is wrong; what it does until then has been shown and drawn.
    """
    if picture is not None:
        check_figure("--picture", picture)
    hosts = min(hosts, size)
    layout = [rank * hosts // size for rank in range(size)]
    runner = runner_of(name)
    if ":" not in name and not is_in_file(name) and runner in PROMISES:
        lookup("algorithm", name, ALGORITHMS)  # which have programs, and no others
    written, screen = programs(name, collective, size, hosts=layout), console()
    width = min(screen.width, MOST_COLUMNS)
    subject = phases if runner == "shared" else inspect.getmodule(find_algorithm(name, collective))
    show(screen, *lesson_lines(inspect.getdoc(subject) or "", width), markup=False)
    on_hosts = f" of {hosts} hosts" if hosts > 1 else ""
    screen.print(f"\n{name} {collective} on {plural(size, 'rank')}{on_hosts}", style="bold", markup=False)
    replayed = Replayed.of(written)
    if runner == "shared":
        for line in phase_lines(collective, size):
            show(screen, *textwrap.wrap(line, width, subsequent_indent="      ") or [""])
    else:
        show_messages(screen, replayed, width)
        if replayed.fault is None:
            show(screen, *textwrap.wrap(traffic(written, layout), width))
    if picture is not None:
        draw_steps(name, replayed, picture)
        show(screen, f"Drawn into {picture}", markup=False)
    if replayed.fault is not None:
        raise replayed.fault
    if COLLECTIVES[collective].reduces:
        order = "in the order of the ranks" if keeps_rank_order(written) else "in another order than that of the ranks"
        show(screen, f"Contributions are combined {order}.")
    if check:
        with bar(None, size, "proving") as advance:
            prove(name, collective, layout, advance)
        numbers = f"{'1 to ' * (size > 1)}{plural(size, 'rank')}"
        show(screen, *textwrap.wrap(f"Proved for {numbers}{PROMISES[runner]}", width))


def show(screen: Console, *lines: str, markup: bool = True) -> None:
    for line in lines:
        screen.print(line, markup=markup, soft_wrap=True)


def lesson_lines(text: str, width: int) -> Iterator[str]:
    """A docstring on a screen: paragraphs filled anew, pictures and tables moved to the left as a whole."""
    paragraphs = groupby(text.split("\n\n"), lambda paragraph: paragraph.startswith(" "))
    for drawn, parts in paragraphs:
        if drawn:
            for line in textwrap.indent(textwrap.dedent("\n\n".join(parts)), "  ").splitlines():
                hang = min(line.rfind("  ") + 2, width // 2)  # below the last column of a table
                yield from textwrap.wrap(line, width, subsequent_indent=" " * hang) or [""]
            yield ""
        else:
            for part in parts:
                yield from (*textwrap.wrap(part, width), "")


def show_messages(screen: Console, replayed: Replayed, width: int) -> None:
    """The tables, up to the step that breaks the algorithm."""
    if len(replayed.rows) > MOST_RANKS_IN_TABLES:
        show(screen, f"(The tables are left out: they are shown for up to {MOST_RANKS_IN_TABLES} ranks.)")
    else:
        show(screen, *step_lines(replayed, width))
    show(screen, "")


def traffic(written: Sequence[Program], layout: Sequence[int]) -> str:
    """Messages and bytes per rank, and between hosts, for a buffer of n bytes."""
    count = written[0].chunks << 20
    counted = cost(written, count, 1, Network())
    shares = [nbytes / count for nbytes in counted.nbytes]
    crossing = sum(n for (rank, peer), n in counted.link_nbytes.items() if layout[rank] != layout[peer]) / count
    between = f", {crossing:.4g} n of them between hosts" if layout[-1] else ""
    most = max(range(len(shares)), key=shares.__getitem__)
    return (
        f"{plural(len(written[0].steps), 'step')}. For n bytes, rank {most} sends most: "
        f"{plural(counted.messages[most], 'message')}, "
        f"{shares[most]:.4g} n bytes; all ranks together send {sum(shares):.4g} n bytes{between}."
    )
