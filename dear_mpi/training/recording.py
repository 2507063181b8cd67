"""What a session did on all ranks in its last iterations, by one clock: that of rank 0 (``ranks/aligned.py``)."""

import math
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from dear_mpi.collectives.plans.notes import Noted
from dear_mpi.models.layer import layer_name
from dear_mpi.ranks.drift import CommonClock
from dear_mpi.training.log.log import KEPT
from dear_mpi.training.log.merged import Recording, merged
from dear_mpi.training.log.spans import COMPUTE, Rank, Run, rank_of
from dear_mpi.training.session import Session


def recorded(session: Session, name: str, clock: CommonClock | None = None, *, kept: int = KEPT) -> Run:
    """Collective: flush; what all ranks did in the last iterations, by the clock of rank 0, as a run of this name.

    Args:
        clock: one that was made before the iterations, so that drifts of clocks are known.
        kept: how many iterations, at most as many as a log keeps.

    Raises:
        ClocksError: the clocks cannot be compared.
        ValueError: there was no iteration.
    """
    return merged(record(session, name, clock, kept=kept))


def record(session: Session, name: str, clock: CommonClock | None = None, *, kept: int = KEPT) -> list[Recording]:
    """Collective: the same, of each rank by its own clock."""
    session.flush()
    transport, compute = session.world.transport, session.group.streams.compute
    if session.group.fabric.log.last.end is None:
        raise ValueError(f"no iteration of {name!r} was recorded")
    compute.seconds(compute.mark(), compute.mark())  # a GPU does all that was launched
    if clock is None:
        clock = CommonClock(transport)
    clock.look()
    own = Recording(name, session.world.size, done_by(session, kept=kept), clock.aligned())
    found: list[Recording] = transport.gather_values(own)
    first = first_noted([each.rank for each in found])
    return [replace(each, rank=without_notes_before(first, each.rank)) for each in found]


def first_noted(ranks: Sequence[Rank]) -> int:
    """The number of the first collective that some rank carried out in its first iteration, and all have noted.

    On others it may have been over before theirs; without their notes nobody can say what was waited for in it.
    """
    needed, known = list[int](), list[int]()
    for rank in ranks:
        since_s = min((each.begin_s for each in rank.iterations[:1]), default=-math.inf)
        needed += [noted.number for noted in rank.noted if noted.end_s > since_s][:1]
        known += [noted.number for noted in rank.noted[:1]]
    return max(min(needed, default=0), *known, 0)


def without_notes_before(first: int, rank: Rank) -> Rank:
    return replace(rank, noted=tuple(noted for noted in rank.noted if noted.number >= first))


def done_by(session: Session, *, kept: int = KEPT) -> Rank:
    """What this rank did in its last iterations, by its own clock."""
    transport, group = session.world.transport, session.group
    streams, log = group.streams, group.fabric.log
    zero = streams.compute.mark()
    # A mark of the host is a time by this clock already; looked at later, it would move all spans away from the notes.
    zero_s = zero if isinstance(zero, float) else perf_counter()

    def clock(lane: str, mark: Any) -> float:
        stream = streams.compute if lane == COMPUTE else streams.communication
        return zero_s - stream.seconds(mark, zero)

    layers = [layer_name(use.layer, number) for number, use in enumerate(group.uses)]
    own = rank_of(log, name_of(session), layers, clock, kept=kept)
    # Also the notes of the iteration before them, whose collectives may be under way on other ranks in theirs.
    numbers = [each.number - 1 for each in own.iterations[:1]]
    begins = (each.begin for each in list(log.records) if each.number in numbers and each.begin is not None)
    since_s = min((clock(COMPUTE, begin) for begin in begins), default=-math.inf)
    return replace(own, number=transport.rank, noted=tuple(log.notes.since(since_s)))


def last_of(session: Session, seconds: float, most_calls: int) -> Rank:
    """What this rank did at last, which may not be over; needs nobody else, and may be called by any thread.

    Of a GPU it has the notes alone: who asks for the time of a mark that was not reached waits for it.
    """
    transport, streams = session.world.transport, session.group.streams
    now_s, notes = perf_counter(), session.group.fabric.log.notes
    host = isinstance(streams.compute.mark(), float)
    own = done_by(session) if host else Rank(name_of(session), (), ())
    noted, room = list[Noted](), most_calls
    for each in reversed(notes.since(now_s - seconds)):
        room -= len(each.parts)
        if room < 0:
            break
        under_way = len(each.times) <= len(each.parts)  # only of the last one this may be
        noted.append(each.at([*each.times, now_s], under_way=True) if under_way else each)
    return replace(own, number=transport.rank, noted=tuple(reversed(noted)))


def name_of(session: Session) -> str:
    transport = session.world.transport
    host = f" on host {transport.hosts[transport.rank]}" * (len(set(transport.hosts)) > 1)
    return f"rank {transport.rank}{host}"
