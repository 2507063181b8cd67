"""Build a timeline of ranks and runs from plain values, alike for live and virtual runs.

rank 0  compute   | forward conv1 | forward fc | backward fc | wait for ... | update of bucket 0 |
        wire                                         | all_reduce of bucket 0 (layers 0..1, 4.2 MiB) |

``merged`` refuses unknown clocks, and clocks that messages contradict: none can end before it was sent.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import Any, NamedTuple, TypeAlias, TypeVar

from dear_mpi.collectives.plans.notes import Noted, Part
from dear_mpi.ranks.clock import Aligned
from dear_mpi.training.events import EXCHANGE, Log, Record

T = TypeVar("T", "Span", "Iteration")
COMPUTE, WIRE = "compute", "wire"  # main thread, engine
Clock: TypeAlias = Callable[[str, Any], float]  # seconds of a mark in a lane
BLOCKED_S, BLOCKED = 20e-6, 0.1  # a wait that is longer, also as a share of its message, waited for it
COLLECTIVES = ("reduce_scatter", "all_gather", "all_reduce", EXCHANGE)
KINDS = ("forward", "backward", "weights", "wait", "update", *COLLECTIVES, "other")


class Span(NamedTuple):
    """Record an action of a rank, in seconds; spans of one lane do not overlap.

    ``kind`` is one of ``KINDS`` (``other``: a sum of the loss or of statistics).
    """

    lane: str
    kind: str
    name: str
    begin_s: float
    end_s: float
    args: Mapping[str, Any] | None = None

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


class Iteration(NamedTuple):
    """Delimit an iteration, from forward's beginning to the last hook's end."""

    number: int
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Rank:
    """Record one rank by its clock, or all ranks if alike, ordered by beginning."""

    name: str
    iterations: tuple[Iteration, ...]
    spans: tuple[Span, ...]
    number: int = 0
    noted: tuple[Noted, ...] = ()  # its collectives

    def within(self, iteration: Iteration, kind: str) -> Iterator[Span]:
        """Yield the spans of a kind with their middle in an iteration."""
        for span in self.spans:
            if span.kind == kind and 2 * iteration.begin_s <= span.begin_s + span.end_s <= 2 * iteration.end_s:
                yield span


Ranks: TypeAlias = Mapping[int, Noted]
"""One collective on its ranks, on one clock."""

End: TypeAlias = tuple[int, int, int | None, int, bool]
"""An end of a message: rank, peer, step, number in the step, incoming."""


class Flow(NamedTuple):
    """A message, from the sender's start to the receiver's end."""

    sender: int
    begin_s: float
    receiver: int
    end_s: float
    part: Part
    posted_s: float  # its receive's start
    wait_s: float  # the beginning of the receiver's wait

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


def end_of(rank: int, part: Part) -> End:
    assert part.peer is not None, "it is an end of a message"
    return rank, part.peer, part.step, part.number, part.incoming


def other_end(rank: int, part: Part) -> End:
    rank, peer, step, number, incoming = end_of(rank, part)
    return peer, rank, step, number, not incoming


def starts_of(ranks: Ranks) -> dict[End, float]:
    """Return when each message was started; raising a counter (without a peer) tells all other ranks."""
    return {
        end_of(rank, part._replace(peer=peer)): begin_s
        for rank, noted in ranks.items()
        for part, begin_s, _ in noted.calls()
        if part.kind == "starting"
        for peer in (set(ranks) - {rank} if part.peer is None else {part.peer})
    }


def flows_of(ranks: Ranks) -> Iterator[Flow]:
    """Yield the messages with both ends known."""
    starts = starts_of(ranks)
    for rank, noted in ranks.items():
        for part, wait_s, end_s in noted.calls():
            if part.kind == "ending" and part.incoming and (begin_s := starts.get(other_end(rank, part))) is not None:
                own = end_of(rank, part)
                yield Flow(own[1], begin_s, rank, end_s, part, starts.get(own, -math.inf), wait_s)


@dataclass(frozen=True)
class Run:
    """Hold the last iterations of one schedule, on all ranks or some of very many."""

    name: str  # unique within a timeline
    ranks: tuple[Rank, ...]
    size: int  # number of ranks
    uncertainty_s: float = 0.0  # largest error between times on two ranks

    @cached_property
    def timed(self) -> list[Any]:
        return [each for rank in self.ranks for each in (*rank.spans, *rank.iterations, *rank.noted)]

    @cached_property
    def begin_s(self) -> float:
        return min((each.begin_s for each in self.timed), default=0.0)

    @cached_property
    def end_s(self) -> float:
        return max((each.end_s for each in self.timed), default=0.0)

    @cached_property
    def collectives(self) -> list[dict[int, Noted]]:
        """Return the collectives that all ranks have noted, in order; of each, the notes by rank."""
        first = max((min(each.number for each in rank.noted) for rank in self.ranks if rank.noted), default=0)
        found = defaultdict[int, dict[int, Noted]](dict)
        for rank in self.ranks:
            for noted in rank.noted:
                if noted.number >= first:
                    found[noted.number][rank.number] = noted
        return [found[number] for number in sorted(found)]

    @cached_property
    def flows(self) -> list[Flow]:
        return [flow for their in self.collectives for flow in flows_of(their)]


@dataclass(frozen=True)
class Timeline:
    """Hold runs and their common facts."""

    live: bool  # measured, or predicted
    runs: tuple[Run, ...]
    facts: dict[str, Any] = field(default_factory=dict)  # such as the model and the network


def rank_of(log: Log, name: str, layers: Sequence[str], clock: Clock, *, kept: int) -> Rank:
    """Record one rank's last ``kept`` iterations, with names of layers; nothing may be under way."""
    known = list(log.records)
    records = [record for record in known if record.end is not None][-kept:]
    iterations = tuple(Iteration(each.number, clock(COMPUTE, each.begin), clock(COMPUTE, each.end)) for each in records)
    begin_s = iterations[0].begin_s if iterations else -math.inf
    shown = [
        span for record in known for span in spans_in(record, layers, clock) if span.end_s > max(begin_s, span.begin_s)
    ]
    return Rank(name, iterations, tuple(sorted(shown, key=lambda span: span.begin_s)))


def spans_in(record: Record, layers: Sequence[str], clock: Clock) -> Iterator[Span]:
    passed, seen = Counter(event.kind for event in record.within), Counter[tuple[str, int]]()
    for lane, events in ((COMPUTE, (*record.within, *record.after)), (WIRE, record.engine)):
        for event in events:
            kind = event.kind.rpartition(" ")[2]  # a second all_gather is one as well
            name, number, begin_s = str(event.what), event.number, clock(lane, event.begin)
            if kind in ("forward", "backward"):
                seen[kind, number] += 1
                name, parts = f"{kind} {layers[number]}", passed[kind] // len(layers)
                name += f", part {seen[kind, number]} of {parts}" * (parts > 1)
            elif kind == "weights":
                name = f"weights of {layers[number]}"
            elif kind == "update":
                name = f"update of bucket {number}"
            elif kind == "wait":
                name = f"wait for {name}"
            elif lane == COMPUTE:
                continue
            args = None if event.since is None else {"queued_s": begin_s - clock(COMPUTE, event.since)}
            kind = kind if kind in KINDS else "other"
            yield Span(lane, kind, with_units(name), begin_s, clock(lane, event.end), args)


def common(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Map names to the value common to all rows, or to all values.

    >>> common([{"model": "cnn", "schedule": "wfbp"}, {"model": "cnn", "schedule": "dear"}])
    {'model': 'cnn', 'schedule': ['wfbp', 'dear']}
    """
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {name: found[0] if all(each == found[0] for each in found) else found for name, found in columns.items()}


def with_units(label: str) -> str:
    """Rewrite the sizes in a label for readers.

    >>> with_units("all_reduce of bucket 3 (layers 8..12, 4404019 bytes)"), with_units("fc1 (512 bytes)")
    ('all_reduce of bucket 3 (layers 8..12, 4.2 MiB)', 'fc1 (0.5 KiB)')
    """

    def size(found: re.Match[str]) -> str:
        nbytes = int(found[1])
        return f"{nbytes / 2**20:.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:.1f} KiB"

    return re.sub(r"(\d+) bytes", size, label)


class ClocksError(ValueError):
    """Report that clocks of ranks cannot be compared."""


@dataclass(frozen=True)
class Recording:
    """Hold one rank's record by its clock."""

    name: str
    size: int
    rank: Rank
    aligned: Aligned


def merged(recordings: Sequence[Recording]) -> Run:
    """Merge ranks into one run.

    Raises:
        ClocksError: a rank's clock is unknown, or less exact than messages need.
    """
    uncertain_s = [0.0, 0.0]
    for each in recordings:
        if doubt := each.aligned.doubt():
            raise ClocksError(f"the clocks of ranks 0 and {each.rank.number} cannot be compared: {doubt}")
        own = Run(each.name, (each.rank,), each.size)
        uncertain_s.append(max(map(each.aligned.uncertainty_s, (own.begin_s, own.end_s))))
    ranks = tuple(moved(each.rank, each.aligned) for each in recordings)
    run = Run(recordings[0].name, ranks, recordings[0].size, sum(sorted(uncertain_s)[-2:]))
    check(run)
    return run


def moved(rank: Rank, aligned: Aligned) -> Rank:
    def at(each: T) -> T:
        begin_s, end_s = (seconds - aligned.offset_s(seconds) for seconds in (each.begin_s, each.end_s))
        return each._replace(begin_s=begin_s, end_s=end_s)

    if not aligned.offsets:
        return rank
    return replace(
        rank,
        iterations=tuple(map(at, rank.iterations)),
        spans=tuple(map(at, rank.spans)),
        noted=tuple(noted.earlier(aligned.offset_s(noted.begin_s)) for noted in rank.noted),
    )


def check(run: Run) -> None:
    flows, known_s = run.flows, run.uncertainty_s
    if not flows:
        return
    first = min(flows, key=lambda flow: flow.seconds)
    if first.seconds < -known_s:
        ends = f"rank {first.receiver} has a message {-first.seconds:.3g} s before rank {first.sender} sent it"
        raise ClocksError(f"the clocks are wrong by more than the {known_s:.3g} s that are known of them: {ends}")
    usual_s = median(flow.seconds for flow in flows)
    if known_s > usual_s:
        usual = f"half of all messages took no longer than {usual_s:.3g} s"
        raise ClocksError(f"the clocks are known within {known_s:.3g} s only, and {usual}")
