"""Convert an algorithm on one number of ranks, replayed by ``see/explain.py``, to plain lists for ``web/program.js``.

Flat lists of integers are a third as long as lists of lists.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.program import COLLECTIVES, Program, Receive, Step
from dear_mpi.collectives.program.verify import check, fault_of, fit, members
from dear_mpi.contrib.pages.places import places_of
from dear_mpi.see.explain import Replayed

# A message's fate; the last three: its receiver cannot take it; no rank receives it; none sends it.
COPIED, ADDED, NOT_TAKEN, NOT_RECEIVED, NOT_SENT = range(5)


def steps_of(written: Sequence[Program], hosts: Sequence[int]) -> dict[str, Any]:
    """Return all steps of all ranks' programs, up to a fault."""
    if written[0].scratch:
        raise ProgramError("a page shows no scratch chunks: show this algorithm in the terminal, or as a picture")
    replayed = Replayed.of(written)
    program, numbers = replayed.programs[0], dict[int, int]()
    size, chunks = program.size, range(program.chunks)
    ends = COLLECTIVES[program.collective].ends
    places, shown = places_of(replayed, hosts)

    def number(mask: int) -> int:
        return numbers.setdefault(mask, len(numbers))

    number(0)
    start = [[number(mask) for mask in history[0]] for history in replayed.rows]
    changes = [
        [[rank, chunk, number(mask)] for rank, chunk, mask in changed(replayed, at)]
        for at in range(1, len(replayed.rows[0]))
    ]
    complete = [[number(mask) for mask in row] for row in replayed.complete]
    return {
        "size": size,
        "parts": program.parts,
        "hosts": list(hosts),
        "steps": [flat(messages(replayed, at)) for at in range(len(program.steps))],
        "start": start,
        "changes": list(map(flat, changes)),
        "complete": complete,
        "due": [[chunk for chunk in chunks if ends(rank, program.owner(chunk))] for rank in range(size)],
        "sets": [[members(replayed.whose(mask)), *members(mask >> size)] for mask in numbers],
        "places": [each.data() for each in places],
        "placed": shown,
        "without": [] if replayed.fault else [without(written, at) for at in range(len(program.steps))],
        "fault": fault(replayed),
    }


def flat(rows: Sequence[Sequence[int]]) -> list[int]:
    return [each for row in rows for each in row]


def changed(replayed: Replayed, at: int) -> Iterator[tuple[int, int, int]]:
    """Yield rank, chunk and new data for each cell that the step before state ``at`` changed."""
    for rank, history in enumerate(replayed.rows):
        for chunk, (before, after) in enumerate(zip(history[at - 1], history[at], strict=True)):
            if before != after:
                yield rank, chunk, after


def messages(replayed: Replayed, at: int) -> list[tuple[int, ...]]:
    """Return sender, receiver, first chunk at each, number of chunks, and fate of each message of a step."""
    found: list[tuple[int, ...]] = []
    steps = [program.steps[at] for program in replayed.programs]
    for rank, step in enumerate(steps):
        for peer in dict.fromkeys(send.peer for send in step.sends):
            sent = [send.chunks for send in step.sends if send.peer == peer]
            received = [each for each in steps[peer].receives if each.peer == rank]
            for chunks, receive in zip(sent, received, strict=False):
                kind = NOT_TAKEN if breaks(replayed, at, peer, chunks, receive) else int(receive.combine)
                found.append((rank, peer, chunks.start, receive.chunks.start, len(chunks), kind))
            for chunks in sent[len(received) :]:
                found.append((rank, peer, chunks.start, chunks.start, len(chunks), NOT_RECEIVED))
        for peer in dict.fromkeys(receive.peer for receive in step.receives):
            due = [each.chunks for each in step.receives if each.peer == peer]
            there = sum(send.peer == rank for send in steps[peer].sends)
            found += [(peer, rank, each.start, each.start, len(each), NOT_SENT) for each in due[there:]]
    return found


def breaks(replayed: Replayed, at: int, rank: int, sent: range, receive: Receive) -> bool:
    """Whether a message breaks a step: its receiver cannot take it or expects another, or its sender lacks it."""
    found = replayed.shows
    if found is None or at != replayed.broken:
        return False
    if found.chunk is None:
        return rank == found.rank and not fit(sent, receive.chunks, replayed.programs[rank])
    taken, given = found.chunk in receive.chunks, found.chunk in sent
    return (rank == found.rank and taken) or (receive.peer == found.rank and given)


def without(written: Sequence[Program], at: int) -> str:
    """Return the proof's error if a step is left out; "" if there is none."""
    left = [replace(each, steps=(*each.steps[:at], Step(), *each.steps[at + 1 :])) for each in written]
    return str(fault_of(left, check) or "")


def fault(replayed: Replayed) -> dict[str, Any] | None:
    """Return the proof's sentence, with its rank, chunk and step; step None: the final data is wrong."""
    found = replayed.fault
    if found is None:
        return None
    return {"said": str(found), "rank": found.rank, "chunk": found.chunk, "step": replayed.broken}
