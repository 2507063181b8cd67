"""How far an algorithm can be carried out: all of it, or up to the step that breaks it. Text and picture show this."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.program import Program, Receive
from dear_mpi.collectives.program.replay import Row, members, replay, run
from dear_mpi.collectives.program.verify import check, check_shapes, fault_of, promised, verify
from dear_mpi.reporting.units import format_numbers


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
