"""What was predicted: how long the counted iterations are, and what one rank does in that time.

    last rank begins ----------------------------------> last rank ends       the length, over the iterations: the mean
       one rank begins | forward, backward, waits, updates, the rest | ends    these add up to that

Where ranks compute at different speeds, they may end an iteration apart, as DeAR lets them, and be last in turn. If
each iteration counted with its slowest rank, the distance between two ranks would count again and again. From the last
rank's begin to the last rank's end it counts once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dear_mpi.training.fabric.order import SUMS, Key
from dear_mpi.training.fabric.virtual import VirtualFabric, last, of_rank
from dear_mpi.training.line.bucket import Bucket, Cut
from dear_mpi.training.log.log import COUNTS_AS, EXCHANGE, Log

TIE = 1e-9  # times are alike if they differ by less than this part of them
UNFAIR = 0.02  # a baseline whose buckets cost more than this share of its best time gets a warning
REACHED = 1.005  # times a bound: up to this an iteration reaches it
ALL_REACHED = (
    "Each row reaches the bound of its schedule: another schedule, other buckets or a faster network may help."
)


@dataclass(frozen=True)
class Exposed:
    """How long a rank waits for a collective in an iteration, or for an exchange."""

    collective: str
    bucket: Bucket | None
    seconds: float
    use: int | None = None  # of the layer that exchanges; the sum of the loss has neither a use nor a bucket


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Seconds of an iteration of one schedule: means over those that count, which differ only where there is jitter.

    ``iteration_s`` is the job's. The other seconds, up to ``waits``, are of one rank throughout (``Tally.rank``), and
    add up to it.
    """

    schedule: str
    route: str
    buckets: Cut
    iteration_s: float
    forward_s: float
    backward_s: float
    exposed_s: float  # waiting for communication
    update_s: float  # of the optimiser
    # What is neither a layer, nor waiting, nor an update; and what the rank's own time lacks to the job's time: nothing
    # where one rank is last at the beginning and at the end.
    rest_s: float
    waits: tuple[Exposed, ...]  # what adds up to ``exposed_s``
    bound_s: float  # the least that the schedule allows, for layers and collectives alone
    network_s: Mapping[str, float]  # of each collective that the schedule starts, for all buckets
    log: Log | None = None  # of the last iterations, if it was kept


class Tally:
    """Adds up iterations on a virtual fabric, from now on; all seconds are of all ranks, or of each."""

    def __init__(self, fabric: VirtualFabric) -> None:
        self.fabric, self.iterations, self.begin_s = fabric, 0, fabric.now()
        self.taken_s: dict[str, Any] = dict.fromkeys(("forward", "backward", "update"), 0.0)
        self.waited_s: dict[Key, Any] = defaultdict(float)

    def add(self) -> None:
        self.iterations += 1
        for event in self.fabric.log.last.within:
            if event.kind == "wait":
                key = event.awaited, event.number
                self.waited_s[key] = self.waited_s[key] + event.end - event.begin
            else:
                kind = COUNTS_AS.get(event.kind, event.kind)
                self.taken_s[kind] = self.taken_s[kind] + event.end - event.begin

    @property
    def length_s(self) -> float:
        """From the last rank's begin to the last rank's end."""
        return last(self.fabric.now()) - last(self.begin_s)

    def rank(self) -> int:
        """The rank with the longest own time that is not above ``length_s``; of several, the one that computes most.

        There is one: the rank that was last at the beginning ends no later than the rank that is last at the end.
        """
        if isinstance(self.fabric.now(), float):  # one clock for all
            return 0
        own_s, compute_s = (self.fabric.now() - self.begin_s, self.taken_s["forward"] + self.taken_s["backward"])
        own_s, compute_s = np.broadcast_arrays(np.atleast_1d(own_s), np.atleast_1d(compute_s))
        lacks_s, tie_s = self.length_s - own_s, TIE * self.length_s
        least_s = lacks_s[lacks_s >= -tie_s].min()
        near = (lacks_s >= -tie_s) & (lacks_s <= least_s + tie_s)
        return int(np.argmax(np.where(near, compute_s, -1.0)))

    def exposed(self, key: Key, seconds: float) -> Exposed:
        if key[0] == EXCHANGE:
            return Exposed(EXCHANGE, None, seconds, use=key[1])
        if key in SUMS:
            return Exposed(SUMS[key], None, seconds)
        return Exposed(key[0], self.fabric.buckets[key[1]], seconds)

    def means(self) -> dict[str, Any]:
        """The means of what was added, as ``Prediction`` names them."""
        rank, share = self.rank(), 1 / self.iterations
        waits = [self.exposed(key, share * of_rank(seconds, rank)) for key, seconds in self.waited_s.items()]
        forward_s, backward_s, update_s = (share * of_rank(seconds, rank) for seconds in self.taken_s.values())
        exposed_s, iteration_s = sum(wait.seconds for wait in waits), share * self.length_s
        return {
            "iteration_s": iteration_s,
            "forward_s": forward_s,
            "backward_s": backward_s,
            "exposed_s": exposed_s,
            "update_s": update_s,
            "rest_s": max(0.0, iteration_s - forward_s - backward_s - exposed_s - update_s),  # not -1e-17
            "waits": tuple(wait for wait in waits if wait.seconds),
        }
