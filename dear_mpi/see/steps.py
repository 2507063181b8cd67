"""The steps of an algorithm as text: what each rank holds of each chunk, and what is sent, as narrow as the screen."""

import textwrap
from collections.abc import Iterator, Sequence

from dear_mpi.collectives.lowering.phases import Operand, Share, phases
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.collectives.program.program import Program, Send
from dear_mpi.collectives.program.replay import members
from dear_mpi.collectives.program.verify import promised
from dear_mpi.reporting.units import format_numbers
from dear_mpi.see.fault import Replayed

LISTED = "Each cell names the ranks whose contributions the chunk holds on that rank (0-2: of ranks 0, 1 and 2)"
COUNTED = "Each cell counts the ranks whose contributions the chunk holds on that rank"
SENT = "0→1:2 means that rank 0 sends chunk 2 to rank 1; with a +, rank 1 adds it to its own"


def step_lines(replayed: Replayed, width: int) -> Iterator[str]:
    """The legend, then a table at first and after each step, with the markup of rich; what is wrong is red."""
    written, rows = replayed.programs, replayed.rows
    chunks, heads = range(written[0].chunks), rank_heads(len(written))
    complete = [promised(written[0].collective, len(written))[written[0].owner(chunk)] for chunk in chunks]
    room = width - len(heads[0])
    naming = {
        mask: format_numbers(members(mask)).replace(" ", "") for history in rows for row in history for mask in row
    }
    named = all(len(text) + 3 <= room // len(chunks) for text in naming.values())  # with the mark and a gap of 2
    if not named:
        naming = {mask: str(mask.bit_count()) for mask in naming}
    naming[0] = "-"
    parts = written[0].parts
    owned = "Chunk c belongs to rank c" if parts == 1 else f"The first {parts} chunks belong to rank 0, and so on"
    legend = f"{LISTED if named else COUNTED}; *: complete; -: nothing useful. {owned}. {SENT}."
    yield from textwrap.wrap(legend, width)
    cell = max(max(map(len, naming.values())) + 1, len(str(chunks[-1]))) + 1
    fitting = max(1, room // cell)
    blocks = [chunks[at : at + fitting] for at in range(0, len(chunks), fitting)]
    wrong = (len(rows[0]) - 1, replayed.fault.rank, replayed.fault.chunk) if replayed.fault else None
    for number in range(len(rows[0])):
        yield f"\n[bold]after step {number - 1}[/]" if number else "\n[bold]at first[/]"
        for block in blocks:
            yield f"{'chunk':<{len(heads[0])}}" + "".join(f"{chunk:>{cell - 1}} " for chunk in block).rstrip()
            for rank, (head, history) in enumerate(zip(heads, rows, strict=True)):
                row = history[number]
                cells = (
                    cell_of(
                        naming[row[at]], width=cell, complete=row[at] == complete[at], wrong=(number, rank, at) == wrong
                    )
                    for at in block
                )
                yield head + "".join(cells).rstrip()
        if number < len(written[0].steps):
            red = "[bold red]{}[/]" if number == replayed.broken else "{}"
            lines = textwrap.wrap(f"step {number} sends " + sends(written, number), width, subsequent_indent="  ")
            yield from map(red.format, lines)


def rank_heads(size: int) -> list[str]:
    width = len(str(size - 1))
    return [f"rank {rank:>{width}} " for rank in range(size)]


def cell_of(text: str, *, width: int, complete: bool, wrong: bool) -> str:
    """A cell, to the right; green and with a mark where it has all contributions that it will have."""
    style = "bold red" if wrong else "bold green" if complete else ""
    cell = f"{text + '*' if complete else text + ' ':>{width}}"
    return f"[{style}]{cell}[/]" if style else cell


def sends(written: Sequence[Program], number: int) -> str:
    """All sends of a step, of all ranks.

    >>> from dear_mpi.collectives import programs
    >>> sends(programs("ring", "all_reduce", 3), 0)
    '0→1:+2 1→2:+0 2→0:+1'
    """
    return " ".join(arrow(written, rank.rank, send, number) for rank in written for send in rank.steps[number].sends)


def arrow(written: Sequence[Program], rank: int, send: Send, number: int) -> str:
    receives = written[send.peer].steps[number].receives
    plus = any(to.combine and (to.peer, to.chunks) == (rank, send.chunks) for to in receives)
    return f"{rank}→{send.peer}:{'+' * plus}{format_numbers(send.chunks)}"


def phase_lines(collective: str, size: int) -> Iterator[str]:
    """What one rank does in the memory of all, between barriers, with buffers of one element per rank."""
    rank, partition = min(1, size - 1), Partition.of(size, size)
    for mailboxes, where in ((False, "Ranks that reach each other's buffers:"), (True, "Ranks that have mailboxes:")):
        yield ""
        yield f"[bold]{where}[/]"
        done = phases(collective, Share(partition, rank, block=1), mailboxes=mailboxes)
        for number, moves in enumerate(done):
            for move in moves:
                chunks = f"chunk{'s' * (len(move.elements) > 1)} {format_numbers(move.elements)}"
                yield f"  {place(move.target)} = {' + '.join(map(place, move.sources))}, {chunks}"
            if number < len(done) - 1:
                yield "  barrier"
    yield ""
    yield f"Moves of rank {rank}; the others do the same with their own chunks. Nothing is sent."


def place(operand: Operand) -> str:
    kind, rank = operand
    return f"{kind} of rank {rank}"
