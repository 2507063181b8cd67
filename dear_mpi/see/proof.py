"""Prove an algorithm for all numbers of ranks up to a limit; replay a wrong one."""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from dear_mpi.collectives import programs
from dear_mpi.collectives.algorithms.registry import find_algorithm, runner_of
from dear_mpi.collectives.lowering.check import check_instructions, check_phases
from dear_mpi.collectives.lowering.messages import WINDOW, Portion
from dear_mpi.collectives.lowering.phases import Share, phases
from dear_mpi.collectives.plans.tuning import MOST_POSTED
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.hosts import Rates
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.collectives.program.program import Program, Receive, asks_for
from dear_mpi.collectives.program.verify import (
    Row,
    check,
    check_shapes,
    fault_of,
    members,
    promised,
    replay,
    run,
    verify,
)
from dear_mpi.reporting.units import format_numbers, plural
from dear_mpi.training.routes.proof import Proof
from dear_mpi.training.routes.route import Route

SEGMENTS = 3  # of a chunk: more than a plan posts at once on one host
WINDOWS = (WINDOW, MOST_POSTED)  # range of messages that a plan posts at once
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

    A ProgramError names the number of ranks.
    """
    cuts = {1, SEGMENTS, pieces} if asks_for(find_algorithm(name, collective), "pieces") else {1}
    for size in range(1, len(layout) + 1):
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
    """Prove instructions: chunks cut in two ways, few and many posted messages, in portions."""
    for (length, segment), window in product(CUTS, WINDOWS):
        check_instructions(written, range(0, written[0].chunks * length + 1, length), segment, window=window)
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
        return [[row[owner] for owner in owners] for row in promised(program.collective, program.size)]

    def sent_as(self, receive: Receive, rank: int, number: int) -> range:
        """Return the peer's chunks that a receive brings; its chunks here if no send matches."""
        of_peer = [each for each in self.programs[rank].steps[number].receives if each.peer == receive.peer]
        sent = [send.chunks for send in self.programs[receive.peer].steps[number].sends if send.peer == rank]
        at = of_peer.index(receive)
        return sent[at] if at < len(sent) else receive.chunks

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
