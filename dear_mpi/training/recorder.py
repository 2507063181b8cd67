"""Records a job for its timeline: the last iterations of each run, or the last seconds of one that ends badly."""

import secrets
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from dear_mpi.collectives.launch.forks import no_child_leaves
from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.ranks.drift import CommonClock
from dear_mpi.ranks.termination import before_the_end, tell_others
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import note
from dear_mpi.training.log.log import KEPT
from dear_mpi.training.log.merged import ClocksError, Recording, merged
from dear_mpi.training.log.spans import Timeline, common
from dear_mpi.training.recording import last_of, record
from dear_mpi.training.session import Session

FACTS = (
    "model schedule fusion buckets algorithm update accumulate batch wire device ranks hosts transport emulated_link"
)
# Of a run that fails, seconds and most calls: first what is written fast, since Open MPI 5 kills ranks 0.25 s
# after it told them to end.
LAST = ((1.0, 500), (10.0, 20_000))
GRACE_S = 1.0  # in which others write theirs, as long as Open MPI gives them


class Show(Protocol):
    """What is done with a timeline, such as writing it into files."""

    def __call__(self, timeline: Timeline) -> object:
        """By rank 0, with one of all ranks."""

    def write_rank(self, recordings: Sequence[Recording], facts: Mapping[str, Any]) -> Path:
        """By each rank, with what it did in each run; where that is now."""


class Recorder:
    """Constructing is collective, and so are ``keep`` and ``show``: all before a job, and after its runs."""

    def __init__(self, world: World, show: Show, model: str) -> None:
        self.world, self.files, self.model = world, show, model
        self.clock = CommonClock(world.transport)
        self.job = said_by_rank_0(world.transport, "timeline", lambda: secrets.token_hex(8))
        self.runs: list[list[Recording]] = []

    def keep(self, session: Session, name: str, *, kept: int = KEPT) -> list[Recording]:
        """Keep the last iterations as a run of this name, after a flush; what all ranks did in them."""
        self.runs.append(record(session, name, self.clock, kept=kept))
        return self.runs[-1]

    def show(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Let rank 0 show the runs, or each rank its own part of them if their clocks cannot be compared. ``rows`` are
        what is reported of them, as ``describe`` has it."""
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
        """Meanwhile this rank writes its last seconds if an error is raised, if it stalls, or if the job ends."""
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
    """What this rank did at last, written at most once for each reason, by whatever thread has one."""

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
        """The others are told, and have a moment, before this rank ends the job; unless all fail alike."""
        told = not isinstance(error, AgreedError) and tell_others()
        self.write(f"fails with {type(error).__name__}")
        if told:
            time.sleep(GRACE_S)

    def stalls(self) -> None:
        """Also those that keep this rank waiting have something to say."""
        tell_others(idle=True)
        self.write("stalls")

    def ends(self) -> None:
        if not self.written:
            self.write("hears that another one fails or stalls, or that the job ends")
