"""Where contestants are measured: the ranks, the streams of this rank, and how calls begin together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dear_mpi.bench.case import Conditions
from dear_mpi.bench.timing.starts import AtBarrier, AtMoment, Start
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.wait_policy import crowd_of
from dear_mpi.ranks.clock import CommonClock
from dear_mpi.ranks.streams import Streams, open_streams
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import note

NEEDED = "isolated calls under MPI, at least 2 ranks, and a core for each"
LATE = "ranks were late for more than a tenth of the starts by the clock: all samples of this run start at barriers"


@dataclass(frozen=True)
class Stand:
    """A world, its streams, and one start for all cases: so its clocks are known better with each."""

    world: World
    streams: Streams
    start: Start
    crowded: bool  # whether some machine has more ranks than cores for them

    @classmethod
    def of(cls, world: World, conditions: Conditions) -> Stand:
        """Collective. An ArgumentError, on all ranks, if there is no such device.

        Ranks that share cores may lose the moment while another one has the core, and threads share an interpreter:
        they begin at barriers.
        """
        opened: list[Streams] = []

        def facts() -> Mapping[str, object]:
            opened.append(open_streams(conditions.device))
            return {}

        agree(world.transport, "bench", facts)
        streams, isolated = opened[0], conditions.cadence == "isolated"
        crowded = crowd_of(world.transport, 1).crowded
        cannot = world.transport.native is None or world.size == 1 or crowded
        if cannot or not isolated or conditions.start == "barrier":
            return cls(world, streams, AtBarrier(world.transport), crowded)
        return cls(world, streams, AtMoment(world.transport, CommonClock(world.transport)), crowded)


def decided_start(world: World, conditions: Conditions) -> str:
    """Collective: how the samples of a whole run start, which is found out once, before it. An ArgumentError if the
    ranks are to start by a clock and cannot."""
    start = Stand.of(world, conditions).start
    if conditions.start == "clock" and start.name != "clock":
        raise ArgumentError(f"bench: start 'clock' needs {NEEDED}: take 'auto'")
    if start.holds():
        return start.name
    note(world, LATE)
    return AtBarrier.name
