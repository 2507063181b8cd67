"""A contest: who takes part in a comparison, the jobs that they train, and their turns.

Contestants whose results have the same bits train one model in turn. Where several wires, or rounds, lead to several
results, each trains a model of its own, which began with the same values; all do as many iterations, and are tested
between turns, which is not timed. A turn is as long for all, with whole rounds of each, so that no test ends a round:

    period 1     one not counted | 39 counted                                  of 40, where the longest round is of 10
    period 10    10 not counted            | 10 counted | 10 counted | 10 counted

Turns are short, so that whatever else the machine does hits all alike. What is not counted fills the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from dear_mpi.collectives.transports.agree import agree
from dear_mpi.kernels.slab import round_up
from dear_mpi.ranks.world import World
from dear_mpi.reporting.units import check_distinct
from dear_mpi.training.chosen_route import Wire, check_wires, pairs
from dear_mpi.training.fusion.policies import in_bytes
from dear_mpi.training.log.log import KEPT
from dear_mpi.training.recorder import Recorder
from dear_mpi.training.routes.route import Route
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.contestant import Contestant
from dear_mpi.training.runs.job import Job
from dear_mpi.training.schedules import find_schedules, own_fusion

BLOCK = 3  # counted iterations, or rounds, of one contestant before the next one's turn
Progress = Callable[[str], object]


@dataclass(frozen=True)
class Entry:
    """Who takes part: a schedule with a fusion and a wire."""

    fusion: str
    wire: Wire
    name: str  # of the schedule
    config: Config  # what it trains by, if it has a job of its own
    route: Route


class Contest:
    """Constructing is collective, and so is ``contestants``.

    Args:
        fusions, wires: those of ``config`` if none are given.

    Attributes:
        apart: whether each contestant has a job of its own.
        period: iterations after which all are at the end of a round.

    Raises:
        AgreedError: something is not allowed, or the ranks were asked for different things.
    """

    def __init__(
        self,
        config: Config,
        world: World,
        schedules: Sequence[str],
        *,
        fusions: Sequence[str] = (),
        wires: Sequence[Wire] = (),
    ) -> None:
        self.config, self.world, self.schedules = config, world, schedules
        self.fusions, self.wires = fusions or (config.fusion,), wires or (config.wire,)
        agree(world.transport, "compare", self.enter)

    def enter(self) -> dict[str, Any]:
        """Find out who takes part; ValueError if settings have no meaning for a comparison."""
        for name in ("decay", "warmup"):
            if getattr(self.config, name) != getattr(Config, name):
                raise ValueError(f"{name} does not apply to a comparison, whose turns are no whole run")
        check_distinct("fusion", self.fusions, in_bytes)
        check_wires(self.wires)
        kinds = find_schedules(self.schedules)
        self.entries = []
        for fusion in self.fusions:
            for wire, name in pairs(self.wires, kinds):
                own = replace(self.config, schedule=name, wire=wire, fusion=own_fusion(fusion, kinds[name]))
                self.entries.append(Entry(fusion, wire, name, own, own.find_route()))
        self.period = lcm(*(each.route.period for each in self.entries))
        self.apart = self.period > 1 or len({each.wire for each in self.entries}) > 1
        self.turns = turns(self.config.iterations, self.period)
        last = self.period * len(self.turns) + sum(self.turns[:-1])  # when the last turn begins to count
        for each in self.entries:
            if last < each.route.begin:
                rounds = f"the rounds of schedule {each.name!r} begin after {each.route.begin} iterations"
                what = f"iterations must be more than {self.config.iterations}: {rounds}"
                raise ValueError(f"{what}, and none of them would count")
        return {"schedules": tuple(self.schedules), "fusions": tuple(self.fusions), "wires": tuple(self.wires)}

    @property
    def steps(self) -> int:
        """How often ``progress`` is called."""
        return (1 + len(self.turns)) * len(self.entries)

    def called(self, entry: Entry) -> str:
        """What tells one contestant from the others."""
        wire = f", {entry.wire or entry.config.wire_name}" * (len(self.wires) > 1)
        return f"{entry.name}{wire}" + f", fusion {entry.fusion}" * (len(self.fusions) > 1)

    def contestants(self, stack: ExitStack) -> list[Contestant]:
        """One for each entry, on jobs that end with the stack."""
        found, world = list[Contestant](), self.world
        for each in self.entries:
            if self.apart or not found:
                job = stack.enter_context(Job(each.config, world, [each.name] if self.apart else self.schedules))
                world = job.world  # the first job has found out, and said, how ranks wait
            found.append(Contestant(job, each.name, each.fusion))
        return found

    def run(self, contestants: Sequence[Contestant], progress: Progress, recorder: Recorder | None = None) -> None:
        """Collective: let all take their turns. The recorder, if there is one, keeps the last one of each."""
        names = list(map(self.called, self.entries))
        jobs = {each.job: name for name, each in zip(names, contestants, strict=True)}
        with recorder.watching({name: job for job, name in jobs.items()}) if recorder else nullcontext():
            self.take_turns(contestants, names, progress, recorder)

    def take_turns(
        self, contestants: Sequence[Contestant], names: Sequence[str], progress: Progress, recorder: Recorder | None
    ) -> None:
        for name, each in zip(names, awake(contestants), strict=True):
            each.settle()
            progress(f"{name}, first iterations")
        if self.apart:
            done = round_up(max(each.done for each in contestants), self.period)
            for each in awake(contestants):
                each.start(done)
        for turn, count in enumerate(self.turns):
            for name, each in zip(names, awake(contestants), strict=True):
                each.turn(count + self.period - each.period)
                if recorder is not None and turn == len(self.turns) - 1:
                    recorder.keep(each.job, name, kept=min(count, KEPT))
                if self.apart:
                    each.test()
                progress(name)


def awake(contestants: Sequence[Contestant]) -> Iterator[Contestant]:
    """One after the other, each at work on its own stream."""
    for each in contestants:
        with each.job.group.streams.compute.use():
            yield each


def turns(iterations: int, period: int = 1) -> list[int]:
    """Counted iterations of each turn, in whole rounds; a short turn comes first, since a timeline shows the last.

    >>> turns(7), turns(35, 10)
    ([1, 3, 3], [10, 30])
    """
    rounds = -(-iterations // period)
    return [period * min(BLOCK, rounds - start) for start in range(0, rounds, BLOCK)][::-1]
