"""Which step of a program a wrong result may come from, judged by the chunks that are wrong in the end.

What a rank receives in a step reaches certain chunks of certain ranks, and no others. So a result that is wrong in just
these chunks fits that step. Found backwards, from the last step to the first.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from dear_mpi.collectives.program.program import COLLECTIVES, Program, Receive

Reach = list[list[int]]  # of what a rank holds in a chunk: a bit for each place of a result, rank after rank


class Origin(NamedTuple):
    """A rank that receives a chunk from a peer in a step."""

    rank: int
    chunk: int
    step: int
    peer: int


def origins(programs: Sequence[Program], wrong: frozenset[tuple[int, int]]) -> list[Origin]:
    """The receives whose data ends in exactly these chunks, as (rank, chunk), in the order of steps."""
    chunks = programs[0].chunks
    mask = sum(1 << rank * chunks + chunk for rank, chunk in wrong)
    return sorted((found for found, reach in reached(programs) if reach == mask), key=lambda each: (each.step, each))


def reached(programs: Sequence[Program]) -> Iterator[tuple[Origin, int]]:
    """All that is received, and where it ends."""
    first, ranks = programs[0], range(len(programs))
    ends, chunks = COLLECTIVES[first.collective].ends, range(first.chunks)
    reach = [[ends(rank, first.owner(each)) << rank * len(chunks) + each for each in chunks] for rank in ranks]
    for number in reversed(range(len(first.steps))):
        before = [list(row) for row in reach]
        received = [pair for rank in ranks for pair in product([rank], programs[rank].steps[number].receives)]
        for rank, receive in received:
            for chunk in receive.chunks:
                yield Origin(rank, chunk, number, receive.peer), reach[rank][chunk]
                if not receive.combine:
                    before[rank][chunk] = 0
        for rank, receive in received:
            for source, chunk in zip(sent_as(programs, rank, number, receive), receive.chunks, strict=True):
                before[receive.peer][source] |= reach[rank][chunk]
        reach = before


def sent_as(programs: Sequence[Program], rank: int, number: int, receive: Receive) -> range:
    """The chunks, on the peer, of what a rank receives in a step."""
    of_peer = [each for each in programs[rank].steps[number].receives if each.peer == receive.peer]
    sent = [send.chunks for send in programs[receive.peer].steps[number].sends if send.peer == rank]
    return sent[of_peer.index(receive)]
