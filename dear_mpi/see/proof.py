"""Prove an algorithm for all numbers of ranks up to a given one, as it is carried out."""

import gc
from collections.abc import Callable, Sequence
from itertools import product

from dear_mpi.collectives import programs, verify
from dear_mpi.collectives.algorithms.registry import find_algorithm, runner_of
from dear_mpi.collectives.lowering.check import check_instructions, check_phases
from dear_mpi.collectives.lowering.instructions import WINDOW
from dear_mpi.collectives.lowering.messages import Portion
from dear_mpi.collectives.lowering.phases import Share, phases
from dear_mpi.collectives.plans.tuning import MOST_POSTED
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.hosts import Rates
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.collectives.program.program import Program, asks_for
from dear_mpi.reporting.units import plural

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
