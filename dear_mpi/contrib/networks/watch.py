"""Watch the links of a job that trains, and make its collectives anew when one changes (``train --watch``).

    check       | 0.2 s | 0.2 s | ...   flush, gather the messages since the last check, rank 0 decides for all
    a link      | usual | slow ->       a graph with its new rate, a new algorithm, proved on all ranks; switch

A message takes from the last of its start, its receive's start and the end of the message before it on its link, to its
end. The graph predicts it from its link's rate, and its ports' rates: there it shares with as many bytes of each other
link as pass meanwhile. A link has changed if nine of ten messages take 1.5 times as long as those on most links, or
less than 1 / 1.5. It has also changed if they take 1.5 times as long as at first, and the ports do not explain it. If
all links slow down, none has changed.

Messages show their link only if their bytes take several times as long as a small message. The watcher cannot see a
link recover if the new program avoids it.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from pathlib import Path
from statistics import median, median_low
from typing import Any, NamedTuple, TypeAlias

from rich.console import Console

from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.program.hosts import format_rate
from dear_mpi.collectives.transports.agree import agree, said_by_rank_0
from dear_mpi.contrib.networks.graph import Graph, read_graph, write_graph
from dear_mpi.ranks.clock import CommonClock
from dear_mpi.reporting.files import check_writable, replacing
from dear_mpi.reporting.terminal import note
from dear_mpi.reporting.units import grouped, plural
from dear_mpi.training.events import KEPT
from dear_mpi.training.events.spans import BLOCKED, BLOCKED_S, Flow, Rank, Run
from dear_mpi.training.runs.train import Observer
from dear_mpi.training.session import Session

EVERY_S, EVERY = 0.2, 4  # between checks, and least iterations: a check flushes, so that one of them does not overlap
CHANGED = 1.5  # times slower or faster than most links
SHARED = 1.25  # times slower than most links, if the ports explain the rest
CLEAR = 4  # times the seconds of a small message without its bytes: larger ones show their link
FEWEST = 10  # messages of a size on a link: all but one must show the change
BUSY = 1.2  # times the best: then most links wait for cores, and no check counts
MOST_RUNS = 200  # collectives per check
CLOCKS = 25  # checks between looks at the clocks

Pair: TypeAlias = tuple[int, int]
Sort: TypeAlias = tuple[int, int, int]  # sender, receiver, bytes


class Passage(NamedTuple):
    """Messages that passed a link one after the other, up to the first one with a known end."""

    pair: Pair
    nbytes: int
    begin_s: float
    end_s: float
    known: bool  # whether this is when they began and ended


class Times(NamedTuple):
    """How many times as long as predicted a passage took."""

    shared: float  # predicted with the other messages in its ports
    alone: float  # predicted from its link


def passages_of(flows: Iterable[Flow]) -> Iterator[Passage]:
    """Yield what passed each link. A message's end is known only if its receiver was blocked until then."""
    for pair, queue in grouped(flows, lambda flow: (flow.sender, flow.receiver)).items():
        free_s, over_s, begin_s, nbytes = -inf, -inf, 0.0, 0
        for flow in sorted(queue, key=lambda flow: flow.begin_s):
            if nbytes and flow.begin_s >= over_s:
                yield Passage(pair, nbytes, begin_s, over_s, known=False)
                nbytes = 0
            if not nbytes:
                begin_s, over_s = max(flow.begin_s, flow.posted_s, free_s), -inf
            nbytes, over_s, took_s = nbytes + flow.part.nbytes, max(over_s, flow.end_s), flow.end_s - begin_s
            if flow.end_s - flow.wait_s > max(BLOCKED_S, BLOCKED * took_s):
                yield Passage(pair, nbytes, begin_s, flow.end_s, known=flow.posted_s <= begin_s)
                free_s, nbytes = flow.end_s, 0
        if nbytes:
            yield Passage(pair, nbytes, begin_s, over_s, known=False)


def times_of(flows: Iterable[Flow], graph: Graph) -> dict[Sort, list[Times]]:
    """Compare the messages of links with the graph."""
    passages = [each for each in passages_of(flows) if each.pair in graph.links and each.end_s > each.begin_s]
    ports, found = defaultdict[tuple[int, str], list[Passage]](list), defaultdict[Sort, list[Times]](list)
    for each in passages:
        for side in sides_of(graph, each.pair):
            ports[side].append(each)
    others = {side: bytes_meanwhile(through) for side, through in ports.items()}
    for each in filter(lambda each: each.known, passages):
        took_s, alone_s = each.end_s - each.begin_s, graph.alpha + each.nbytes / graph.links[each.pair]
        port_s = [
            (each.nbytes + sum(min(each.nbytes, nbytes) for nbytes in others[side][each].values())) / rate
            for side, rate in sides_of(graph, each.pair).items()
        ]
        shared_s = max(alone_s, min(took_s, max(port_s, default=0.0)))  # a port faster than its rate explains all
        found[(*each.pair, each.nbytes)].append(Times(took_s / shared_s, took_s / alone_s))
    return found


def sides_of(graph: Graph, pair: Pair) -> dict[tuple[int, str], float]:
    """Return the ports that a link leaves and enters, with their bytes/s."""
    outs, intos = graph.passed[pair]
    leaving = {(number, "out"): graph.ports[number].out for number in outs}
    return leaving | {(number, "into"): graph.ports[number].into for number in intos}


def bytes_meanwhile(passages: Sequence[Passage]) -> dict[Passage, dict[Pair, float]]:
    """Return how many bytes of each other link passed during each passage, all at constant rates."""
    found: dict[Passage, dict[Pair, float]] = {each: defaultdict(float) for each in passages}
    under_way = list[Passage]()
    for each in sorted(passages, key=lambda each: each.begin_s):
        under_way = [other for other in under_way if other.end_s > each.begin_s]
        for other in under_way:
            both_s = min(each.end_s, other.end_s) - each.begin_s
            found[each][other.pair] += other.nbytes * both_s / (other.end_s - other.begin_s)
            found[other][each.pair] += each.nbytes * both_s / (each.end_s - each.begin_s)
        under_way.append(each)
    return found


@dataclass
class Links:
    """Compare messages with a graph.

    Attributes:
        best: times as long as predicted, on most links, in the best check.
        recent: at least FEWEST, if there were as many.
        first: times as long as predicted from the link, in the first check of these messages.
    """

    graph: Graph
    recent: dict[Sort, list[Times]] = field(default_factory=dict)
    first: dict[Sort, float] = field(default_factory=dict)
    best: float = inf

    def changed(self, seen: Mapping[Sort, Sequence[Times]]) -> dict[Pair, float]:
        """Return the links that changed, and how many times longer their messages take."""
        for sort, each in seen.items():
            self.recent[sort] = [*self.recent.get(sort, []), *each][-max(FEWEST, len(each)) :]
        times = {sort: self.recent[sort] for sort in seen if len(self.recent[sort]) >= FEWEST}
        moving_s = {sort: sort[2] / self.graph.links[sort[:2]] for sort in times}
        least = min((sort[2] for sort in times), default=0)
        small_s = [
            median_low(each).shared * (self.graph.alpha + moving_s[sort]) - moving_s[sort]
            for sort, each in times.items()
            if sort[2] == least
        ]
        clear = [sort for sort in sorted(times) if moving_s[sort] > CLEAR * median(small_s)]
        found = {sort[:2]: sorted(times[sort]) for sort in clear}  # the largest messages of a link come last
        first = {
            sort[:2]: self.first.setdefault(sort, median_low(each.alone for each in times[sort])) for sort in clear
        }
        # The quickest ones would make usual too small: if an end was noted late, the next message seems quick.
        usual = median_low(median_low(each).shared for each in found.values()) if found else inf
        self.best = min(self.best, usual)

        def differ(pair: Pair, each: Sequence[Times]) -> bool:
            few = len(each) // FEWEST
            dropped = sorted(times.alone for times in each)[few] >= CHANGED * first[pair]
            if dropped and median_low(each).shared >= SHARED * usual:
                return True
            return each[few].shared >= CHANGED * usual or each[-1 - few].shared * CHANGED <= usual

        if usual > BUSY * self.best:  # or there is none
            return {}
        return {pair: median_low(each).alone / usual for pair, each in found.items() if differ(pair, each)}

    def take(self, changed: Mapping[Pair, float]) -> None:
        """Expect these rates from now on."""
        rates = {pair: rate / changed.get(pair, 1.0) for pair, rate in self.graph.links.items()}
        self.graph = replace(self.graph, links=rates)
        self.recent.clear()
        self.first.clear()


@dataclass(eq=False)
class Watcher(Observer):
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
        transport = self.session.world.transport
        self.maker, _, file = self.session.options.algorithm.partition(":")
        self.file = Path(file)
        self.links = Links(said_by_rank_0(transport, "watch", self.read))
        self.common = self.clock or CommonClock(transport)
        self.last, self.last_s, self.due, self.checks = 0, 0.0, self.fill, 0

    def read(self) -> Graph:
        """Read the graph. Raises ValueError."""
        ranks, algorithm = self.session.world.size, self.session.options.algorithm
        if self.maker != "synth":
            raise ValueError(f"--watch needs an algorithm made from a graph, as synth:FILE, not {algorithm!r}")
        graph = read_graph(str(self.file))
        if graph.size != ranks:
            raise ValueError(f"--watch: the graph has {graph.size} ranks, and the job {ranks}")
        check_writable("--watch", self.numbered(1))
        return graph

    def numbered(self, number: int) -> Path:
        return self.file.with_name(f"{self.file.stem}-{number}.json")

    def look(self, number: int) -> None:
        """Check, if it is time. Collective, after each iteration."""
        if number < self.due:
            return
        session, transport = self.session, self.session.world.transport
        session.flush()
        runs = session.engine.log.notes.since(self.last_s)[-MOST_RUNS:] if self.last else []
        offset_s = self.common.offset_s()
        mine = Rank("", (), (), transport.rank, tuple(noted.earlier(offset_s) for noted in runs))
        flows = Run("", tuple(transport.gather_values(mine)), transport.size).flows
        now_s = time.perf_counter()

        def decide() -> tuple[int, dict[Pair, float]]:
            each_s = (now_s - self.last_s) / (number - self.last) if self.last else EVERY_S
            times = times_of((flow for flow in flows if flow.part.nbytes), self.links.graph)
            return number + max(EVERY, round(EVERY_S / each_s)), self.links.changed(times)

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
            algorithm = self.remade()
            self.session.switch(algorithm)
        except AgreedError as error:
            note(world, f"watch: a link changed, {said}, and the algorithm stays: {error}")
            return
        took_s = max(world.transport.gather_values(time.perf_counter() - begin_s))
        note(world, f"watch: a link changed, {said}; from iteration {number + 1} on {algorithm} ({took_s:.2g} s)")
        links = [{"link": pair, "from": before[pair], "to": now[pair]} for pair in changed]
        self.changes.append({"iteration": number + 1, "algorithm": algorithm, "links": links, "took_s": took_s})

    def remade(self) -> str:
        """Write the graph on each host, to a new file in the folder of the first one. Collective.

        Returns its algorithm.
        """
        transport = self.session.world.transport
        path = next(each for each in map(self.numbered, count(1)) if not any(transport.gather_values(each.exists())))

        def write() -> dict[str, Any]:
            if transport.hosts.index(transport.hosts[transport.rank]) == transport.rank:
                with replacing("--watch", path) as file:
                    write_graph(self.links.graph, file)
            return {}

        agree(transport, "watch", write)
        return f"{self.maker}:{path}"

    def found(self, name: str, recordings: Sequence[Any] = (), *, parts: int = 1) -> list[dict[str, Any]]:
        return self.changes

    @staticmethod
    def show(console: Console, found: Sequence[Mapping[str, Any]]) -> None:
        console.print(f"watch: {plural(len(found), 'change')} of links")
