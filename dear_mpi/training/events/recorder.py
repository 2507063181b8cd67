"""Record a session's last iterations on all ranks, by the clock of rank 0."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, TypeAlias

from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.models.layer import layer_name
from dear_mpi.ranks.clock import CommonClock
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import note
from dear_mpi.training.events import KEPT
from dear_mpi.training.events.spans import COMPUTE, ClocksError, Rank, Recording, Timeline, common, merged, rank_of
from dear_mpi.training.session import Session

Show: TypeAlias = Callable[[Timeline], object]  # writes it to files, for example
FACTS = (
    "model schedule fusion buckets algorithm update accumulate batch wire device ranks hosts transport emulated_link"
)


def record(session: Session, name: str, clock: CommonClock | None = None, *, kept: int = KEPT) -> list[Recording]:
    """Flush and record the last iterations of each rank by its own clock. Collective.

    A ``clock`` made before knows the drift. Raises ValueError without an iteration.
    """
    session.flush()
    transport, compute = session.world.transport, session.group.streams.compute
    if session.group.fabric.log.last.end is None:
        raise ValueError(f"no iteration of {name!r} was recorded")
    compute.seconds(compute.mark(), compute.mark())  # a GPU finishes all launched work
    clock = clock or CommonClock(transport)
    clock.look()
    own = Recording(name, session.world.size, done_by(session, kept=kept), clock.aligned())
    found: list[Recording] = transport.gather_values(own)
    first = first_noted([each.rank for each in found])
    return [replace(each, rank=without_notes_before(first, each.rank)) for each in found]


def first_noted(ranks: Sequence[Rank]) -> int:
    """Return the first collective that a rank ran in its first iteration and that all noted.

    On other ranks it may have ended before; waits without notes cannot be attributed.
    """
    needed, known = list[int](), [0]
    for rank in ranks:
        since_s = rank.iterations[0].begin_s if rank.iterations else -math.inf
        needed += [noted.number for noted in rank.noted if noted.end_s > since_s][:1]
        known += [noted.number for noted in rank.noted[:1]]
    return max(min(needed, default=0), *known)


def without_notes_before(first: int, rank: Rank) -> Rank:
    return replace(rank, noted=tuple(noted for noted in rank.noted if noted.number >= first))


def done_by(session: Session, *, kept: int = KEPT) -> Rank:
    """Return this rank's last iterations."""
    transport, group = session.world.transport, session.group
    streams, log = group.streams, group.fabric.log
    zero = streams.compute.mark()
    # Host events use this clock; a later reading would shift spans against the notes.
    zero_s = zero if isinstance(zero, float) else perf_counter()

    def clock(lane: str, mark: Any) -> float:
        stream = streams.compute if lane == COMPUTE else streams.communication
        return zero_s - stream.seconds(mark, zero)

    host = f" on host {transport.hosts[transport.rank]}" * (len(set(transport.hosts)) > 1)
    layers = [layer_name(call.layer, number) for number, call in enumerate(group.calls)]
    own = rank_of(log, f"rank {transport.rank}{host}", layers, clock, kept=kept)
    # With the notes of the iteration before: other ranks may run its collectives in theirs.
    before = own.iterations[0].number - 1 if own.iterations else None
    begins = (clock(COMPUTE, each.begin) for each in log.records if each.number == before and each.begin is not None)
    return replace(own, number=transport.rank, noted=tuple(log.notes.since(min(begins, default=-math.inf))))


class Recorder:
    """Record the runs of a job: construct it before the job, ``keep`` and ``show`` runs. Collective."""

    def __init__(self, world: World, show: Show) -> None:
        self.world, self.files = world, show
        self.clock, self.runs = CommonClock(world.transport), list[list[Recording]]()

    def keep(self, session: Session, name: str, *, kept: int = KEPT) -> list[Recording]:
        """Flush, keep the last iterations, and return all ranks' recordings."""
        self.runs.append(record(session, name, self.clock, kept=kept))
        return self.runs[-1]

    def show(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Let rank 0 show the runs, only its own if clocks cannot be compared. ``rows``: of ``describe``."""
        facts = common([{name: row[name] for name in FACTS.split()} for row in rows])

        def shown() -> str:
            runs, why = [], ""
            for each in self.runs:
                try:
                    runs.append(merged(each))
                except ClocksError as error:
                    runs.append(merged(each[:1]))
                    why = str(error)
            self.files(Timeline(live=True, runs=tuple(runs), facts=facts))
            return why

        if why := said_by_rank_0(self.world.transport, "timeline", shown):
            note(self.world, f"the timeline shows rank 0 only, because {why}")
