"""Prove that a route trains: run its stages in symbols, for two periods, on three ranks or hosts.

After each period all ranks must hold equal values, with each rank's gradients counted once and nothing partial or
unwritten, for every order of the two threads: the main thread knows nothing about the engine's stages until the
schedule has waited for the last one.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise, product
from typing import Any, NoReturn, TypeAlias

from dear_mpi.collectives.program.hosts import BETWEEN, INSIDE, by_host, servers
from dear_mpi.training.routes.invariant import Tree, tree_of
from dear_mpi.training.routes.route import WAYS, Payload, Route, said
from dear_mpi.training.routes.stages import ENGINE, MAIN, Collective, Stage

HOSTS = (0, 0, 0)  # ranks: with two, a neighbour is everyone else
SEVERAL_HOSTS = (0, 0, 0, 1, 1, 2)  # hosts, likewise, for routes with levels; of unequal size
PERIODS = 2
ROUND = 4  # iterations: longer rounds behave alike
MOST_PERIOD, MOST_BEGIN = 64, 256
BUCKET = "bucket 0"
Symbol: TypeAlias = int  # index into a memory's table
Weights: TypeAlias = Mapping[tuple[int, int], Fraction]  # of gradients, by iteration and rank
UNKNOWN = (-1, -1)  # key in weights
FIXED = ("layers", "gradients", "values", "state", "readiness")  # buffers


class Memory:
    """Hold the memory of all ranks in symbols, one per rank, buffer and shard; equal symbols are computed alike.

        value s, state s                initial value and state of shard s
        gradient t r s                  gradient of rank r in iteration t
        sum a b ..., average a b ...    over ranks, in rank order
        new n g v z, kept n g v z       value v after an update by n times gradient g with state z; the new state
        code a ..., lost c              a rounded value; the error of its code
        way v a, outer a w m            distance of values from an anchor; the anchor after an outer update
        mixed v a                       half of each
        leaf g i n, row a b ...         micro-batch i, one of n of gradient g; sums of a rank's subtrees
        partial n                       a partial sum or unwritten value, in the n-th place without a symbol

    Args:
        hosts: host number of each rank.
        buffers: kinds of a route's buffers, see ``Stage``.
        assumed: whether codes fit.

    Attributes:
        fits: ``assumed`` after this iteration's check, None before.
        misread: buffer, rank and shard of each partial value read.
        common: whether all updates used gradients equal on all ranks.
    """

    def __init__(self, hosts: Sequence[int], buffers: Mapping[str, str], *, assumed: bool = True) -> None:
        self.hosts, self.size, self.iteration, self.places_lost = hosts, len(hosts), 0, 0
        self.fits: bool | None = None
        self.assumed, self.common = assumed, True
        self.misread: list[tuple[str, int, int]] = []
        self.table: dict[tuple[object, ...], Symbol] = {}
        self.made: list[tuple[Any, ...]] = []  # kind and parts of each symbol
        self.weighed: list[Weights] = []
        self.held: dict[tuple[str, int, int], Symbol] = {}
        starts = {"values": "value", "layers": "value", "state": "state"}
        starts |= {
            buffer: "value" if kind == "values" else "zero" for buffer, kind in buffers.items() if kind != "scratch"
        }
        for buffer, kind in starts.items():
            for rank, shard in self.places:
                self.held[buffer, rank, shard] = self.symbol(kind, *([] if kind == "zero" else [shard]))

    @property
    def places(self) -> Iterator[tuple[int, int]]:
        return ((rank, shard) for rank in range(self.size) for shard in range(self.size))

    def groups(self, level: str) -> Iterator[tuple[int, Sequence[int], int]]:
        """Yield each shard, the ranks in one collective of it, and their sum's keeper."""
        for shard in range(self.size):
            serving = servers(shard, self.hosts if level else range(self.size))
            if level == INSIDE:
                yield from ((shard, *each) for each in zip(by_host(self.hosts), serving, strict=True))
            else:
                yield shard, serving, shard

    def symbol(self, kind: str, *parts: int) -> Symbol:
        key = (kind, *parts)
        if key not in self.table:
            self.table[key] = len(self.table)
            self.made.append(key)
            self.weighed.append(self.weights(kind, *parts))
        return self.table[key]

    def weights(self, kind: str, *parts: int) -> Weights:
        one, scales = Fraction(1), defaultdict[Symbol, Fraction](Fraction)
        match kind, parts:
            case "gradient", (iteration, rank, _):
                return {(iteration, rank): one}
            case "partial", _:
                return {UNKNOWN: one}
            case (("sum" | "average" | "row"), _):
                for part in parts:
                    scales[part] += Fraction(1, len(parts) if kind == "average" else 1)
            case "leaf", (gradient, _, count):
                scales[gradient] = Fraction(1, count)
            case "code", (first, *_):
                scales[first] = one
            case "way", (value, anchor):
                scales[value] += one
                scales[anchor] -= one
            case (("outer" | "mixed"), (first, second, *_)):
                scales |= dict.fromkeys((first, second), Fraction(1, 1 if kind == "outer" else 2))
            case "new", (scale, gradient, value, _):
                scales |= {value: one, gradient: Fraction(scale)}
        found = defaultdict[tuple[int, int], Fraction](Fraction)
        for part, share in scales.items():
            for key, weight in self.weighed[part].items():
                found[key] += share * weight
        return found

    def read(self, buffer: str, rank: int, shard: int) -> Symbol:
        if (buffer, rank, shard) not in self.held:
            self.forget(buffer, rank, shard)
        found = self.held[buffer, rank, shard]
        if self.made[found][0] == "partial":
            self.misread.append((buffer, rank, shard))
        return found

    def write(self, buffer: str, rank: int, shard: int, symbol: Symbol) -> None:
        self.held[buffer, rank, shard] = symbol

    def compute(self, kind: str, reads: Sequence[str], write: str) -> None:
        """Write a symbol built from buffers, place by place; "" copies the only buffer."""
        for rank, shard in self.places:
            parts = [self.read(buffer, rank, shard) for buffer in reads]
            self.write(write, rank, shard, self.symbol(kind, *parts) if kind else parts[0])

    def forget(self, buffer: str, rank: int, shard: int) -> None:
        self.places_lost += 1
        self.held[buffer, rank, shard] = self.symbol("partial", self.places_lost)


class RouteError(ValueError):
    """Report that a route does not train."""


@dataclass(frozen=True)
class Proof:
    alike: bool  # equal values on all ranks after every iteration, not only every period
    exact: bool  # values have the bits of the route ``full``, or of a tree on one rank
    common: bool  # updates use all ranks' gradients, so all notice a non-finite one
    state: str  # optimiser state: ``equal`` on all ranks, a ``shard`` on each, or each rank's ``own``
    summed: bool  # each rank has its shard's gradient sum after the way out, before any update


def prove(route: Route) -> Proof:
    """Raise a RouteError that names stage, buffer and bucket if the route does not train."""
    check_form(route)
    route = shortened(route)
    if route.period > MOST_PERIOD or route.begin > MOST_BEGIN:
        what = f"together every {route.period} iterations from {route.begin} on, which is too long to prove: at most"
        what += f" {MOST_PERIOD} from {MOST_BEGIN} on"
        raise RouteError(f"route {route.name!r}: all of its stages are due {what}")
    forms = (True, False) if any(stage.fits is not None for stage in route.stages) else (True,)
    found = [proof_of(route, stages, assumed=fits) for fits in forms for stages in route.orders()]
    alike, exact, common = (all(each[place] for each in found) for place in range(3))
    if tree_of(route) and not exact:
        raise RouteError(f"route {route.name!r}: its sums do not have the bits of one rank")
    states = {state for *_, state in found}
    return Proof(alike, exact, common, states.pop() if len(states) == 1 else "own", is_summed(route))


def shortened(route: Route) -> Route:
    """Shorten rounds and the time before them, unless stages have several different times."""
    times = {stage.first for stage in route.stages} | {stage.until or 0 for stage in route.stages}
    lags = {stage.after for stage in route.stages}
    if {stage.every for stage in route.stages} - {1, route.period} or len(times - {0}) > 1 or len(lags - {0}) > 1:
        return route
    begin = ROUND + (route.begin % route.period > 0)  # within a round, or between two

    def short(stage: Stage) -> Stage:
        first, until = min(stage.first, begin), None if stage.until is None else min(stage.until, begin)
        return replace(
            stage, every=min(stage.every, ROUND), after=min(stage.after, ROUND - 1), first=first, until=until
        )

    return replace(route, out=tuple(map(short, route.out)), back=tuple(map(short, route.back)))


def hosts_of(route: Route) -> tuple[int, ...]:
    return SEVERAL_HOSTS if route.has_levels else HOSTS


def proof_of(route: Route, stages: Sequence[Stage], *, assumed: bool) -> tuple[bool, bool, bool, str]:
    memory, alike = Memory(hosts_of(route), route.buffers, assumed=assumed), True
    for iteration in range(route.begin + PERIODS * route.period):
        memory.iteration = iteration
        suspects = run_stages(stages, memory)
        alike &= kind_of(memory, "values") == "equal"
        if (iteration + 1) % route.period == 0:
            (check_anchor if route.lags else check_values)(route, stages, memory, suspects)
    due = [synchronous(memory, shard, tree_of(route)) for shard in range(memory.size)]
    exact = all(memory.held["values", rank, shard] == due[shard] for rank, shard in memory.places)
    return alike, exact, memory.common, "shard" if route.update.shard else kind_of(memory, "state")


def check_form(route: Route) -> None:
    if not route.updates:
        raise RouteError(f"route {route.name!r}: no stage updates buffer 'values' of {BUCKET}")
    for before, again in pairwise(route.updates):
        if before.until is None or before.until != again.first or again.shard != before.shard:
            refuse(route, again, "values", "updates a second time")
    for stage in route.stages:
        for buffer, what in faults(route, stage):
            refuse(route, stage, buffer, what)
    for buffer in (*route.buffers, *route.codes):
        if buffer in FIXED or (buffer in route.buffers and buffer in route.codes):
            raise RouteError(f"route {route.name!r}: buffer {buffer!r} of {BUCKET} needs a unique name")


def faults(route: Route, stage: Stage) -> Iterator[tuple[str, str]]:
    buffer, is_collective = stage.reads[0], isinstance(stage, Collective)
    if stage.on not in (MAIN, ENGINE):
        yield buffer, f"must be on {MAIN!r} or {ENGINE!r}, not {stage.on!r}"
    if type(stage.every) is not int or stage.every < 1:
        yield buffer, f"must have a whole number above 0 in every, not {stage.every!r}"
    if not all(type(count) is int and count >= 0 for count in (stage.after, stage.first, stage.until or 0)):
        yield buffer, "must have whole numbers in after, first and until"
    if stage.after and (stage not in route.last or stage.after >= stage.every):
        yield buffer, "may be late by less than a round, at the end of the way back"
    levels = (
        (BETWEEN,) if isinstance(stage, Payload) or getattr(stage, "name", "") == "all_to_all" else (INSIDE, BETWEEN)
    )
    if stage.level not in ("", *levels):
        yield buffer, f"must be of one of the levels {', '.join(levels)}, or of none"
    if stage.fits is not None and stage.on != ENGINE:
        yield buffer, f"must be on {ENGINE!r}, which knows whether codes fit"
    if isinstance(stage, Collective):
        yield from collective_faults(route, stage)
    elif unknown := {*stage.reads, *stage.writes}.difference(FIXED, route.buffers, route.codes):
        yield min(unknown), "must have this buffer in buffers, with its kind"
    if route.delay and stage.on == ENGINE and not (is_collective and stage.every == route.period > 1):
        yield buffer, "must be a collective of each round: what is late must be nothing else"
    if isinstance(stage, Payload) and stage.wire is not route.codes[stage.codes].wire:
        yield stage.codes, "must have the wire that encodes this buffer, the same object"


def collective_faults(route: Route, stage: Collective) -> Iterator[tuple[str, str]]:
    if stage.name not in (*WAYS, "all_to_all"):
        yield stage.buffer, f"must be one of {', '.join(WAYS)}, all_to_all: others move no shards"
    if stage.on == MAIN:
        yield stage.buffer, f"must be on {ENGINE!r}: the engine carries collectives out"
    allowed = ("gradients", "values", *route.codes, *route.buffers)
    if stage.buffer not in allowed:
        yield stage.buffer, f"must be of one of the buffers {', '.join(allowed)}"
    adds_up = stage.buffer not in route.codes or route.codes[stage.buffer].adds_up
    if not adds_up and stage.name not in ("all_to_all", "all_gather"):
        yield stage.buffer, "must be an all_to_all or an all_gather: codes do not add up"
    if adds_up and stage.name == "all_to_all":
        yield stage.buffer, "must not be an all_to_all, which is for codes that do not add up"


def refuse(route: Route, stage: Stage, buffer: str, what: str) -> NoReturn:
    number = [each is stage for each in route.stages].index(True)
    raise RouteError(f"route {route.name!r}: stage {number} ({said(stage)}), at buffer {buffer!r} of {BUCKET}, {what}")


Suspect: TypeAlias = tuple[Stage, str, str]  # a stage, a buffer, and the error there


def run_stages(stages: Sequence[Stage], memory: Memory) -> list[Suspect]:
    """Run one iteration and list the stages that read partial values: faults only if a later stage uses them."""
    suspects, memory.fits = [], None
    for stage in stages:
        if stage.is_due(memory.iteration) and stage.fits in (None, memory.fits):
            memory.misread.clear()
            stage.prove(memory)
            for buffer, rank, shard in memory.misread[:1]:
                suspects.append((stage, buffer, f"reads shard {shard}, of which rank {rank} has no whole value"))
    return suspects


def check_values(route: Route, stages: Sequence[Stage], memory: Memory, suspects: Sequence[Suspect]) -> None:
    """Check the end of a period; blame the first stage that read a partial value, else the last that wrote."""
    due = {(iteration, rank): 1 for iteration in range(memory.iteration + 1) for rank in range(memory.size)}
    for buffer, (rank, shard) in product(("values", "layers"), memory.places):
        found = memory.held[buffer, rank, shard]
        counts = memory.weighed[found]
        wrong = [key for key in due.keys() | counts.keys() if counts.get(key, 0) != due.get(key, 0)]
        if not wrong and found == memory.held["values", 0, shard]:
            continue
        for stage, at, what in suspects:
            refuse(route, stage, at, what)
        *_, stage = [stage for stage in stages if buffer in stage.writes] or stages
        if not wrong:
            refuse(route, stage, buffer, f"leaves rank {rank} with other values than those of rank 0")
        iteration, of = min(wrong)
        if (iteration, of) == UNKNOWN:
            refuse(route, stage, buffer, "leaves values with a sum over some ranks alone, or what was never written")
        times = f"{counts.get((iteration, of), 0)} times, instead of once"
        refuse(route, stage, buffer, f"leaves values with the gradient of rank {of} {times}")


def check_anchor(route: Route, stages: Sequence[Stage], memory: Memory, suspects: Sequence[Suspect]) -> None:
    """Check the end of a period if ranks continue during collectives.

    All ranks must have the same anchor, in which their gradients count equally: at most once, and more than 0.
    """
    *_, stage = [stage for stage in stages if "anchor" in stage.writes] or stages
    for rank, shard in memory.places:
        found = memory.held.get(("anchor", rank, shard), -1)
        if found == -1 or found != memory.held["anchor", 0, shard]:
            refuse(route, stage, "anchor", f"leaves rank {rank} without the anchor of rank 0")
        counts = memory.weighed[found]
        for iteration in range(memory.iteration + 1 - route.period - route.delay):
            shares = {counts.get((iteration, each), Fraction(0)) for each in range(memory.size)}
            if len(shares) > 1 or not 0 < min(shares) <= 1 or UNKNOWN in counts:
                for reader, at, what in suspects:
                    refuse(route, reader, at, what)
                refuse(route, stage, "anchor", f"lets gradients of ranks count {', '.join(map(str, sorted(shares)))}")


def synchronous(memory: Memory, shard: int, tree: Tree | None) -> object:
    symbol = memory.symbol
    value, state = symbol("value", shard), symbol("state", shard)
    for iteration in range(memory.iteration + 1):
        gradients = [symbol("gradient", iteration, rank, shard) for rank in range(memory.size)]
        summed = tree.on_one_rank(memory, gradients) if tree else symbol("sum", *gradients)
        by = summed, value, state
        value, state = symbol("new", 1, *by), symbol("kept", 1, *by)
    return value


def is_summed(route: Route) -> bool:
    """Tell whether the way out gives each rank its shard's sum in all iterations."""
    if any(update in route.out for update in route.updates):
        return False
    for iteration in {0, route.begin}:
        memory = Memory(hosts_of(route), route.buffers)
        memory.iteration = iteration
        run_stages(route.out, memory)
        due = {(iteration, rank): 1 for rank in range(memory.size)}
        found = [memory.held.get(("gradients", shard, shard)) for shard in range(memory.size)]
        if not all(each is not None and memory.weighed[each] == due for each in found):
            return False
    return True


def kind_of(memory: Memory, buffer: str) -> str:
    held = memory.held
    alike = all(held.get((buffer, rank, shard)) == held.get((buffer, 0, shard)) for rank, shard in memory.places)
    return "equal" if alike else "own"
