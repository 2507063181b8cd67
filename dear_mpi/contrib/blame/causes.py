"""List suspects (ranks, links, layers), with their time beyond the usual."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from dear_mpi.contrib.blame.graph import Link, Sort, Work
from dear_mpi.contrib.blame.messages import Messages, quick
from dear_mpi.contrib.blame.threads import HELD

Usual: TypeAlias = dict[tuple[str, str], float]
"""Seconds of layers in an iteration, by pass and name."""

KINDS = ("rank", "link", "layer")
QUICKEST = 10  # per cent
MOST_LAYERS = 12  # tried: with the most time beyond the usual
PASSES = {"forward": "forward ", "backward": "backward ", "weights": "weights of "}


@dataclass(frozen=True)
class Compared:
    """The quicker messages of one size on a link and on other links, in seconds."""

    nbytes: int
    seconds: float
    others_s: float


class Suspect(NamedTuple):
    """``over_s``: its time beyond the usual, by iteration."""

    kind: str
    name: str
    over_s: Any
    more_s: Mapping[Any, float]  # added to its causes at the usual speed
    ratio: float = 1.0  # to the usual seconds, of a link or a layer
    messages: Compared | None = None  # slowest on a link


def layer_of(name: str) -> tuple[str, str] | None:
    """
    >>> layer_of("backward conv1, part 1 of 2"), layer_of("weights of fc"), layer_of("before forward conv1")
    (('backward', 'conv1'), ('backward', 'fc'), None)
    """
    for kind, begins in PASSES.items():
        if name.startswith(begins):
            layer = re.sub(r", part \d+ of \d+$", "", name.removeprefix(begins))
            return ("backward" if kind == "weights" else kind), layer
    return None


class Suspects:
    """Args:
        usual_s: of layers; default: the median of the run's iterations.

    Attributes:
        tried: for layers, only the ones with the most time beyond the usual.
        count: of all suspects by kind, including untried ones.
    """

    def __init__(self, messages: Messages, usual_s: Usual | None = None) -> None:
        self.messages, self.usual_s, run = messages, usual_s, messages.threads.run
        self.ranks, self.iterations = [rank.number for rank in run.ranks], len(run.ranks[0].iterations)
        edges = (edge for to in messages.graph.edges for edge in to)
        self.works = {edge.cause: edge.seconds for edge in edges if isinstance(edge.cause, Work)}
        every = dict(zip(KINDS, (self.of_ranks(), self.of_links(), self.of_layers()), strict=True))
        self.count = {kind: len(its) for kind, its in every.items()}
        every["layer"] = sorted(every["layer"], key=lambda each: -float(each.over_s.sum()))[:MOST_LAYERS]
        self.tried = [each for its in every.values() for each in its]

    def over(self, more_s: Mapping[Work, float], share: float = 1.0) -> Any:
        found = np.zeros(self.iterations)
        for work, seconds in more_s.items():
            found[work.iteration] -= share * seconds
        return found

    def of_ranks(self) -> list[Suspect]:
        """Compare each rank with the others' time for the same work of an iteration; engine delays scale along."""
        if len(self.ranks) < 2:
            return []
        changes: dict[int, dict[Work, float]] = {rank: {} for rank in self.ranks}
        for work, seconds in self.works.items():
            same = (work._replace(rank=each) for each in self.ranks if each != work.rank)
            beside = [self.works[each] for each in same if each in self.works]
            if beside and work.name != HELD:
                changes[work.rank][work] = median(beside) - seconds
        return [self.of_rank(rank, its) for rank, its in changes.items()]

    def of_rank(self, rank: int, more_s: dict[Work, float]) -> Suspect:
        over_s, taken_s = self.over(more_s), self.over({work: -self.works[work] for work in more_s})
        share = np.divide(over_s, taken_s, out=np.zeros(self.iterations), where=taken_s > 0).clip(0.0)
        held = {work: seconds for work, seconds in self.works.items() if (work.rank, work.name) == (rank, HELD)}
        more_s |= {work: -share[work.iteration] * seconds for work, seconds in held.items()}
        return Suspect("rank", str(rank), over_s, more_s)

    def of_links(self) -> list[Suspect]:
        """Compare each link with the other links' messages of equal size.

        A link is slow if nine of ten of its messages take longer than the others' median message.

        Only messages sent onto a free link count; if it never is free, queued ones do. For the suspected link, both
        main threads must have been waiting; for the others all messages count, so a message held up there makes no link
        look slow. Messages without bytes or duration are ignored.
        """
        alike, compared = defaultdict[tuple[int, bool], dict[Link, list[float]]](dict), defaultdict[Link, Any](dict)
        for (link, nbytes, queued), all_s in self.messages.seen_s.items():
            alike[nbytes, queued][link] = all_s
        for (link, nbytes, queued), own_s in sorted(self.messages.alone_s.items(), key=lambda each: each[0].queued):
            same, other = (
                [of[each] for each in of if each != link] for of in (alike[nbytes, queued], alike[nbytes, not queued])
            )
            own, beside = quick(own_s), same or other
            if nbytes and own > 0 and beside and nbytes not in compared[link]:
                slow = np.percentile(own_s, QUICKEST) > median(map(median, beside))
                usual_s = median(map(quick, beside)) if slow else inf
                compared[link][nbytes] = Compared(nbytes, own, min(usual_s, own))
        return [self.of_link(link, its) for link, its in sorted(compared.items()) if its]

    def of_link(self, link: Link, compared: Mapping[int, Compared]) -> Suspect:
        more_s = {}
        for nbytes, its in compared.items():
            for sort in Sort(link, nbytes, False), Sort(link, nbytes, True):
                more_s[sort] = self.messages.usual_s.get(sort, its.seconds) * (its.others_s / its.seconds - 1)
        ratio = ratio_of(sum(its.nbytes * np.array((its.seconds, its.others_s)) for its in compared.values()))
        most = max(compared.values(), key=lambda its: its.seconds - its.others_s)
        return Suspect("link", str(link), np.zeros(self.iterations), more_s, ratio, messages=most)

    def of_layers(self) -> list[Suspect]:
        """Return each layer at its usual seconds on all ranks, keeping one rank's excess over the others."""
        works = defaultdict[tuple[str, str], list[Work]](list)
        for work in self.works:
            if of := layer_of(work.name):
                works[of].append(work)
        changes, ratios = defaultdict[str, dict[Work, float]](dict), defaultdict[str, Any](lambda: np.zeros(2))
        for (passed, layer), its in works.items():
            middle_s = self.by_iteration(its)
            usual_s = float(np.median(middle_s)) if self.usual_s is None else self.usual_s.get((passed, layer))
            if usual_s is None:
                continue
            for work in its:
                if (taken_s := middle_s[work.iteration]) > 0:
                    changes[layer][work] = self.works[work] * (usual_s / taken_s - 1)
            ratios[layer] += middle_s.sum(), usual_s * len(middle_s)
        return [
            Suspect("layer", layer, self.over(its, 1 / len(self.ranks)), its, ratio=ratio_of(ratios[layer]))
            for layer, its in changes.items()
        ]

    def by_iteration(self, works: Sequence[Work]) -> Any:
        sums = np.zeros((self.iterations, len(self.ranks)))
        for work in works:
            sums[work.iteration, self.ranks.index(work.rank)] += self.works[work]
        return np.median(sums, axis=1)


def ratio_of(seconds: Any) -> float:
    return float(seconds[0] / max(seconds[1], 1e-12))
