"""Show an algorithm: its programs step by step, what every rank holds after each step, its cost, and a proof."""

import inspect
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from dear_mpi.collectives import programs, verify
from dear_mpi.collectives.algorithms.registry import find_algorithm, runner_of
from dear_mpi.collectives.lowering.check_instructions import check_instructions
from dear_mpi.collectives.lowering.check_phases import check_phases
from dear_mpi.collectives.lowering.phases import Share, phases
from dear_mpi.collectives.program.contract import COLLECTIVES
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.collectives.program.program import Program
from dear_mpi.collectives.program.replay import Row, members, replay
from dear_mpi.collectives.program.verify import check_shapes, keeps_rank_order, promised
from dear_mpi.reporting.terminal import console
from dear_mpi.reporting.units import plural
from dear_mpi.see.picture import draw_steps

__all__ = ["explain_algorithm"]

MOST_RANKS_IN_TABLES = 12
SEGMENTS = 3  # of a chunk, in a proof: more than may be under way at a time
CUTS = ((SEGMENTS, 1), (1, 2))  # elements of a chunk, and of a segment, which then holds two chunks


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
    """
    screen = console()
    hosts = min(hosts, size)
    layout = [rank * hosts // size for rank in range(size)]
    written = programs(name, collective, size, hosts=layout)
    check_shapes(written)
    rows = replay(written)
    lesson = inspect.getdoc(inspect.getmodule(find_algorithm(name, collective))) or ""
    screen.print(lesson, markup=False, soft_wrap=True)
    on_hosts = f" of {hosts} hosts" if hosts > 1 else ""
    screen.print(f"\n{name} {collective} on {plural(size, 'rank')}{on_hosts}", style="bold", markup=False)
    screen.print(
        "Each cell lists the ranks whose contributions the chunk holds; '-': nothing useful; bold: complete.\n"
    )
    if size > MOST_RANKS_IN_TABLES:
        screen.print(f"(The tables are left out: they are shown for up to {MOST_RANKS_IN_TABLES} ranks.)")
    else:
        for number in range(len(rows[0])):
            screen.print(table(written, rows, number))
    screen.print(traffic(written, layout), soft_wrap=True)
    if COLLECTIVES[collective].reduces:
        order = "in the order of the ranks" if keeps_rank_order(written) else "in another order than that of the ranks"
        screen.print(f"Contributions are combined {order}.")
    if check:
        for ranks in range(1, size + 1):
            for pieces in (1, SEGMENTS):
                proved = programs(name, collective, ranks, hosts=layout[:ranks], pieces=pieces)
                verify(proved)
                PROOFS[runner_of(name)](proved)
        numbers = f"{'1 to ' * (size > 1)}{plural(size, 'rank')}"
        screen.print(f"Proved for {numbers}{PROMISES[runner_of(name)]}", soft_wrap=True)
    if picture is not None:
        draw_steps(written, rows, picture)
        screen.print(f"Drawn into {picture}", markup=False)


def prove_messages(proved: Sequence[Program]) -> None:
    """The instructions of all ranks, however chunks are cut."""
    for length, segment in CUTS:
        check_instructions(proved, range(0, proved[0].chunks * length + 1, length), segment)


def prove_memory(proved: Sequence[Program]) -> None:
    """The phases of all ranks that work in shared memory, in their buffers and by mailboxes."""
    size, collective = len(proved), proved[0].collective
    partition = Partition.of(SEGMENTS * size + 1, size)
    for mailboxes in (True, False):
        shares = [Share(partition, rank, block=2) for rank in range(size)]
        check_phases(collective, shares[0], [phases(collective, share, mailboxes=mailboxes) for share in shares])


# By runner: how that is proved which it runs, and what is then known.
PROOFS = {"messages": prove_messages, "shared": prove_memory}
PROMISES = {
    "messages": f", with {SEGMENTS} segments per chunk and with 2 chunks per segment: every contribution arrives "
    "exactly once, and no rank waits forever, even if each send blocks until it is received.",
    "shared": ", in buffers and by mailboxes: every contribution is combined exactly once, and no rank uses memory "
    "while another one writes there.",
}


def table(written: Sequence[Program], rows: list[list[Row]], number: int) -> Table:
    """What each rank holds before a step, chunk by chunk, and what it then sends."""
    last, complete = number == len(rows[0]) - 1, promised(written[0].collective, len(written))
    heading = "at the end" if last else f"before step {number}"
    result = Table(title=heading, title_justify="left")
    result.add_column("rank", justify="right")
    for chunk in range(written[0].chunks):
        result.add_column(f"chunk {chunk}")
    if not last:
        result.add_column(f"sends in step {number}")
    for program, history in zip(written, rows, strict=True):
        cells = [cell(mask, complete[program.owner(chunk)]) for chunk, mask in enumerate(history[number])]
        sends = [] if last else ["; ".join(map(str, program.steps[number].sends)) or "nothing"]
        result.add_row(str(program.rank), *cells, *sends)
    return result


def cell(mask: int, complete: int) -> str:
    """The contributions in a chunk; bold where it has all of them."""
    text = "+".join(map(str, members(mask))) or "-"
    return f"[bold green]{text}[/]" if mask == complete else text


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
