"""A route: the legs that a bucket goes through, on the way out and on the way back.

    full      pack | reduce_scatter gradients            all_gather gradients | update all | unpack
    sharded   pack | reduce_scatter gradients            update the own shard | all_gather values | unpack
              out: ``start("reduce_scatter")``           back: ``start("all_gather")``; ``start("all_reduce")`` is both

A schedule says when either way begins, and when it waits. The main thread carries its legs out when their way begins;
those at the end of the way back when the schedule lets the fabric update. The engine carries out the others, in order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise, takewhile
from math import lcm
from typing import TypeVar

from dear_mpi.training.routes.codes import OfCodes
from dear_mpi.training.routes.legs import ENGINE, LOOK, MAIN, Collective, Leg, Shape, Update

WAYS = {"reduce_scatter": ("out",), "all_gather": ("back",), "all_reduce": ("out", "back")}  # that schedules start
# What schedules start beside the ways of a route, by the names in their ``extras``.
EXTRAS = {
    "negotiation": Collective(name="all_reduce", line="readiness", op="min", few=True, called="negotiation"),
    "second all_gather": Collective(name="all_gather", line="values", called="second all_gather"),
}
Bucket = TypeVar("Bucket")


@dataclass(frozen=True)
class Route:
    """The legs of both ways.

    Attributes:
        wire: the type in which gradients travel, by name, where the user gives no other; None for the parameters' own.
        staggered: whether each bucket ends its rounds in an iteration of its own, evenly spread.
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
        """Iterations after which it is as at the beginning."""
        return lcm(*(leg.every for leg in self.legs))

    @property
    def begin(self) -> int:
        """The first iteration from which on one round is like the next."""
        return max(leg.first for leg in self.legs)

    @cached_property
    def delay(self) -> int:
        """After how many iterations what was sent is used, at most."""
        return max(leg.after for leg in self.legs)

    @cached_property
    def steady(self) -> bool:
        """Whether all legs are due in every iteration."""
        return all((leg.every, leg.after, leg.first, leg.until) == (1, 0, 0, None) for leg in self.legs)

    @property
    def lags(self) -> bool:
        """Whether there is no iteration after which all ranks have the same values."""
        return self.staggered or self.delay > 0

    def shift(self, bucket: int, buckets: int) -> int:
        """By how many iterations a bucket's rounds end later than those of the first one."""
        return bucket * self.period // buckets if self.staggered else 0

    @cached_property
    def last(self) -> tuple[Leg, ...]:
        """What the main thread does when all else is over."""
        return tuple(takewhile(lambda leg: leg.on == MAIN, reversed(self.back)))[::-1]

    @cached_property
    def ways(self) -> dict[tuple[str, str], tuple[Leg, ...]]:
        """What a thread does from the beginning of the way ``out``, or ``back``, by way and thread."""
        ways = {"out": self.out, "back": self.back[: len(self.back) - len(self.last)]}
        return {(way, on): tuple(leg for leg in ways[way] if leg.on == on) for way in ways for on in (MAIN, ENGINE)}

    @cached_property
    def begins(self) -> dict[str, tuple[Leg, ...]]:
        """What the main thread does first for what schedules start, by its name."""
        return {name: sum((self.ways[way, MAIN] for way in ways), ()) for name, ways in WAYS.items()}

    def orders(self) -> Iterator[tuple[Leg, ...]]:
        """All legs, in each order in which both threads may carry them out.

        The main thread may begin the way back before the engine has been through the way out, or meanwhile.
        """
        own, engine = self.ways["back", MAIN], self.ways["out", ENGINE]
        for places in reversed([*combinations(range(len(own) + len(engine)), len(own))]):  # the engine early, first
            mine, others = iter(own), iter(engine)
            between = [next(mine if at in places else others) for at in range(len(own) + len(engine))]
            yield (*self.ways["out", MAIN], *between, *self.ways["back", ENGINE], *self.last)

    @property
    def updates(self) -> list[Update]:
        """One for each iteration: those of the first iterations come first."""
        return sorted((leg for leg in self.legs if isinstance(leg, Update)), key=lambda leg: leg.first)

    @property
    def update(self) -> Update:
        """The first of them: all are of the same part of a bucket."""
        return self.updates[0]

    @cached_property
    def updates_under_way(self) -> bool:
        """Whether the engine updates, before the schedule asks for it."""
        return any(leg.on == ENGINE for leg in self.updates)

    @cached_property
    def lines(self) -> dict[str, str]:
        """What legs need of their own, see ``Leg``."""
        return {line: kind for leg in self.legs for line, kind in leg.lines.items()}

    @property
    def errors(self) -> tuple[str, ...]:
        """Lines that each rank has for itself: what its codes have lost."""
        return tuple(line for line, kind in self.lines.items() if kind == "own")

    @cached_property
    def codes(self) -> dict[str, OfCodes]:
        """Lines of codes, with the first leg of each."""
        return {leg.codes: leg for leg in reversed(self.legs) if isinstance(leg, OfCodes)}

    @property
    def sends_gradients(self) -> bool:
        """Whether gradients travel, or codes."""
        sent = {leg.line for leg in self.legs if isinstance(leg, Collective)}
        return not sent.isdisjoint({"gradients", *self.codes})

    @property
    def has_levels(self) -> bool:
        """Whether some of its legs are inside hosts, or between them."""
        return any(leg.level for leg in self.legs)

    def check(self, hosts: Sequence[int]) -> None:
        """See that its legs can be done by ranks on these hosts; ValueError if not."""
        ranks = len(hosts)
        for leg in self.legs:
            if objection := leg.objection(ranks):
                raise ValueError(f"route {self.name!r} on {ranks} ranks: {objection}")
        if self.has_levels and len(set(hosts)) == 1:
            what = f"has legs between hosts, and all ranks are on one ({ranks} ranks; a network of one link is one)"
            example = "--link, or --network, 1gbit,20us/20mbit,100us,per_host=2"
            raise ValueError(f"route {self.name!r} {what}: take another wire or route, or emulate hosts ({example})")

    @cached_property
    def jobs(self) -> dict[str, tuple[tuple[Leg, ...], ...]]:
        """The engine's jobs for what schedules start, by its name: the legs of each.

        Halves of an all-reduce with nothing between them are one. All schedules take statistics where the way out ends,
        because the way back may round the sums.
        """
        out, back = (self.ways[way, ENGINE] for way in WAYS["all_reduce"])
        jobs = {"reduce_scatter": ((*out, LOOK),), "all_gather": (back,), "all_reduce": ((*out, LOOK), back)}
        if not any(isinstance(leg, Update) for leg in back):
            whole, end = joined(out + back), len(joined(out))
            jobs["all_reduce"] = ((*whole[:end], LOOK, *whole[end:]),)
        return jobs

    def collectives(self, name: str) -> tuple[Collective, ...]:
        """What is communicated where a schedule starts this, a collective or an extra."""
        if name in EXTRAS:
            return (EXTRAS[name],)
        return tuple(leg for job in self.jobs[name] for leg in job if isinstance(leg, Collective))

    def priced(self, price: Callable[[Collective, Bucket], float]) -> Callable[[str, Bucket], float]:
        """Seconds of what a schedule starts, from seconds of collectives; means over iterations."""
        return lambda name, bucket: sum(price(leg, bucket) * leg.share for leg in self.collectives(name))

    @property
    def whole(self) -> bool:
        """Whether buckets must have whole tensors."""
        return any(leg.whole for leg in self.legs)

    def check_shapes(self, shapes: Sequence[Shape]) -> None:
        """See that each leg has something to do for a model with these tensors, or raise a ValueError."""
        for leg in self.legs:
            if not leg.has_use(shapes):
                what = "the model has no matrix that is large enough for it (a table of layers has no shapes)"
                raise ValueError(f"route {self.name!r}: leg ({leg}) has nothing to do: {what}")

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
        """Bytes that a collective of a line has for so many elements.

        Args:
            wire, values: bytes of an element of gradients, as they travel, and of parameters.
            longest: elements of the longest shard, if shards are not equal: all then count as if they were as long.
            shapes: of the tensors, where buckets must have whole ones.
        """
        codes = self.codes.get(line)
        if codes is not None:
            longest = longest or count // ranks
            return codes.line_bytes(count, longest=longest, itemsize=wire, ranks=ranks, shapes=shapes)
        return (ranks * longest if longest else count) * (wire if line == "gradients" else values)

    def __str__(self) -> str:
        return f"{' | '.join(map(said, self.out))}  ->  {' | '.join(map(said, self.back))}"


def reduces(collective: str) -> bool:
    """Whether what a schedule starts by this name begins with the way out."""
    return "out" in WAYS.get(collective, ())


def joined(legs: tuple[Leg, ...]) -> tuple[Leg, ...]:
    """Legs, in which two halves of an all-reduce are one, if both are done in the same iterations."""
    for at, (one, other) in enumerate(pairwise(legs)):
        if not isinstance(one, Collective) or one.name != "reduce_scatter":
            continue
        if other == replace(one, name="all_gather", op="sum", few=False, called=""):
            return (*legs[:at], replace(one, name="all_reduce"), *joined(legs[at + 2 :]))
    return legs


def said(leg: Leg) -> str:
    """A leg with what is unusual about it."""
    usual = ENGINE if isinstance(leg, Collective) else MAIN
    thread = f" on the {'engine' if leg.on == ENGINE else 'main'} thread" * (leg.on != usual)
    return f"{leg}{thread}{when(leg)}"


def when(leg: Leg) -> str:
    """In which iterations it is done, if not in all."""
    every = f" every {leg.every} iterations" * (leg.every > 1)
    late = f", {leg.after} later" * (leg.after > 0)
    fits = "" if leg.fits is None else " where codes fit" if leg.fits else " where codes do not fit"
    return f"{fits}{every}{late}{f' from {leg.first} on' * (leg.first > 0)}{f' until {leg.until}' if leg.until else ''}"
