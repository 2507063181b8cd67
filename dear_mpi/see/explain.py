"""Show an algorithm: its lesson, steps, data, cost, and a proof."""

from __future__ import annotations

import gc
import inspect
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

from dear_mpi.collectives import programs
from dear_mpi.collectives.algorithms.registry import ALGORITHMS, find_algorithm, in_file, of_text, runner_of
from dear_mpi.collectives.lowering.check import check_instructions, check_phases
from dear_mpi.collectives.lowering.messages import WINDOW, Portion
from dear_mpi.collectives.lowering.phases import Operand, Share, phases
from dear_mpi.collectives.plans.tuning import MOST_POSTED
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.hosts import Rates, rates_of, spread
from dear_mpi.collectives.program.program import COLLECTIVES, Partition, Program, asks_for, by_peer
from dear_mpi.collectives.program.user_file import WithExtras
from dear_mpi.collectives.program.verify import (
    Row,
    check,
    check_shapes,
    fault_of,
    keeps_rank_order,
    members,
    promised,
    replay,
    run,
    sums_alike,
    verify,
)
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.units import format_numbers, plural
from dear_mpi.training.routes.find import find_route
from dear_mpi.training.routes.proof import Proof, hosts_of
from dear_mpi.training.routes.proof import prove as prove_route
from dear_mpi.training.routes.route import Route, when

NEVER = -1  # data that no chunk of scratch has
MOST_RANKS = 64
MOST_RANKS_IN_TABLES = 16
MOST_COLUMNS = 100
LISTED = "Each cell names the ranks whose contributions the chunk holds on that rank (0-2: of ranks 0, 1 and 2)"
COUNTED = "Each cell counts the ranks whose contributions the chunk holds on that rank"
ADDRESSED = "; 0→2: what rank 0 has for rank 2 alone"
COPIES = "; 0' and 0'': scratch 1 and 2 of chunk 0"
SENT = "0→1:2 means that rank 0 sends chunk 2 to rank 1; with a +, rank 1 adds it to its own"


@dataclass(frozen=True)
class Asked:
    """``rates``: bytes/s of a rank inside its host, and of a host to other hosts."""

    algorithms: Sequence[str]
    collective: str
    ranks: int
    hosts: int = 1
    rates: tuple[float, float] | None = None
    pieces: int = 1

    @property
    def layout(self) -> list[int]:
        """Return each rank's host, as many ranks on each host as possible."""
        return spread(self.ranks, self.hosts)

    @property
    def known_rates(self) -> Rates | None:
        return None if self.rates is None else rates_of(*self.rates, self.layout)

    def programs(self, name: str) -> list[Program]:
        """Return all ranks' programs; ValueError for an unknown name, or too many ranks or hosts."""
        if self.ranks > MOST_RANKS:
            few = "with more, nobody can read text or picture: show and prove it with fewer"
            raise ValueError(f"--ranks must be at most {MOST_RANKS}, not {self.ranks}: {few}")
        if not in_file(name) and runner_of(name) in PROMISES:
            lookup("algorithm", name, WithExtras(ALGORITHMS, "algorithms"))
        how: dict[str, Any] = {"hosts": self.layout, "rates": self.known_rates, "pieces": self.pieces}
        return programs(name, self.collective, self.ranks, **how)


def explain_algorithm(name: str, asked: Asked, *, check: bool = False) -> None:
    """Print an algorithm; ProgramError comes after the steps up to the fault."""
    from dear_mpi.reporting.terminal import bar, console  # the lecture replays without rich

    written, screen = asked.programs(name), console()
    collective, size, layout, runner = asked.collective, asked.ranks, asked.layout, runner_of(name)
    screen.width = width = min(screen.width, MOST_COLUMNS)
    subject: Any = phases if runner == "shared" else find_algorithm(name, collective)
    subject = subject if of_text(name) else inspect.getmodule(subject)
    on_hosts = f" of {asked.hosts} hosts" if asked.hosts > 1 else ""
    screen.print(re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.getdoc(subject) or ""))  # it wraps paragraphs
    screen.print(f"\n{name} {collective} on {plural(size, 'rank')}{on_hosts}", style="bold")
    if asks_for(find_algorithm(name, collective), "pieces"):
        screen.print(f"The buffer has {plural(asked.pieces, 'segment')}.")
    replayed = Replayed.of(written)
    if runner == "shared":
        screen.print(*phase_lines(collective, size), sep="\n", markup=True)
    else:
        too_many = f"(The tables are left out: they are shown for up to {MOST_RANKS_IN_TABLES} ranks.)"
        tables = step_lines(replayed, width) if size <= MOST_RANKS_IN_TABLES else [too_many]
        screen.print(*tables, "", sep="\n", markup=True)
        if replayed.fault is None:
            screen.print(traffic(written, layout))
    if replayed.fault is not None:
        raise replayed.fault
    if COLLECTIVES[collective].reduces:
        are = "are" if keeps_rank_order(written) else "are not"
        change = "change no bit" if sums_alike(written) else "can change bits"
        screen.print(f"Contributions {are} combined in the order of the ranks. Sizes and cuts {change} of a sum.")
    if check:
        with bar(None, size, "proving") as advance:
            prove(name, collective, layout, advance, rates=asked.known_rates, pieces=asked.pieces)
        from_one = "1 to " * (size > 1 and not of_text(name))
        screen.print(f"Proved for {from_one}{plural(size, 'rank')}{PROMISES[runner]}")


def step_lines(replayed: Replayed, width: int) -> Iterator[str]:
    """Yield the legend, then a table at the start and after each step, in rich markup; faults are red."""
    written, chunks = replayed.programs, range(replayed.programs[0].places)
    room = width - len(rank_head(written[0]))
    naming = {mask: replayed.holders(mask) for history in replayed.rows for row in history for mask in row}
    named = all(len(text) + 3 <= room // len(chunks) for text in naming.values())  # for the mark and a gap of 2
    if not named:
        naming = {mask: str(replayed.whose(mask).bit_count()) for mask in naming}
    naming[0] = "-"
    own, scratch = written[0].parts, written[0].scratch
    owned = "Chunk c belongs to rank c" if own == 1 else f"The first {own} chunks belong to rank 0, and so on"
    told = f"{LISTED}{ADDRESSED * COLLECTIVES[written[0].collective].addressed}" if named else COUNTED
    legend = f"{told}; *: complete; -: nothing useful{COPIES * bool(scratch)}. {owned}. {SENT}."
    yield legend
    cell = max(max(map(len, naming.values())) + 1, len(column(written[0], chunks[-1]))) + 1
    fitting = max(1, room // cell)
    for number in range(len(replayed.rows[0])):
        yield f"\n[bold]after step {number - 1}[/]" if number else "\n[bold]at first[/]"
        for at in range(0, len(chunks), fitting):
            yield from table_lines(replayed, number, chunks[at : at + fitting], naming, cell)
        if number < len(written[0].steps):
            red = "[bold red]{}[/]" if number == replayed.broken else "{}"
            acts = [
                f"step {number}, rank {each.rank}: {'; '.join(each.actions(each.steps[number]))}" for each in written
            ]
            yield red.format("\n".join(acts) if scratch else f"step {number} sends {sends(written, number)}")


def table_lines(replayed: Replayed, number: int, chunks: range, naming: Mapping[int, str], cell: int) -> Iterator[str]:
    """Show ranks' chunks after ``number`` steps; complete cells are green."""
    fault = replayed.fault if number == len(replayed.rows[0]) - 1 else None
    heads = "".join(f"{column(replayed.programs[0], chunk):>{cell - 1}} " for chunk in chunks)
    yield f"{'chunk':<{len(rank_head(replayed.programs[0]))}}{heads}".rstrip()
    for program, history in zip(replayed.programs, replayed.rows, strict=True):
        line = rank_head(program)
        for chunk in chunks:
            mask = history[number][chunk]
            complete = mask == replayed.complete[program.rank][chunk]
            wrong = fault is not None and (fault.rank, fault.chunk) == (program.rank, chunk)
            style = "bold red" if wrong else "bold green" if complete else ""
            text = f"{naming[mask] + ('*' if complete else ' '):>{cell}}"
            line += f"[{style}]{text}[/]" if style else text
        yield line.rstrip()


def column(program: Program, chunk: int) -> str:
    return str(chunk % program.chunks) + "'" * (chunk // program.chunks)


def rank_head(program: Program) -> str:
    return f"rank {program.rank:>{len(str(program.size - 1))}} "


def sends(written: Sequence[Program], number: int) -> str:
    """List a step's sends.

    >>> sends(programs("ring", "all_reduce", 3), 0)
    '0→1:+2 1→2:+0 2→0:+1'
    """
    arrows = []
    for program in written:
        for peer, group in by_peer(program.steps[number].sends).items():
            receives = by_peer(written[peer].steps[number].receives).get(program.rank, [])
            combined = {(to.combine, to.chunks) for to in receives}
            for added in (True, False):
                sent = [chunk for send in group if ((True, send.chunks) in combined) == added for chunk in send.chunks]
                if sent:
                    numbers = format_numbers(sent).replace(" ", "")
                    arrows.append(f"{program.rank}→{peer}:{'+' * added}{numbers}")
    return " ".join(arrows)


def phase_lines(collective: str, size: int) -> Iterator[str]:
    """List a rank's phases in shared memory, with buffers of one element per rank."""
    rank, partition = min(1, size - 1), Partition.of(size, size)
    for mailboxes, where in ((False, "Ranks that reach each other's buffers:"), (True, "Ranks that have mailboxes:")):
        yield ""
        yield f"[bold]{where}[/]"
        done = phases(collective, Share(partition, rank, block=1), mailboxes=mailboxes)
        for number, moves in enumerate(done):
            for move in moves:
                chunks = f"chunk{'s' * (len(move.elements) > 1)} {format_numbers(move.elements)}"
                yield f"  {memory(move.target)} = {' + '.join(map(memory, move.sources))}, {chunks}"
            if number < len(done) - 1:
                yield "  barrier"
    yield ""
    yield f"Moves of rank {rank}; the others do the same with their own chunks. Nothing is sent."


def memory(operand: Operand) -> str:
    kind, rank = operand
    return f"{kind} of rank {rank}"


def traffic(written: Sequence[Program], layout: Sequence[int]) -> str:
    """Count messages and bytes per rank, and between hosts, for a buffer of n bytes."""
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


STARTED = {"out": 'what a schedule starts as "reduce_scatter"', "back": '"all_gather"; "all_reduce" starts both'}


def explain_route(name: str, *, wire: str | None = None) -> None:
    """Print a route, or a wire format's route, and prove it. RouteError comes last."""
    from rich.table import Table

    from dear_mpi.reporting.terminal import console

    route, screen = find_route(name, wire=wire), console()
    table = Table("way", "stage", "thread", "reads", "writes", title=f"Route {route.name}")
    for way, stages in (("out", route.out), ("back", route.back)):
        for stage in stages:
            table.add_row(way, f"{stage}{when(stage)}", stage.on, ", ".join(stage.reads), ", ".join(stage.writes))
    screen.print(table)
    lines = [f"{way}: {what}" for way, what in STARTED.items()]
    try:
        found = prove_route(route)
        hosts = hosts_of(route)
        where = f"{len(hosts)} ranks{f' of {len(set(hosts))} hosts' * route.has_levels}"
        lines += ["", f"Proved on {where}, with the engine as early and as late as it can be:"]
        lines += [f"- {line}" for line in told(route, found)]
    finally:
        screen.print("\n".join(lines))


SEGMENTS = 3  # of a chunk: more than a plan posts at once on one host
# Messages that a plan posts at once, few or many; elements that pay for a saved message: none, or any number.
WINDOWS = ((WINDOW, 0.0), (WINDOW, math.inf), (MOST_POSTED, math.inf))
CUTS = ((SEGMENTS, 1), (1, 2))  # elements of a chunk, of a segment; the second segment has two chunks


def prove(
    name: str,
    collective: str,
    layout: Sequence[int],
    advance: Callable[[str], object],
    *,
    rates: Rates | None = None,
    pieces: int = 1,
) -> None:
    """Prove an algorithm for 1, 2, ... ranks, and call ``advance`` after each; ``layout``: ranks' hosts.

    One that was made from a text is proved for all of these ranks only.

    A ProgramError names the number of ranks.
    """
    cuts = {1, SEGMENTS, pieces} if asks_for(find_algorithm(name, collective), "pieces") else {1}
    for size in range(len(layout) if of_text(name) else 1, len(layout) + 1):
        gc.disable()  # it would traverse all messages repeatedly: half the time
        try:
            for cut in sorted(cuts):
                written = programs(name, collective, size, hosts=layout[:size], rates=rates, pieces=cut)
                verify(written)
                PROOFS[runner_of(name)](written)
        except ProgramError as error:
            raise ProgramError(f"on {plural(size, 'rank')}: {error} (see --ranks {size})") from None
        finally:
            gc.enable()
        advance(f"proved for {size} of {len(layout)} ranks")


def prove_messages(written: Sequence[Program]) -> None:
    """Prove instructions: chunks cut in two ways, few and many posted messages, packed or not, in portions."""
    for (length, segment), (window, packed) in product(CUTS, WINDOWS):
        chunks = range(0, written[0].chunks * length + 1, length)
        check_instructions(written, chunks, segment, window=window, packed=packed)
    thirds = [Portion(number, number + 1, SEGMENTS) for number in reversed(range(SEGMENTS))]
    check_instructions(written, range(0, written[0].chunks * SEGMENTS + 1, SEGMENTS), 1, portions=thirds)


def prove_memory(written: Sequence[Program]) -> None:
    """Prove phases in shared memory, in ranks' buffers and by mailboxes."""
    size, collective = len(written), written[0].collective
    partition = Partition.of(SEGMENTS * size + 1, size)
    for mailboxes in (True, False):
        shares = [Share(partition, rank, block=2) for rank in range(size)]
        check_phases(collective, shares[0], [phases(collective, share, mailboxes=mailboxes) for share in shares])


# By runner: proof and statement.
PROOFS = {"messages": prove_messages, "shared": prove_memory}
PROMISES = {
    "messages": f", with {SEGMENTS} segments per chunk and with 2 chunks per segment: every contribution arrives "
    "exactly once, and no rank waits forever, even if each send blocks until it is received.",
    "shared": ", in buffers and by mailboxes: every contribution is combined exactly once, and no rank uses memory "
    "while another one writes there.",
}


@dataclass(frozen=True)
class Replayed:
    programs: Sequence[Program]  # to the breaking step, if that can be read
    rows: list[list[Row]]  # by rank: data at start and after valid steps
    fault: ProgramError | None  # on the rank at fault
    shows: ProgramError | None  # on the rank that cannot continue
    broken: int | None  # that step; None if the result is wrong, or right

    @classmethod
    def of(cls, written: Sequence[Program]) -> Replayed:
        """Run programs as far as possible. Raises a ProgramError if their steps cannot be determined."""
        check_shapes(first(written, 0))
        steps = len(written[0].steps)
        ends = range(1, steps + 1)
        count = bisect_left(ends, True, key=lambda end: bool(fault_of(first(written, end), check_shapes, run)))
        whole, shown = first(written, count), first(written, count + 1)  # up to the breaking step, including it
        readable = whole if fault_of(shown, check_shapes) else shown
        seen = fault_of(shown, check)
        fault = seen and fault_of(shown if fault_of(written, check_shapes) else written, verify)
        return cls(readable, replay(whole), fault, seen, count if count < steps else None)

    @cached_property
    def complete(self) -> list[Row]:
        """Return the complete contents of each chunk, on each rank that ends with it."""
        program = self.programs[0]
        owners = [program.owner(chunk) for chunk in range(program.chunks)]
        scratch = [NEVER] * (program.places - program.chunks)
        return [[row[owner] for owner in owners] + scratch for row in promised(program.collective, program.size)]

    def whose(self, mask: int) -> int:
        return mask & (1 << self.programs[0].size) - 1

    def holders(self, mask: int) -> str:
        """Format the contributing ranks, such as 0,2-4; 1→3 is rank 1's data for rank 3 only."""
        ranks = [members(each) for each in (self.whose(mask), mask >> self.programs[0].size)]
        return "→".join(format_numbers(each).replace(" ", "") for each in ranks if each)


def first(written: Sequence[Program], count: int) -> list[Program]:
    return [replace(program, steps=program.steps[:count]) for program in written]


KEPT = {
    "equal": "the optimiser's state is the same on all ranks",
    "shard": "each rank keeps the optimiser's state of its shard alone",
    "own": "each rank has an optimiser's state of its own",
}


def told(route: Route, proof: Proof) -> Iterator[str]:
    yield "each gradient of each rank counts once"
    when = "iteration" if proof.alike else f"round of {route.period} iterations"
    yield f"after each {when} all ranks have the same values"
    yield f"these have {'the bits of full' if proof.exact else 'other bits than those of full'}"
    yield KEPT[proof.state]
    if not proof.summed:
        yield "gradients are not summed before they are used: clip and loss_scale do not apply"
