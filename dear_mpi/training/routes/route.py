"""Define a route: the stages of a bucket, on the way out and on the way back.

    full      pack | reduce_scatter gradients            all_gather gradients | update all | unpack
    sharded   pack | reduce_scatter gradients            update the own shard | all_gather values | unpack
              out: ``start("reduce_scatter")``           back: ``start("all_gather")``; ``start("all_reduce")`` is both

The main thread runs its stages at the start of a way, and the last ones of the way back when the schedule updates. The
engine runs all others in order.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise, takewhile
from math import lcm
from typing import Any, ClassVar, TypeVar

from dear_mpi.training.routes.stages import ENGINE, LOOK, MAIN, Collective, CopyState, Sent, Shape, Stage, Update

WAYS = {"reduce_scatter": ("out",), "all_gather": ("back",), "all_reduce": ("out", "back")}  # started by schedules
# Started by schedules outside a route's ways, by the names in ``extras``.
EXTRAS = {
    "negotiation": Collective(name="all_reduce", buffer="readiness", op="min", few=True, called="negotiation"),
    "second all_gather": Collective(name="all_gather", buffer="values", called="second all_gather"),
}
Bucket = TypeVar("Bucket")
ROW_BYTES = 16  # bytes; each shard's codes are aligned to it


@dataclass(frozen=True)
class Sizes:
    count: int  # elements of a bucket
    longest: int  # elements of its longest shard
    itemsize: int  # bytes of a travelling gradient
    ranks: int
    shapes: tuple[Shape, ...]  # of the tensors, if buckets consist of whole ones


@dataclass(frozen=True, kw_only=True)
class Payload(Stage):
    """Work on compressed gradients, in the buffer ``codes``; see ``codes.py``."""

    adds_up: ClassVar[bool] = False  # whether the sum of codes is the code of the sum
    by_element: ClassVar[bool] = False  # whether each element has one, in the shards of gradients
    dtype: ClassVar[Any] = None  # of codes that add up, unless that of gradients
    act: ClassVar[str] = ""  # encode or decode, once for all elements; "" if the stage overrides compute_s
    wire: Any
    codes: str

    @abstractmethod
    def payload_bytes(self, of: Sizes) -> int:
        """Return the flat buffer's bytes for a bucket."""

    def compute_s(self, count: int, ranks: int) -> float:
        return self.act_s(self.act, count)

    def act_s(self, act: str, count: float, calls: int = 1) -> float:
        return count * getattr(self.wire, f"{act}_s", 0.0) + calls * getattr(self.wire, f"{act}_call_s", 0.0)


@dataclass(frozen=True)
class Route:
    """List the stages of both ways.

    ``wire``: default type of travelling gradients; None for the parameters' type. ``staggered``: buckets end their
    rounds in different iterations, evenly spread. ``state_bytes``: of an element's optimiser state, if it is copied.
    """

    name: str
    out: tuple[Stage, ...]
    back: tuple[Stage, ...]
    wire: str | None = None
    staggered: bool = False
    state_bytes: int = 0

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.out + self.back

    @property
    def period(self) -> int:
        return lcm(*(stage.every for stage in self.stages))

    @property
    def begin(self) -> int:
        """Return the iteration from which rounds are alike."""
        return max(stage.first for stage in self.stages)

    @cached_property
    def delay(self) -> int:
        """Return the iterations between sending data and using them."""
        return max(stage.after for stage in self.stages)

    @cached_property
    def steady(self) -> bool:
        return all((stage.every, stage.after, stage.first, stage.until) == (1, 0, 0, None) for stage in self.stages)

    @property
    def lags(self) -> bool:
        """Return whether no iteration ends with equal values on all ranks."""
        return self.staggered or self.delay > 0

    def shift(self, bucket: int, buckets: int) -> int:
        return bucket * self.period // buckets if self.staggered else 0

    @cached_property
    def last(self) -> tuple[Stage, ...]:
        return tuple(takewhile(lambda stage: stage.on == MAIN, reversed(self.back)))[::-1]

    @cached_property
    def ways(self) -> dict[tuple[str, str], tuple[Stage, ...]]:
        """Map way (``out``, ``back``) and thread to its stages."""
        ways = {"out": self.out, "back": self.back[: len(self.back) - len(self.last)]}
        return {
            (way, on): tuple(stage for stage in ways[way] if stage.on == on) for way in ways for on in (MAIN, ENGINE)
        }

    @cached_property
    def begins(self) -> dict[str, tuple[Stage, ...]]:
        return {name: sum((self.ways[way, MAIN] for way in ways), ()) for name, ways in WAYS.items()}

    def orders(self) -> Iterator[tuple[Stage, ...]]:
        """Yield each order of stages: the main thread may begin the way back before the engine ends the way out."""
        own, engine = self.ways["back", MAIN], self.ways["out", ENGINE]
        for places in reversed([*combinations(range(len(own) + len(engine)), len(own))]):  # first with the engine early
            mine, others = iter(own), iter(engine)
            between = [next(mine if at in places else others) for at in range(len(own) + len(engine))]
            yield (*self.ways["out", MAIN], *between, *self.ways["back", ENGINE], *self.last)

    @property
    def updates(self) -> list[Update]:
        """List updates, earliest first: one is due in each iteration."""
        return sorted((stage for stage in self.stages if isinstance(stage, Update)), key=lambda stage: stage.first)

    @property
    def update(self) -> Update:
        return self.updates[0]  # all cover the same part of a bucket

    @cached_property
    def updates_under_way(self) -> bool:
        """Tell whether the engine updates before the schedule asks for it."""
        return any(stage.on == ENGINE for stage in self.updates)

    @cached_property
    def buffers(self) -> dict[str, str]:
        return {buffer: kind for stage in self.stages for buffer, kind in stage.buffers.items()}

    @property
    def errors(self) -> tuple[str, ...]:
        return tuple(buffer for buffer, kind in self.buffers.items() if kind == "own")

    @cached_property
    def codes(self) -> dict[str, Payload]:
        return {stage.codes: stage for stage in reversed(self.stages) if isinstance(stage, Payload)}

    @property
    def sends_gradients(self) -> bool:
        sent = {stage.buffer for stage in self.stages if isinstance(stage, Collective)}
        return not sent.isdisjoint({"gradients", *self.codes})

    @property
    def has_levels(self) -> bool:
        return any(stage.level for stage in self.stages)

    @property
    def whole(self) -> bool:
        return any(stage.whole for stage in self.stages)

    def check(self, hosts: Sequence[int]) -> None:
        """Raise a ValueError if ranks on these hosts cannot run all stages."""
        ranks = len(hosts)
        for stage in self.stages:
            if objection := stage.objection(ranks):
                raise ValueError(f"route {self.name!r} on {ranks} ranks: {objection}")
        if self.has_levels and len(set(hosts)) == 1:
            what = f"has stages between hosts, and all ranks are on one ({ranks} ranks; a network of one link is one)"
            example = "--link, or --network, 1gbit,20us/20mbit,100us,per_host=2"
            raise ValueError(f"route {self.name!r} {what}: take another wire or route, or emulate hosts ({example})")

    def check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Raise a ValueError if a stage has no use for these tensors."""
        for stage in self.stages:
            if not stage.has_use(shapes):
                what = "the model has no matrix that is large enough for it (a table of layers has no shapes)"
                raise ValueError(f"route {self.name!r}: stage ({stage}) has nothing to do: {what}")

    @cached_property
    def jobs(self) -> dict[str, tuple[tuple[Stage, ...], ...]]:
        """Map a schedule's collectives to the engine's jobs, tuples of stages; adjacent halves become an all-reduce.

        Statistics end the way out, because the way back may round sums.
        """
        out, back = (self.ways[way, ENGINE] for way in WAYS["all_reduce"])
        jobs = {"reduce_scatter": ((*out, LOOK),), "all_gather": (back,), "all_reduce": ((*out, LOOK), back)}
        if not any(isinstance(stage, Update) for stage in back):
            whole, end = joined(out + back), len(joined(out))
            jobs["all_reduce"] = ((*whole[:end], LOOK, *whole[end:]),)
        return jobs

    def collectives(self, name: str) -> tuple[Collective, ...]:
        return tuple(stage for stage in self.sent(name) if isinstance(stage, Collective))

    def sent(self, name: str) -> tuple[Sent, ...]:
        """Return all stages of a collective that send: also copies, which have no plans."""
        if name in EXTRAS:
            return (EXTRAS[name],)
        return tuple(stage for job in self.jobs[name] for stage in job if isinstance(stage, Sent))

    def divisible(self, name: str) -> Collective | None:
        """Return the stage of a collective that may run in portions, or None."""
        stage, *others = self.collectives(name) or [None]
        divides = stage is not None and not others and stage.op == "sum" and stage.buffer not in self.codes
        return stage if divides else None

    def priced(self, price: Callable[[Sent, Bucket], float]) -> Callable[[str, Bucket], float]:
        """Price what a schedule starts, in mean seconds per iteration."""
        return lambda name, bucket: sum(price(stage, bucket) * stage.share for stage in self.sent(name))

    def nbytes(
        self,
        buffer: str,
        count: int,
        *,
        wire: int,
        values: int,
        ranks: int,
        longest: int | None = None,
        shapes: tuple[Shape, ...] = (),
    ) -> int:
        """Return the bytes of a collective on ``count`` elements of a buffer.

        ``wire``, ``values``: bytes per element of travelling gradients, and of parameters.

            ``longest``: length that all shards count with, if unequal.
        """
        if buffer in self.codes:
            return self.codes[buffer].payload_bytes(Sizes(count, longest or count // ranks, wire, ranks, shapes))
        itemsizes = {"gradients": wire, "state": self.state_bytes}
        return (ranks * longest if longest else count) * itemsizes.get(buffer, values)

    def __str__(self) -> str:
        return f"{' | '.join(map(said, self.out))}  ->  {' | '.join(map(said, self.back))}"


def with_copies(route: Route, state_bytes: int) -> Route:
    """Let each rank send its shard's new state to the next rank."""
    out, back = (
        tuple(each for stage in way for each in (stage, *[CopyState()] * isinstance(stage, Update)))
        for way in (route.out, route.back)
    )
    return replace(route, name=f"{route.name}, elastic", out=out, back=back, state_bytes=state_bytes)


def reduces(collective: str) -> bool:
    return "out" in WAYS.get(collective, ())


def joined(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Merge halves of an all-reduce that run in the same iterations."""
    for at, (one, other) in enumerate(pairwise(stages)):
        if not isinstance(one, Collective) or one.name != "reduce_scatter":
            continue
        if other == replace(one, name="all_gather", op="sum", few=False, called=""):
            return (*stages[:at], replace(one, name="all_reduce"), *joined(stages[at + 2 :]))
    return stages


def said(stage: Stage) -> str:
    """Describe a stage, with its thread if unusual."""
    usual = ENGINE if isinstance(stage, Collective) else MAIN
    thread = f" on the {'engine' if stage.on == ENGINE else 'main'} thread" * (stage.on != usual)
    return f"{stage}{thread}{when(stage)}"


def when(stage: Stage) -> str:
    every = f" every {stage.every} iterations" * (stage.every > 1)
    late = f", {stage.after} later" * (stage.after > 0)
    fits = "" if stage.fits is None else " where codes fit" if stage.fits else " where codes do not fit"
    until = f" until {stage.until}" if stage.until else ""
    return f"{fits}{every}{late}{f' from {stage.first} on' * (stage.first > 0)}{until}"
