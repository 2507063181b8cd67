"""What a session did on all ranks in its last iterations, by one clock.

Each rank has its own clock. After the last iteration, with nothing under way, all ranks meet in a few barriers. Two
ranks leave a barrier at almost the same moment, so the difference of their times is taken for the difference of their
clocks. The median over the barriers counts, because a rank that has lost its core leaves one of them milliseconds late.
So clocks agree to some tens of microseconds on one host, and to about the latency of a message between hosts.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, TypeAlias

from dear_mpi.collectives.transports.agree import by_rank_0
from dear_mpi.models.layer import layer_name
from dear_mpi.training.log.log import KEPT
from dear_mpi.training.log.spans import COMPUTE, Run, Timeline, common, rank_of
from dear_mpi.training.session import Session

Show: TypeAlias = Callable[[Timeline], object]  # such as writing it into a file
MEETINGS = 15
FACTS = (
    "model schedule fusion buckets algorithm update accumulate batch wire device ranks hosts transport emulated_link"
)


def recorded(session: Session, name: str, *, kept: int = KEPT) -> Run:
    """Collective: flush; what all ranks did in the last iterations, by the clock of rank 0, as a run of this name.

    It has the last ``kept`` iterations, at most as many as a log keeps; ValueError if there was none.
    """
    session.flush()
    group, log = session.group, session.group.fabric.log
    layers = [layer_name(use.layer, number) for number, use in enumerate(group.uses)]
    if log.last.end is None:
        raise ValueError(f"no iteration of {name!r} was recorded")
    transport, streams = group.world.transport, group.streams
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
    own = rank_of(log, f"rank {transport.rank}{host}", layers, clock, kept=kept)
    return Run(name, tuple(transport.gather_values(own)), session.world.size)


def show_runs(session: Session, runs: Sequence[Run], rows: Sequence[Mapping[str, Any]], show: Show) -> None:
    """Collective: let rank 0 show runs; ``rows`` are what is reported of them, as ``describe`` has it."""
    facts = common([{name: row[name] for name in FACTS.split()} for row in rows])
    by_rank_0(session.world.transport, "timeline", lambda: show(Timeline(live=True, runs=tuple(runs), facts=facts)))
