"""Define a route: the stages (legs) of a bucket, on the way out and on the way back.

    full      pack | reduce_scatter gradients            all_gather gradients | update all | unpack
    sharded   pack | reduce_scatter gradients            update the own shard | all_gather values | unpack
              out: ``start("reduce_scatter")``           back: ``start("all_gather")``; ``start("all_reduce")`` is both

The main thread runs its legs at the start of a way, and those at the end of the way back when the schedule updates. The
engine runs all other legs in order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise, takewhile
from math import lcm
from typing import TypeVar

from dear_mpi.training.routes.codes import OfCodes
from dear_mpi.training.routes.legs import ENGINE, LOOK, MAIN, Collective, Leg, Shape, Update

WAYS = {"reduce_scatter": ("out",), "all_gather": ("back",), "all_reduce": ("out", "back")}  # started by schedules
# Started by schedules outside the ways of a route, by the names in ``extras``.
EXTRAS = {
    "negotiation": Collective(name="all_reduce", line="readiness", op="min", few=True, called="negotiation"),
    "second all_gather": Collective(name="all_gather", line="values", called="second all_gather"),
}
Bucket = TypeVar("Bucket")


@dataclass(frozen=True)
class Route:
    """List the legs of both ways.

    Attributes:
        wire: default type of travelling gradients, by name; None for the parameters' type.
        staggered: whether buckets end their rounds in different iterations, evenly spread.
    """

    name: str
    out: tuple[Leg, ...]
    back: tuple[Leg, ...]
    wire: str | None = None
    staggered: bool = False

    @property
    def legs(self) -> tuple[Leg, ...]:
        return self.out + self.back

    @property
    def period(self) -> int:
        """Return after how many iterations legs repeat."""
        return lcm(*(leg.every for leg in self.legs))

    @property
    def begin(self) -> int:
        """Return the iteration where the rounds become alike."""
        return max(leg.first for leg in self.legs)

    @cached_property
    def delay(self) -> int:
        """Return how many iterations data are used after they were sent."""
        return max(leg.after for leg in self.legs)

    @cached_property
    def steady(self) -> bool:
        return all((leg.every, leg.after, leg.first, leg.until) == (1, 0, 0, None) for leg in self.legs)

    @property
    def lags(self) -> bool:
        """Return whether no iteration ends with equal values on all ranks."""
        return self.staggered or self.delay > 0

    def shift(self, bucket: int, buckets: int) -> int:
        return bucket * self.period // buckets if self.staggered else 0

    @cached_property
    def last(self) -> tuple[Leg, ...]:
        """Return the main thread's legs at the end of the way back."""
        return tuple(takewhile(lambda leg: leg.on == MAIN, reversed(self.back)))[::-1]

    @cached_property
    def ways(self) -> dict[tuple[str, str], tuple[Leg, ...]]:
        """Map way, ``out`` or ``back``, and thread to the legs that run from its beginning."""
        ways = {"out": self.out, "back": self.back[: len(self.back) - len(self.last)]}
        return {(way, on): tuple(leg for leg in ways[way] if leg.on == on) for way in ways for on in (MAIN, ENGINE)}

    @cached_property
    def begins(self) -> dict[str, tuple[Leg, ...]]:
        """Map a schedule's collectives to the main thread's first legs."""
        return {name: sum((self.ways[way, MAIN] for way in ways), ()) for name, ways in WAYS.items()}

    def orders(self) -> Iterator[tuple[Leg, ...]]:
        """Yield each order of legs: the main thread may begin the way back before or during the engine's way out."""
        own, engine = self.ways["back", MAIN], self.ways["out", ENGINE]
        for places in reversed([*combinations(range(len(own) + len(engine)), len(own))]):  # first with the engine early
            mine, others = iter(own), iter(engine)
            between = [next(mine if at in places else others) for at in range(len(own) + len(engine))]
            yield (*self.ways["out", MAIN], *between, *self.ways["back", ENGINE], *self.last)

    @property
    def updates(self) -> list[Update]:
        """List the updates, earliest first: one of them is due in each iteration."""
        return sorted((leg for leg in self.legs if isinstance(leg, Update)), key=lambda leg: leg.first)

    @property
    def update(self) -> Update:
        return self.updates[0]  # all cover the same part of a bucket

    @cached_property
    def updates_under_way(self) -> bool:
        """Tell whether the engine updates before the schedule asks for it."""
        return any(leg.on == ENGINE for leg in self.updates)

    @cached_property
    def lines(self) -> dict[str, str]:
        return {line: kind for leg in self.legs for line, kind in leg.lines.items()}

    @property
    def errors(self) -> tuple[str, ...]:
        return tuple(line for line, kind in self.lines.items() if kind == "own")

    @cached_property
    def codes(self) -> dict[str, OfCodes]:
        """Map each line of codes to its first leg."""
        return {leg.codes: leg for leg in reversed(self.legs) if isinstance(leg, OfCodes)}

    @property
    def sends_gradients(self) -> bool:
        sent = {leg.line for leg in self.legs if isinstance(leg, Collective)}
        return not sent.isdisjoint({"gradients", *self.codes})

    @property
    def has_levels(self) -> bool:
        return any(leg.level for leg in self.legs)

    @property
    def whole(self) -> bool:
        return any(leg.whole for leg in self.legs)

    def check(self, hosts: Sequence[int]) -> None:
        """Check that ranks on these hosts can run all legs; ValueError if not."""
        ranks = len(hosts)
        for leg in self.legs:
            if objection := leg.objection(ranks):
                raise ValueError(f"route {self.name!r} on {ranks} ranks: {objection}")
        if self.has_levels and len(set(hosts)) == 1:
            what = f"has legs between hosts, and all ranks are on one ({ranks} ranks; a network of one link is one)"
            example = "--link, or --network, 1gbit,20us/20mbit,100us,per_host=2"
            raise ValueError(f"route {self.name!r} {what}: take another wire or route, or emulate hosts ({example})")

    def check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Raise a ValueError if some leg has nothing to do for these tensors."""
        for leg in self.legs:
            if not leg.has_use(shapes):
                what = "the model has no matrix that is large enough for it (a table of layers has no shapes)"
                raise ValueError(f"route {self.name!r}: leg ({leg}) has nothing to do: {what}")

    @cached_property
    def jobs(self) -> dict[str, tuple[tuple[Leg, ...], ...]]:
        """Map a schedule's collectives to the engine's jobs, tuples of legs; adjacent halves become an all-reduce.

        Statistics end the way out, because the way back may round the sums.
        """
        out, back = (self.ways[way, ENGINE] for way in WAYS["all_reduce"])
        jobs = {"reduce_scatter": ((*out, LOOK),), "all_gather": (back,), "all_reduce": ((*out, LOOK), back)}
        if not any(isinstance(leg, Update) for leg in back):
            whole, end = joined(out + back), len(joined(out))
            jobs["all_reduce"] = ((*whole[:end], LOOK, *whole[end:]),)
        return jobs

    def collectives(self, name: str) -> tuple[Collective, ...]:
        if name in EXTRAS:
            return (EXTRAS[name],)
        return tuple(leg for job in self.jobs[name] for leg in job if isinstance(leg, Collective))

    def priced(self, price: Callable[[Collective, Bucket], float]) -> Callable[[str, Bucket], float]:
        """Price what a schedule starts, in mean seconds per iteration."""
        return lambda name, bucket: sum(price(leg, bucket) * leg.share for leg in self.collectives(name))

    def nbytes(
        self,
        line: str,
        count: int,
        *,
        wire: int,
        values: int,
        ranks: int,
        longest: int | None = None,
        shapes: tuple[Shape, ...] = (),
    ) -> int:
        """Return the bytes of a collective on ``count`` elements of a line.

        Args:
            wire, values: bytes per element of travelling gradients, and of parameters.
            longest: elements of the longest shard, if shards are unequal; all then count with this length.
        """
        if line in self.codes:
            longest = longest or count // ranks
            return self.codes[line].line_bytes(count, longest=longest, itemsize=wire, ranks=ranks, shapes=shapes)
        return (ranks * longest if longest else count) * (wire if line == "gradients" else values)

    def __str__(self) -> str:
        return f"{' | '.join(map(said, self.out))}  ->  {' | '.join(map(said, self.back))}"


def reduces(collective: str) -> bool:
    return "out" in WAYS.get(collective, ())


def joined(legs: tuple[Leg, ...]) -> tuple[Leg, ...]:
    """Merge two halves of an all-reduce if both run in the same iterations."""
    for at, (one, other) in enumerate(pairwise(legs)):
        if not isinstance(one, Collective) or one.name != "reduce_scatter":
            continue
        if other == replace(one, name="all_gather", op="sum", few=False, called=""):
            return (*legs[:at], replace(one, name="all_reduce"), *joined(legs[at + 2 :]))
    return legs


def said(leg: Leg) -> str:
    """Describe a leg, with its thread if unusual."""
    usual = ENGINE if isinstance(leg, Collective) else MAIN
    thread = f" on the {'engine' if leg.on == ENGINE else 'main'} thread" * (leg.on != usual)
    return f"{leg}{thread}{when(leg)}"


def when(leg: Leg) -> str:
    every = f" every {leg.every} iterations" * (leg.every > 1)
    late = f", {leg.after} later" * (leg.after > 0)
    fits = "" if leg.fits is None else " where codes fit" if leg.fits else " where codes do not fit"
    return f"{fits}{every}{late}{f' from {leg.first} on' * (leg.first > 0)}{f' until {leg.until}' if leg.until else ''}"
