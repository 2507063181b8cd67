"""Records a job for its timeline: the last iterations of each run, or the last seconds of one that ends badly."""

import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.ranks.drift import CommonClock
from dear_mpi.ranks.termination import on_termination
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
LAST_S, LAST_CALLS = 10.0, 20_000  # of a run that fails; a rank that is told to end has a second to write them


class Show(Protocol):
    """What is done with a timeline, such as writing it into files."""

    def __call__(self, timeline: Timeline) -> object:
        """By rank 0, with one of all ranks."""

    def apart(self, recordings: Sequence[Recording], facts: Mapping[str, Any]) -> Path:
        """By each rank, with what it did in each run; where that is now."""


class Recorder:
    """Constructing is collective, and so are ``keep`` and ``show``: all before a job, and after its runs."""

    def __init__(self, world: World, show: Show) -> None:
        self.world, self.files = world, show
        self.clock = CommonClock(world.transport)
        self.job = said_by_rank_0(world.transport, "timeline", lambda: secrets.token_hex(8))
        self.runs: list[list[Recording]] = []

    def keep(self, session: Session, name: str, *, kept: int = KEPT) -> None:
        """Keep the last iterations as a run of this name, after a flush."""
        self.runs.append(record(session, name, self.clock, kept=kept))

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
            path = self.files.apart([each[self.world.rank] for each in self.runs], facts)
            note(self.world, f"each rank has written a timeline of its own, such as {path}, because {why}")

    @contextmanager
    def watching(self, sessions: Mapping[str, Session]) -> Iterator[None]:
        """Meanwhile this rank writes its last seconds if an error is raised, if it stalls, or if it is told to end."""

        def write(why: str) -> None:
            runs = [
                Recording(name, self.world.size, last_of(session, LAST_S, LAST_CALLS), self.clock.aligned())
                for name, session in sessions.items()
            ]
            try:
                said = f"what it did last is in {self.files.apart(runs, {'job': self.job, 'why': why})}"
            except ValueError as error:
                said = str(error)
            print(f"timeline: rank {self.world.rank} {why}: {said}", file=sys.stderr, flush=True)

        alarms = self.world.transport.waits.alarms
        alarms.append(lambda: write("stalls"))
        try:
            with on_termination(lambda: write("is told to end")):
                yield
        except BaseException as error:
            write(f"fails with {type(error).__name__}")
            raise
        finally:
            alarms.pop()
