"""Prove an algorithm for all numbers of ranks up to a given one; replay a wrong one up to the step that breaks it."""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from dear_mpi.collectives import programs
from dear_mpi.collectives.algorithms.registry import find_algorithm, runner_of
from dear_mpi.collectives.lowering.check import check_instructions, check_phases
from dear_mpi.collectives.lowering.instructions import WINDOW
from dear_mpi.collectives.lowering.messages import Portion
from dear_mpi.collectives.lowering.phases import Share, phases
from dear_mpi.collectives.plans.tuning import MOST_POSTED
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.hosts import Rates
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.collectives.program.program import Program, Receive, asks_for
from dear_mpi.collectives.program.replay import Row, members, replay, run
from dear_mpi.collectives.program.verify import check, check_shapes, fault_of, promised, verify
from dear_mpi.reporting.units import format_numbers, plural

SEGMENTS = 3  # of a chunk, in a proof: more than a plan posts at a time on one host
WINDOWS = (WINDOW, MOST_POSTED)  # the least that a plan posts at a time, and the most
CUTS = ((SEGMENTS, 1), (1, 2))  # elements of a chunk, and of a segment, which then holds two chunks


def prove(
    name: str,
    collective: str,
    layout: Sequence[int],
    advance: Callable[[str], object],
    *,
    rates: Rates | None = None,
    pieces: int = 1,
) -> None:
    """Prove it for 1, 2, ... ranks, and call ``advance`` after each; ``layout`` has the host of each rank.

    A ProgramError says for which number of ranks it is wrong. ``rates`` and ``pieces`` are for who asks for them.
    """
    cuts = {1, SEGMENTS, pieces} if asks_for(find_algorithm(name, collective), "pieces") else {1}
    for size in range(1, len(layout) + 1):
        gc.disable()  # it would go through all messages again and again: half the time
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
    """The instructions of all ranks: chunks cut in two ways, few and many messages posted at a time, in portions."""
    for (length, segment), window in product(CUTS, WINDOWS):
        check_instructions(written, range(0, written[0].chunks * length + 1, length), segment, window=window)
    thirds = [Portion(number, number + 1, SEGMENTS) for number in reversed(range(SEGMENTS))]
    check_instructions(written, range(0, written[0].chunks * SEGMENTS + 1, SEGMENTS), 1, portions=thirds)


def prove_memory(written: Sequence[Program]) -> None:
    """The phases of all ranks that work in shared memory, in their buffers and by mailboxes."""
    size, collective = len(written), written[0].collective
    partition = Partition.of(SEGMENTS * size + 1, size)
    for mailboxes in (True, False):
        shares = [Share(partition, rank, block=2) for rank in range(size)]
        check_phases(collective, shares[0], [phases(collective, share, mailboxes=mailboxes) for share in shares])


# By runner: how what it runs is proved, and what is then known.
PROOFS = {"messages": prove_messages, "shared": prove_memory}
PROMISES = {
    "messages": f", with {SEGMENTS} segments per chunk and with 2 chunks per segment: every contribution arrives "
    "exactly once, and no rank waits forever, even if each send blocks until it is received.",
    "shared": ", in buffers and by mailboxes: every contribution is combined exactly once, and no rank uses memory "
    "while another one writes there.",
}


@dataclass(frozen=True)
class Replayed:
    """What can be shown of the programs of all ranks."""

    programs: Sequence[Program]  # up to the step that breaks them, which is the last one here if it can be read
    rows: list[list[Row]]  # of each rank: what it holds at first, and after each step that can be carried out
    fault: ProgramError | None  # names the rank that errs
    shows: ProgramError | None  # the same fault, on the rank that cannot go on
    broken: int | None  # the number of the step in which that is; None if it is wrong at the end, or right

    @classmethod
    def of(cls, written: Sequence[Program]) -> Replayed:
        """Carry programs out as far as that is possible; a ProgramError if it cannot be said what their steps are."""
        check_shapes(first(written, 0))
        steps = len(written[0].steps)
        ends = range(1, steps + 1)
        count = bisect_left(ends, True, key=lambda end: bool(fault_of(first(written, end), check_shapes, run)))
        whole, shown = first(written, count), first(written, count + 1)  # up to the step that breaks, and with it
        readable = whole if fault_of(shown, check_shapes) else shown
        seen = fault_of(shown, check)
        fault = seen and fault_of(shown if fault_of(written, check_shapes) else written, verify)
        return cls(readable, replay(whole), fault, seen, count if count < steps else None)

    @cached_property
    def complete(self) -> list[Row]:
        """What each rank holds of each chunk where it is complete."""
        program = self.programs[0]
        owners = [program.owner(chunk) for chunk in range(program.chunks)]
        return [[row[owner] for owner in owners] for row in promised(program.collective, program.size)]

    def sent_as(self, receive: Receive, rank: int, number: int) -> range:
        """The chunks, on the peer, that this receive of a rank in a step brings; its own where nothing meets it."""
        of_peer = [each for each in self.programs[rank].steps[number].receives if each.peer == receive.peer]
        sent = [send.chunks for send in self.programs[receive.peer].steps[number].sends if send.peer == rank]
        at = of_peer.index(receive)
        return sent[at] if at < len(sent) else receive.chunks

    def whose(self, mask: int) -> int:
        """The contributions in what is held, as a set of ranks, without the rank for which they are."""
        return mask & (1 << self.programs[0].size) - 1

    def holders(self, mask: int) -> str:
        """The ranks whose contributions are in what is held, such as 0,2-4; 1→3 if it is what 1 has for 3 alone."""
        ranks = [members(each) for each in (self.whose(mask), mask >> self.programs[0].size)]
        return "→".join(format_numbers(each).replace(" ", "") for each in ranks if each)


def first(written: Sequence[Program], count: int) -> list[Program]:
    return [replace(program, steps=program.steps[:count]) for program in written]
