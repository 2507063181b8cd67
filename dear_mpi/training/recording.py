"""Record what a session does, on all ranks, and put their clocks together.

Each rank has its own clock. After the recording, with nothing under way, all ranks meet in a few barriers. Two ranks
leave a barrier at almost the same moment, so the difference of their times is taken for the difference of their clocks.
The median over the barriers counts, because a rank that has lost its core leaves one of them milliseconds late. So
clocks agree to some tens of microseconds on one host, and to about the latency of a message between hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, TypeAlias

from dear_mpi.collectives.transports.agree import by_rank_0
from dear_mpi.models.layer import layer_name
from dear_mpi.training.session import Session
from dear_mpi.training.timeline.recorder import KEPT, Recorder
from dear_mpi.training.timeline.spans import COMPUTE, Rank, Run, Timeline, common

__all__ = ["Show", "recording", "show_runs"]

Show: TypeAlias = Callable[[Timeline], object]  # such as writing it into a file
MEETINGS = 15
FACTS = (
    "model schedule fusion buckets algorithm update accumulate batch wire device ranks hosts transport emulated_link"
)


@contextmanager
def recording(session: Session, name: str, runs: list[Run], *, kept: int = KEPT) -> Iterator[None]:
    """Collective: flush, record the last iterations within the block, flush again, and add them to ``runs``.

    Args:
        name: of the run.
        kept: how many iterations.

    Raises:
        ValueError: there was no iteration.
    """
    session.flush()  # the engine's recorder may change only while nothing is under way
    recorder = Recorder([layer_name(use.layer, number) for number, use in enumerate(session.uses)], kept)
    session.fabric.recorder = session.engine.recorder = recorder
    try:
        yield
        session.flush()
    finally:
        session.fabric.recorder = session.engine.recorder = None
    if not recorder.iterations:
        raise ValueError(f"no iteration of {name!r} was recorded")
    runs.append(Run(name, tuple(ranks_of(session, recorder)), session.world.size))


def ranks_of(session: Session, recorder: Recorder) -> list[Rank]:
    """Collective: what each rank has recorded, by the clock of rank 0."""
    transport, streams = session.world.transport, session.streams
    compute = streams.compute
    compute.seconds(compute.mark(), compute.mark())  # a GPU does all that was launched
    zero = compute.mark()
    left_s = list[float]()
    for _ in range(MEETINGS):
        transport.barrier()
        left_s.append(compute.seconds(zero, compute.mark()))
    first_s = transport.gather_values(left_s)[0]
    ahead_s: float = median(own_s - other_s for own_s, other_s in zip(left_s, first_s, strict=True))

    def clock(lane: str, mark: Any) -> float:
        stream = compute if lane == COMPUTE else streams.communication
        return -stream.seconds(mark, zero) - ahead_s

    host = f" on host {transport.hosts[transport.rank]}" * (len(set(transport.hosts)) > 1)
    found: list[Rank] = transport.gather_values(recorder.rank(f"rank {transport.rank}{host}", clock))
    return found


def show_runs(session: Session, runs: Sequence[Run], rows: Sequence[Mapping[str, Any]], show: Show) -> None:
    """Collective: let rank 0 show runs; ``rows`` are what is reported of them, as ``describe`` has it."""
    facts = common([{name: row[name] for name in FACTS.split()} for row in rows])
    by_rank_0(session.world.transport, "timeline", lambda: show(Timeline(live=True, runs=tuple(runs), facts=facts)))
