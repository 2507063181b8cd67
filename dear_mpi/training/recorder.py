"""Record a session's activity on all ranks, by the clock of rank 0.

It keeps the last iterations, or the last seconds of a job that fails.
"""

import math
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from dear_mpi.collectives.launch.launcher import no_child_leaves
from dear_mpi.collectives.plans.notes import Noted
from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.models.layer import layer_name
from dear_mpi.ranks.clock import CommonClock
from dear_mpi.ranks.termination import before_the_end, tell_others
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import note
from dear_mpi.training.log.log import KEPT
from dear_mpi.training.log.spans import COMPUTE, ClocksError, Rank, Recording, Run, Timeline, common, merged, rank_of
from dear_mpi.training.session import Session


def recorded(session: Session, name: str, clock: CommonClock | None = None, *, kept: int = KEPT) -> Run:
    """Flush and return the last iterations of all ranks as a run, by the clock of rank 0. Collective.

    Args:
        clock: made before the iterations, so that clock drift is known.
        kept: number of iterations, at most as many as a log keeps.

    Raises:
        ClocksError: the clocks cannot be compared.
        ValueError: there was no iteration.
    """
    return merged(record(session, name, clock, kept=kept))


def record(session: Session, name: str, clock: CommonClock | None = None, *, kept: int = KEPT) -> list[Recording]:
    """Record as ``recorded``, but each rank by its own clock. Collective."""
    session.flush()
    transport, compute = session.world.transport, session.group.streams.compute
    if session.group.fabric.log.last.end is None:
        raise ValueError(f"no iteration of {name!r} was recorded")
    compute.seconds(compute.mark(), compute.mark())  # a GPU finishes all launched work
    if clock is None:
        clock = CommonClock(transport)
    clock.look()
    own = Recording(name, session.world.size, done_by(session, kept=kept), clock.aligned())
    found: list[Recording] = transport.gather_values(own)
    first = first_noted([each.rank for each in found])
    return [replace(each, rank=without_notes_before(first, each.rank)) for each in found]


def first_noted(ranks: Sequence[Rank]) -> int:
    """Return the first collective that some rank ran in its first iteration and that all ranks noted.

    On other ranks it may have ended before their first iteration; without notes, its waits cannot be attributed.
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
    """Return this rank's last iterations, by its own clock."""
    transport, group = session.world.transport, session.group
    streams, log = group.streams, group.fabric.log
    zero = streams.compute.mark()
    # Host events already use this clock; a later reading would shift all spans relative to the notes.
    zero_s = zero if isinstance(zero, float) else perf_counter()

    def clock(lane: str, mark: Any) -> float:
        stream = streams.compute if lane == COMPUTE else streams.communication
        return zero_s - stream.seconds(mark, zero)

    layers = [layer_name(use.layer, number) for number, use in enumerate(group.uses)]
    own = rank_of(log, name_of(session), layers, clock, kept=kept)
    # Include the notes of the previous iteration: other ranks may run its collectives in theirs.
    numbers = [each.number - 1 for each in own.iterations[:1]]
    begins = (each.begin for each in list(log.records) if each.number in numbers and each.begin is not None)
    since_s = min((clock(COMPUTE, begin) for begin in begins), default=-math.inf)
    return replace(own, number=transport.rank, noted=tuple(log.notes.since(since_s)))


def last_of(session: Session, seconds: float, most_calls: int) -> Rank:
    """Return this rank's most recent activity, which may still run. Not collective; safe from any thread.

    For a GPU it returns only notes: reading the time of an event blocks until the GPU reaches it.
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
        under_way = len(each.times) <= len(each.parts)  # only the last iteration can be
        noted.append(each.at([*each.times, now_s], under_way=True) if under_way else each)
    return replace(own, number=transport.rank, noted=tuple(reversed(noted)))


def name_of(session: Session) -> str:
    transport = session.world.transport
    host = f" on host {transport.hosts[transport.rank]}" * (len(set(transport.hosts)) > 1)
    return f"rank {transport.rank}{host}"


FACTS = (
    "model schedule fusion buckets algorithm update accumulate batch wire device ranks hosts transport emulated_link"
)
# Seconds and most calls of a failing run; the short version is written first, because Open MPI 5 kills ranks 0.25 s
# after it told them to end.
LAST = ((1.0, 500), (10.0, 20_000))
GRACE_S = 1.0  # for other ranks to write theirs, if Open MPI allows it


class Show(Protocol):
    """Process a timeline, for example write it to files."""

    def __call__(self, timeline: Timeline) -> object:
        """Process the timeline of all ranks; called by rank 0."""

    def write_rank(self, recordings: Sequence[Recording], facts: Mapping[str, Any]) -> Path:
        """Write this rank's recordings of each run; called by each rank. Returns the path."""


class Recorder:
    """Record the runs of a job. The constructor, ``keep`` and ``show`` are collective.

    Construct it before the job; call ``keep`` and ``show`` after its runs.
    """

    def __init__(self, world: World, show: Show, model: str) -> None:
        self.world, self.files, self.model = world, show, model
        self.clock = CommonClock(world.transport)
        self.job = said_by_rank_0(world.transport, "timeline", lambda: secrets.token_hex(8))
        self.runs: list[list[Recording]] = []

    def keep(self, session: Session, name: str, *, kept: int = KEPT) -> list[Recording]:
        """Flush, keep the last iterations as a run of this name, and return all ranks' recordings."""
        self.runs.append(record(session, name, self.clock, kept=kept))
        return self.runs[-1]

    def show(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Let rank 0 show the runs; if clocks cannot be compared, each rank shows its own. ``rows``: see
        ``describe``."""
        facts = common([{name: row[name] for name in FACTS.split()} for row in rows]) | {"job": self.job}

        def shown() -> str:
            try:
                together = tuple(map(merged, self.runs))
            except ClocksError as error:
                return str(error)
            self.files(Timeline(live=True, runs=together, facts=facts))
            return ""

        if why := said_by_rank_0(self.world.transport, "timeline", shown):
            path = self.files.write_rank([each[self.world.rank] for each in self.runs], facts)
            note(self.world, f"each rank has written a timeline of its own, such as {path}, because {why}")

    @contextmanager
    def watching(self, sessions: Mapping[str, Session]) -> Iterator[None]:
        """Write this rank's last seconds if the block raises, stalls, or the job ends."""
        last = LastSeconds(self, sessions)
        alarms = self.world.transport.waits.alarms
        alarms.append(last.stalls)
        try:
            with no_child_leaves(), before_the_end(last.ends):
                yield
        except BaseException as error:
            last.fails(error)
            raise
        finally:
            alarms.remove(last.stalls)


class LastSeconds:
    """Write this rank's most recent activity, at most once per reason and from any thread."""

    def __init__(self, recorder: Recorder, sessions: Mapping[str, Session]) -> None:
        self.recorder, self.sessions = recorder, sessions
        self.alone, self.written = threading.Lock(), False

    def write(self, why: str) -> None:
        with self.alone:
            try:
                for seconds, most_calls in LAST:
                    path = self.write_last(seconds, most_calls)
                said, self.written = f"what it did last is in {path}", True
            except ValueError as error:
                said = str(error)
            rank = self.recorder.world.rank
            print(f"timeline: rank {rank} {why}: {said}\n", end="", file=sys.stderr, flush=True)

    def write_last(self, seconds: float, most_calls: int) -> Path:
        recorder = self.recorder
        aligned, size = recorder.clock.aligned(), recorder.world.size
        runs = [
            Recording(name, size, last_of(session, seconds, most_calls), aligned)
            for name, session in self.sessions.items()
        ]
        return recorder.files.write_rank(runs, {"model": recorder.model, "job": recorder.job})

    def fails(self, error: BaseException) -> None:
        """Tell the others and give them a moment before this rank ends the job, unless all ranks fail together."""
        told = not isinstance(error, AgreedError) and tell_others()
        self.write(f"fails with {type(error).__name__}")
        if told:
            time.sleep(GRACE_S)

    def stalls(self) -> None:
        """Write this rank's activity: a rank that keeps others waiting also has information."""
        tell_others(idle=True)
        self.write("stalls")

    def ends(self) -> None:
        if not self.written:
            self.write("hears that another one fails or stalls, or that the job ends")
