"""Watch the links of a job that trains, and make its collectives anew when one changes (``train --watch``).

    check       | 0.2 s | 0.2 s | ...   flush, gather the messages since the last check, rank 0 decides for all
    a link      | usual | slow ->       a graph with its new rate, a new algorithm, proved on all ranks; switch

A message takes from the last of its start, its receive's start and the end of the message before it on its link, to its
end. Times are compared with what the graph predicts, and with those on most links: what slows all alike changes none.
Nine of ten messages must take 1.5 times as long as usual, or less than its 1.5th part.

Messages show their link only if they take several times a small message's overhead. A new algorithm may avoid a link:
then none shows whether it recovers.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from statistics import median, median_low
from typing import Any, NamedTuple, TypeAlias

from rich.console import Console

from dear_mpi.collectives.plans.notes import Noted
from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.program.hosts import format_rate
from dear_mpi.collectives.transports.agree import agree, said_by_rank_0
from dear_mpi.contrib.networks.graph import Graph, read_graph, write_graph
from dear_mpi.ranks.clock import CommonClock
from dear_mpi.reporting.files import replacing
from dear_mpi.reporting.terminal import note
from dear_mpi.reporting.units import plural
from dear_mpi.training.events import KEPT
from dear_mpi.training.session import Session

EVERY_S = 0.2  # between checks, in whole iterations
CHANGED = 1.5  # times slower or faster than usual
CLEAR = 4  # times the overhead of a small message: larger ones show their link
FEWEST = 10  # messages of a size on a link: all but one must show the change
BUSY = 1.2  # times the best: then most links wait for cores, and no check counts
BLOCKED_S, BLOCKED = 20e-6, 0.1  # a wait that is longer, also as a share of its message, waited for it
MOST_RUNS = 200  # collectives per check
CLOCKS = 25  # checks between looks at the clocks

Pair: TypeAlias = tuple[int, int]
Sort: TypeAlias = tuple[int, int, int]  # sender, receiver, bytes
Key: TypeAlias = tuple[int, int, int, int | None, int]  # run, sender, receiver, step, number in the step


class Arrival(NamedTuple):
    key: Key
    nbytes: int
    posted_s: float  # its receive's start
    blocked_s: float  # from when its receiver waited
    end_s: float


class Seen(NamedTuple):
    """What a rank has noted, by the clock of rank 0."""

    starts: dict[Key, float]  # of messages that it sent
    arrivals: list[Arrival]


def seen_by(rank: int, runs: Iterable[Noted], offset_s: float = 0.0) -> Seen:
    seen = Seen({}, [])
    for run in runs:
        posted = dict[Key, float]()
        for part, begin_s, end_s in run.calls():
            if part.peer is None or not part.nbytes:
                continue
            ends = (part.peer, rank) if part.incoming else (rank, part.peer)
            key = (run.number, *ends, part.step, part.number)
            if part.kind == "starting":
                (posted if part.incoming else seen.starts)[key] = begin_s - offset_s
            elif part.kind == "ending" and part.incoming:
                post_s = posted.get(key, -inf)
                seen.arrivals.append(Arrival(key, part.nbytes, post_s, begin_s - offset_s, end_s - offset_s))
    return seen


def seconds_of(ranks: Sequence[Seen]) -> dict[Sort, list[float]]:
    """Return the seconds of messages, by link and bytes.

    Only if a receiver was blocked until a message's end, this end is known. Otherwise the message counts with the next
    ones on its link, up to one with a known end.
    """
    starts = {key: start_s for seen in ranks for key, start_s in seen.starts.items()}
    links, found = defaultdict[Pair, list[Arrival]](list), defaultdict[Sort, list[float]](list)
    for each in (each for seen in ranks for each in seen.arrivals if each.key in starts):
        links[each.key[1:3]].append(each)
    for pair, queue in links.items():
        free_s, over_s, begin_s, nbytes = -inf, -inf, 0.0, 0
        for each in sorted(queue, key=lambda each: starts[each.key]):
            if not nbytes or starts[each.key] >= over_s:
                begin_s, nbytes = max(starts[each.key], each.posted_s, free_s), 0
            nbytes, over_s = nbytes + each.nbytes, max(over_s, each.end_s)
            took_s = each.end_s - begin_s
            if each.end_s - each.blocked_s > max(BLOCKED_S, BLOCKED * took_s):
                if each.posted_s <= begin_s:
                    found[(*pair, nbytes)].append(took_s)
                free_s, nbytes = each.end_s, 0
    return found


@dataclass
class Links:
    """Compare messages with a graph.

    Attributes:
        usual_s: of each size on each link; as the graph predicts, or with ports as first seen.
        machine: times the usual, at best, on most links.
        recent: at least FEWEST, if there were as many.
    """

    graph: Graph
    recent: dict[Sort, list[float]] = field(default_factory=dict)
    usual_s: dict[Sort, float] = field(default_factory=dict)
    machine: float = inf

    def predicted_s(self, sort: Sort) -> float:
        return self.graph.alpha + sort[2] / self.graph.links[sort[:2]]

    def ordered_s(self, seen: Mapping[Sort, Sequence[float]]) -> dict[Sort, list[float]]:
        """Return the messages of each sort that was seen; if it was rare, with earlier ones."""
        for sort, all_s in seen.items():
            self.recent[sort] = [*self.recent.get(sort, []), *all_s][-max(FEWEST, len(all_s)) :]
        return {sort: sorted(self.recent[sort]) for sort in seen if len(self.recent[sort]) >= FEWEST}

    def changed(self, seen: Mapping[Sort, Sequence[float]]) -> dict[Pair, float]:
        """Return the links that changed, and how many times longer their messages take."""
        all_s = {sort: each_s for sort, each_s in self.ordered_s(seen).items() if sort[:2] in self.graph.links}
        least = min((sort[2] for sort in all_s), default=0)
        small_s = [median(each_s) - self.predicted_s(sort) for sort, each_s in all_s.items() if sort[2] == least]
        clear = {sort for sort in all_s if self.predicted_s(sort) > CLEAR * median(small_s)}
        largest, ends = {sort[:2]: sort for sort in sorted(clear)}, dict[Pair, tuple[float, float]]()
        for pair, sort in largest.items():
            each_s, few = all_s[sort], len(all_s[sort]) // FEWEST
            usual_s = self.usual_s.setdefault(sort, median(each_s) if self.graph.ports else self.predicted_s(sort))
            ends[pair] = each_s[few] / usual_s, each_s[-1 - few] / usual_s
        whole = median_low(low for low, _ in ends.values()) if ends else inf
        self.machine = min(self.machine, whole)
        if whole > BUSY * self.machine:  # or there is none
            return {}
        slower = {pair: low / whole for pair, (low, _) in ends.items() if low >= CHANGED * whole}
        return slower | {pair: high / whole for pair, (_, high) in ends.items() if high * CHANGED <= whole}

    def take(self, changed: Mapping[Pair, float]) -> None:
        """Expect these rates from now on."""
        rates = {pair: rate / changed.get(pair, 1.0) for pair, rate in self.graph.links.items()}
        self.graph = replace(self.graph, links=rates)
        self.usual_s = {sort: seconds * changed.get(sort[:2], 1.0) for sort, seconds in self.usual_s.items()}
        self.recent.clear()


@dataclass(eq=False)
class Watcher:
    """Watch a job; construct it, collectively, before the iterations; see ``Observe``.

    Attributes:
        changes: equal on all ranks.
    """

    session: Session
    iterations: int
    fill: int
    clock: CommonClock | None = None
    changes: list[dict[str, Any]] = field(default_factory=list)
    kept = KEPT

    def __post_init__(self) -> None:
        self.algorithm = self.session.options.algorithm
        transport = self.session.world.transport
        agree(transport, "watch", self.check)
        self.common = self.clock or CommonClock(transport)
        self.last, self.last_s, self.due, self.checks = 0, 0.0, self.fill, 0

    def check(self) -> dict[str, Any]:
        """Read the graph. Raises ValueError."""
        ranks, (self.way, colon, self.file) = self.session.world.size, self.algorithm.partition(":")
        if not colon or ".py" in self.algorithm:
            raise ValueError(f"--watch needs an algorithm made from a graph, as synth:FILE, not {self.algorithm!r}")
        self.links = Links(read_graph(self.file))
        if self.links.graph.size != ranks:
            raise ValueError(f"--watch: the graph has {self.links.graph.size} ranks, and the job {ranks}")
        return {"links": sorted(self.links.graph.links.items())}

    def look(self, number: int) -> None:
        """Check, if it is time. Collective, after each iteration."""
        if number < self.due:
            return
        session, transport = self.session, self.session.world.transport
        session.flush()
        runs = session.engine.log.notes.since(self.last_s)[-MOST_RUNS:] if self.last else []
        seen = transport.gather_values(seen_by(transport.rank, runs, self.common.offset_s()))
        now_s = time.perf_counter()

        def decide() -> tuple[int, dict[Pair, float]]:
            each_s = (now_s - self.last_s) / (number - self.last) if self.last else EVERY_S
            return number + max(1, round(EVERY_S / each_s)), self.links.changed(seconds_of(seen))

        self.due, changed = said_by_rank_0(transport, "watch", decide)
        self.checks += 1
        if self.checks % CLOCKS == 0:
            self.common.look()
        if changed:
            self.switch(number, changed)
        self.last, self.last_s = number, time.perf_counter()

    def switch(self, number: int, changed: Mapping[Pair, float]) -> None:
        """Make the algorithm anew; if that fails, keep the old one. Collective."""
        world, begin_s, before = self.session.world, time.perf_counter(), self.links.graph.links
        self.links.take(changed)
        now = self.links.graph.links
        rates = [f"from {format_rate(before[pair])} to {format_rate(now[pair])}" for pair in changed]
        said = ", ".join(f"from rank {u} to rank {v} {rate}" for (u, v), rate in zip(changed, rates, strict=True))
        try:
            algorithm = self.remade(number)
            self.session.switch(algorithm)
        except AgreedError as error:
            note(world, f"watch: a link changed, {said}, and the algorithm stays: {error}")
            return
        took_s = max(world.transport.gather_values(time.perf_counter() - begin_s))
        note(world, f"watch: a link changed, {said}; from iteration {number + 1} on {algorithm} ({took_s:.2g} s)")
        links = [{"link": pair, "from": before[pair], "to": now[pair]} for pair in changed]
        self.changes.append({"iteration": number + 1, "algorithm": algorithm, "links": links, "took_s": took_s})

    def remade(self, number: int) -> str:
        """Write the graph on each host, in the folder of the first one; return its algorithm. Collective."""
        transport, path = self.session.world.transport, Path(self.file)
        path = path.with_name(f"{path.stem}-{number}.json")

        def write() -> dict[str, Any]:
            if transport.hosts.index(transport.hosts[transport.rank]) == transport.rank:
                with replacing("--watch", path) as file:
                    write_graph(self.links.graph, file)
            return {}

        agree(transport, "watch", write)
        return f"{self.way}:{path}"

    def found(self, name: str, recordings: Sequence[Any] = (), *, parts: int = 1) -> list[dict[str, Any]]:
        return self.changes

    @staticmethod
    def show(console: Console, found: Sequence[Mapping[str, Any]]) -> None:
        console.print(f"watch: {plural(len(found), 'change')} of links")
