"""Where the time of a collective goes, step by step: waiting for peers, transfer, combining, copying.

    rank 1   started its end of the message:            |
    rank 2   blocked in Wait:               |- waiting -|- transfer -|- combining -|

A wait is *waiting* for the peer until the peer has started its end of the message, and *transfer* from then on; so are
the calls that start messages. *Combining* and *copying* are what is done with a message beside that. The calls of a
rank follow one another, so these times, and what passes outside of them, add up to the time of the collective on it.

Clocks of several hosts are compared before and after (``ranks/clock.py``); ranks of one host have the same clock.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from dear_mpi.bench.case import Case
from dear_mpi.bench.inside.subject import Subject, subject
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.collectives.plans.recorded import Note, RecordedRun
from dear_mpi.collectives.plans.runners.messages import MessagesRun
from dear_mpi.kernels.array import Array
from dear_mpi.ranks.clock import Offset, offsets
from dear_mpi.ranks.world import World

KINDS = ("waiting", "transfer", "combining", "copying")
WARM_UP, RUNS = 2, (5, 20)  # the fewest and the most that count


class Span(NamedTuple):
    """What a rank did, on the clock of rank 0; ``peer`` is the one that it waited for, or exchanged a message with."""

    kind: str  # one of KINDS
    step: int
    peer: int
    begin_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True)
class Cell:
    """A rank in a step: means over runs, in us."""

    rank: int
    step: int
    waiting_us: float
    transfer_us: float
    combining_us: float
    copying_us: float
    waits_for: int | None  # the peer that most of the waiting was for

    @property
    def total_us(self) -> float:
        return self.waiting_us + self.transfer_us + self.combining_us + self.copying_us


@dataclass(frozen=True)
class Steps(Subject):
    """The steps of one plan of ours."""

    segment_bytes: int
    runs: int  # that count: those whose length is in the middle half
    time_us: list[float]  # of the collective on each rank, recorded; means, as all that follows
    plain_us: list[float]  # not recorded
    outside_us: list[float]  # of the steps: copies before and after, Python between the calls
    clocks_us: float  # by which times on different hosts may be wrong; 0 on one host
    cells: list[Cell]
    spans: list[list[Span]] = field(repr=False)  # of each rank, in the run of median length

    def as_row(self) -> dict[str, Any]:
        """For a report: all but the spans."""
        return {name: value for name, value in asdict(self).items() if name != "spans"}

    @property
    def recording(self) -> float:
        """By how much recording made the collective slower, as a part of its time."""
        return float(np.mean(self.time_us) / np.mean(self.plain_us)) - 1


def steps_of(name: str, case: Case, plan: Plan, world: World, seconds: float) -> list[Steps]:
    """Collective: record as many runs of a plan as the seconds have room for; none if its run sends no messages.

    Its buffer must hold what stays the same however often it is combined, such as zeros. Plain and recorded runs take
    turns, each from a barrier on.
    """
    if not isinstance(plan.run, MessagesRun):
        return []
    watch = Watch(plan, world)
    watch.turns(WARM_UP)
    turn_s = max(world.transport.gather_values(sum(watch.last_s)))
    with watch.common_clock():
        runs = watch.turns(int(min(max(seconds / turn_s, RUNS[0]), RUNS[1])))
    found = watch.summary(subject(name, case, world.transport), runs)
    watch.recorded.free()
    return [found]


class Run(NamedTuple):
    """A recorded run on this rank."""

    notes: list[Note]
    begin_s: float
    end_s: float
    plain_s: float  # of the plain run before it


class Watch:
    """Collective: runs a plan, recorded and not."""

    def __init__(self, plan: Plan, world: World) -> None:
        assert isinstance(plan.run, MessagesRun), "the caller has seen it"
        self.plan, self.transport = plan, world.transport
        self.clocks = len(set(world.machines or world.transport.hosts)) > 1  # whether there are several
        self.plain, self.recorded = plan.run, RecordedRun(plan.run)
        self.offset, self.uncertainty_s, self.last_s = 0.0, 0.0, (0.0, 0.0)

    @contextmanager
    def common_clock(self) -> Iterator[None]:
        """Compare clocks before and after; between, they are taken to be in the middle."""
        pairs: list[list[Offset]] = [offsets(self.transport)] if self.clocks else []
        yield
        if not self.clocks:
            return
        pairs.append(offsets(self.transport))
        before, after = pairs
        self.offset = (before[self.transport.rank].seconds + after[self.transport.rank].seconds) / 2
        drifts = [abs(one.seconds - other.seconds) / 2 for one, other in zip(before, after, strict=True)]
        self.uncertainty_s = max(drifts) + max(each.uncertainty_s for each in (*before, *after))

    def turns(self, count: int) -> list[Run]:
        found = []
        for _ in range(count):
            begin_s, end_s = self.timed(self.plain)
            found.append(self.record(end_s - begin_s))
            self.last_s = end_s - begin_s, found[-1].end_s - found[-1].begin_s
        return found

    def record(self, plain_s: float = 0.0) -> Run:
        self.recorded.notes.clear()
        begin_s, end_s = self.timed(self.recorded)
        return Run(self.recorded.notes[:], begin_s, end_s, plain_s)

    def timed(self, run: MessagesRun) -> tuple[float, float]:
        self.plan.run = run
        try:
            self.transport.barrier()
            begin_s = perf_counter()
            self.plan()
            return begin_s, perf_counter()
        finally:
            self.plan.run = self.plain

    def summary(self, facts: Mapping[str, Any], runs: Sequence[Run]) -> Steps:
        """What all ranks found, folded; the same on all. ``facts`` say of whom."""
        transport = self.transport
        spans = [self.spans_of(run, starts) for run, starts in zip(runs, self.peers_starts(runs), strict=True)]
        seconds = np.array(transport.gather_values([run.end_s - run.begin_s for run in runs]))
        order = seconds.max(axis=0).argsort()
        middle = order[len(runs) // 4 : len(runs) - len(runs) // 4].tolist()
        kept = [spans[number] for number in middle]
        mine = cells_of(transport.rank, kept), float(np.mean([runs[number].plain_s for number in middle]))
        shown = order[len(runs) // 2]
        cells, plain_s = zip(*transport.gather_values(mine), strict=True)
        time_us = seconds[:, middle].mean(axis=1) * 1e6
        inside_us = [sum(cell.total_us for cell in found) for found in cells]
        return Steps(
            **facts,
            segment_bytes=self.plan.segment_bytes,
            runs=len(middle),
            time_us=time_us.tolist(),
            plain_us=[each * 1e6 for each in plain_s],
            outside_us=(time_us - inside_us).tolist(),
            clocks_us=self.uncertainty_s * 1e6,
            cells=[cell for found in cells for cell in found],
            spans=transport.gather_values(spans[shown]),
        )

    def peers_starts(self, runs: Sequence[Run]) -> list[list[float]]:
        """When the peers started their ends of this rank's messages, in each run, by rank 0's clock."""
        messages, rank = self.recorded.listing.messages, self.transport.rank
        mine = [(rank, each.peer, each.key, each.incoming) for each in messages]
        places: list[dict[object, int]] = [
            {each: number for number, each in enumerate(theirs)} for theirs in self.transport.gather_values(mine)
        ]
        ends = [(each.peer, places[each.peer][each.peer, rank, each.key, not each.incoming]) for each in messages]
        found = []
        for run in runs:
            started = self.transport.gather_values(self.starts_of(run))
            found.append([float(started[peer][number]) for peer, number in ends])
        return found

    def starts_of(self, run: Run) -> Array:
        starts = np.zeros(len(self.recorded.listing.messages))
        for part, begin_s, _ in run.notes:
            if part.kind == "starting":
                starts[part.message] = begin_s - self.offset
        return starts

    def spans_of(self, run: Run, starts: Sequence[float]) -> list[Span]:
        """The notes of a run, on rank 0's clock, with each wait cut where the peer had started its end."""
        messages, found = self.recorded.listing.messages, []
        for (kind, step, message), begin, end in run.notes:
            begin_s, end_s, peer = begin - self.offset, end - self.offset, messages[message].peer
            if kind == "ending":
                until_s = min(max(begin_s, starts[message]), end_s)
                found.append(Span("waiting", step, peer, begin_s, until_s))
                begin_s = until_s
            found.append(Span(kind if kind in KINDS else "transfer", step, peer, begin_s, end_s))
        return found


def cells_of(rank: int, runs: Sequence[Sequence[Span]]) -> list[Cell]:
    """The steps of a rank, means over runs."""
    total_us, awaited = Counter[tuple[int, str]](), Counter[tuple[int, int]]()
    for kind, step, peer, begin_s, end_s in (span for run in runs for span in run):
        lasted_us = (end_s - begin_s) * 1e6 / len(runs)
        total_us[step, kind] += lasted_us  # type: ignore[assignment]
        if kind == "waiting":
            awaited[step, peer] += lasted_us  # type: ignore[assignment]
    found = []
    for step in sorted({step for step, _ in total_us}):
        peers = {peer: us for (each, peer), us in awaited.items() if each == step and us > 0}
        parts = {f"{kind}_us": float(total_us[step, kind]) for kind in KINDS}
        found.append(Cell(rank=rank, step=step, waits_for=max(peers, key=peers.__getitem__, default=None), **parts))
    return found
