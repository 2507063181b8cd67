"""Prove that a route trains: run its stages (legs) in symbols, for two periods, on three ranks or hosts.

After each period all ranks must hold equal values, with each rank's gradients counted once and nothing partial or
unwritten. This must hold for every order that the two threads allow: the main thread knows nothing about the engine's
legs until the schedule has waited for the last one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise, product
from typing import NoReturn, TypeAlias

from dear_mpi.collectives.program.hosts import BETWEEN, INSIDE
from dear_mpi.training.routes.codes import OfCodes
from dear_mpi.training.routes.legs import ENGINE, MAIN, UNKNOWN, Collective, Leg, Memory
from dear_mpi.training.routes.route import WAYS, Route, said

HOSTS = (0, 0, 0)  # of three ranks: with two ranks, a neighbour is everyone else
SEVERAL_HOSTS = (0, 0, 0, 1, 1, 2)  # likewise for hosts, if the route has levels; hosts of unequal size
PERIODS = 2
ROUND = 4  # iterations: longer rounds behave alike
MOST_PERIOD, MOST_BEGIN = 64, 256
BUCKET = "bucket 0"  # the name of the proved bucket in messages
FIXED = ("layers", "gradients", "values", "state", "readiness")  # lines


class RouteError(ValueError):
    """Report that a route does not train."""


@dataclass(frozen=True)
class Proof:
    """Hold the findings of a proof."""

    alike: bool  # equal values on all ranks after every iteration, not only every period
    exact: bool  # values have the bits of the route ``full``
    common: bool  # updates use gradients that all ranks have, so all notice a non-finite one
    state: str  # the optimiser state: ``equal`` on all ranks, a ``shard`` on each, or each rank's ``own``
    summed: bool  # each rank has its shard's gradient sum after the way out, before any update


def prove(route: Route) -> Proof:
    """Prove that a route trains.

    Raises:
        RouteError: it does not; the message names leg, line and bucket.
    """
    check_form(route)
    route = shortened(route)
    if route.period > MOST_PERIOD or route.begin > MOST_BEGIN:
        what = f"together every {route.period} iterations from {route.begin} on, which is too long to prove: at most"
        what += f" {MOST_PERIOD} from {MOST_BEGIN} on"
        raise RouteError(f"route {route.name!r}: all of its legs are due {what}")
    forms = (True, False) if any(leg.fits is not None for leg in route.legs) else (True,)
    found = [proof_of(route, legs, assumed=fits) for fits in forms for legs in route.orders()]
    alike, exact, common = (all(each[place] for each in found) for place in range(3))
    states = {state for *_, state in found}
    return Proof(alike, exact, common, states.pop() if len(states) == 1 else "own", is_summed(route))


def shortened(route: Route) -> Route:
    """Shorten a route's rounds and the time before them, unless its legs have several different times."""
    times = {leg.first for leg in route.legs} | {leg.until or 0 for leg in route.legs}
    lags = {leg.after for leg in route.legs}
    if {leg.every for leg in route.legs} - {1, route.period} or len(times - {0}) > 1 or len(lags - {0}) > 1:
        return route
    begin = ROUND + (route.begin % route.period > 0)  # within a round, or between two

    def short(leg: Leg) -> Leg:
        first, until = min(leg.first, begin), None if leg.until is None else min(leg.until, begin)
        return replace(leg, every=min(leg.every, ROUND), after=min(leg.after, ROUND - 1), first=first, until=until)

    return replace(route, out=tuple(map(short, route.out)), back=tuple(map(short, route.back)))


def hosts_of(route: Route) -> tuple[int, ...]:
    return SEVERAL_HOSTS if route.has_levels else HOSTS


def proof_of(route: Route, legs: Sequence[Leg], *, assumed: bool) -> tuple[bool, bool, bool, str]:
    """Return ``alike``, ``exact``, ``common`` and ``state`` for one order of legs."""
    memory, alike = Memory(hosts_of(route), route.lines, assumed=assumed), True
    for iteration in range(route.begin + PERIODS * route.period):
        memory.iteration = iteration
        suspects = run_legs(legs, memory)
        alike &= kind_of(memory, "values") == "equal"
        if (iteration + 1) % route.period == 0:
            (check_anchor if route.lags else check_values)(route, legs, memory, suspects)
    exact = all(memory.held["values", rank, shard] == synchronous(memory, shard) for rank, shard in memory.places)
    return alike, exact, memory.common, "shard" if route.update.shard else kind_of(memory, "state")


def check_form(route: Route) -> None:
    if not route.updates:
        raise RouteError(f"route {route.name!r}: no leg updates line 'values' of {BUCKET}")
    for before, again in pairwise(route.updates):
        if before.until is None or before.until != again.first or again.shard != before.shard:
            refuse(route, again, "values", "updates a second time")
    for leg in route.legs:
        for line, what in faults(route, leg):
            refuse(route, leg, line, what)
    for line in (*route.lines, *route.codes):
        if line in FIXED or (line in route.lines and line in route.codes):
            raise RouteError(f"route {route.name!r}: line {line!r} of {BUCKET} needs a unique name")


def faults(route: Route, leg: Leg) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a leg by itself: a line, and what it must do."""
    line, is_collective = leg.reads[0], isinstance(leg, Collective)
    if leg.on not in (MAIN, ENGINE):
        yield line, f"must be on {MAIN!r} or {ENGINE!r}, not {leg.on!r}"
    if type(leg.every) is not int or leg.every < 1:
        yield line, f"must have a whole number above 0 in every, not {leg.every!r}"
    if not all(type(count) is int and count >= 0 for count in (leg.after, leg.first, leg.until or 0)):
        yield line, "must have whole numbers in after, first and until"
    if leg.after and (leg not in route.last or leg.after >= leg.every):
        yield line, "may be late by less than a round, at the end of the way back"
    levels = (BETWEEN,) if isinstance(leg, OfCodes) or getattr(leg, "name", "") == "all_to_all" else (INSIDE, BETWEEN)
    if leg.level not in ("", *levels):
        yield line, f"must be of one of the levels {', '.join(levels)}, or of none"
    if leg.fits is not None and leg.on != ENGINE:
        yield line, f"must be on {ENGINE!r}, which knows whether codes fit"
    if isinstance(leg, Collective):
        yield from collective_faults(route, leg)
    elif unknown := {*leg.reads, *leg.writes}.difference(FIXED, route.lines, route.codes):
        yield min(unknown), "must have this line in lines, with its kind"
    if route.delay and leg.on == ENGINE and not (is_collective and leg.every == route.period > 1):
        yield line, "must be a collective of each round: what is late must be nothing else"
    if isinstance(leg, OfCodes) and leg.wire is not route.codes[leg.codes].wire:
        yield leg.codes, "must have the wire that encodes this line, the same object"


def collective_faults(route: Route, leg: Collective) -> Iterator[tuple[str, str]]:
    if leg.name not in (*WAYS, "all_to_all"):
        yield leg.line, f"must be one of {', '.join(WAYS)}, all_to_all: others move no shards"
    if leg.on == MAIN:
        yield leg.line, f"must be on {ENGINE!r}: the engine carries collectives out"
    allowed = ("gradients", "values", *route.codes, *route.lines)
    if leg.line not in allowed:
        yield leg.line, f"must be of one of the lines {', '.join(allowed)}"
    adds_up = leg.line not in route.codes or route.codes[leg.line].adds_up
    if not adds_up and leg.name not in ("all_to_all", "all_gather"):
        yield leg.line, "must be an all_to_all or an all_gather: codes do not add up"
    if adds_up and leg.name == "all_to_all":
        yield leg.line, "must not be an all_to_all, which is for codes that do not add up"


def refuse(route: Route, leg: Leg, line: str, what: str) -> NoReturn:
    number = [each is leg for each in route.legs].index(True)
    raise RouteError(f"route {route.name!r}: leg {number} ({said(leg)}), at line {line!r} of {BUCKET}, {what}")


Suspect: TypeAlias = tuple[Leg, str, str]  # a leg, a line, and the error there


def run_legs(legs: Sequence[Leg], memory: Memory) -> list[Suspect]:
    """Run one iteration and list the legs that read partial values.

    Reading is no fault yet, if no later leg uses the value.
    """
    suspects, memory.fits = [], None
    for leg in legs:
        if leg.is_due(memory.iteration) and leg.fits in (None, memory.fits):
            memory.misread.clear()
            leg.prove(memory)
            for line, rank, shard in memory.misread[:1]:
                suspects.append((leg, line, f"reads shard {shard}, of which rank {rank} has no whole value"))
    return suspects


def check_values(route: Route, legs: Sequence[Leg], memory: Memory, suspects: Sequence[Suspect]) -> None:
    """Check the end of a period; blame the first leg that read a partial value, else the last that wrote."""
    due = {(iteration, rank): 1 for iteration in range(memory.iteration + 1) for rank in range(memory.size)}
    for line, (rank, shard) in product(("values", "layers"), memory.places):
        found = memory.held[line, rank, shard]
        counts = memory.weighed[found]
        wrong = [key for key in due.keys() | counts.keys() if counts.get(key, 0) != due.get(key, 0)]
        if not wrong and found == memory.held["values", 0, shard]:
            continue
        for leg, at, what in suspects:
            refuse(route, leg, at, what)
        *_, leg = [leg for leg in legs if line in leg.writes] or legs
        if not wrong:
            refuse(route, leg, line, f"leaves rank {rank} with other values than those of rank 0")
        iteration, of = min(wrong)
        if (iteration, of) == UNKNOWN:
            refuse(route, leg, line, "leaves values with a sum over some ranks alone, or what was never written")
        times = f"{counts.get((iteration, of), 0)} times, instead of once"
        refuse(route, leg, line, f"leaves values with the gradient of rank {of} {times}")


def check_anchor(route: Route, legs: Sequence[Leg], memory: Memory, suspects: Sequence[Suspect]) -> None:
    """Check the end of a period if ranks continue while collectives are under way.

    All ranks must have the same anchor, in which their gradients count equally: at most once, and more than 0.
    """
    *_, leg = [leg for leg in legs if "anchor" in leg.writes] or legs
    for rank, shard in memory.places:
        found = memory.held.get(("anchor", rank, shard), -1)
        if found == -1 or found != memory.held["anchor", 0, shard]:
            refuse(route, leg, "anchor", f"leaves rank {rank} without the anchor of rank 0")
        counts = memory.weighed[found]
        for iteration in range(memory.iteration + 1 - route.period - route.delay):
            shares = {counts.get((iteration, each), Fraction(0)) for each in range(memory.size)}
            if len(shares) > 1 or not 0 < min(shares) <= 1 or UNKNOWN in counts:
                for reader, at, what in suspects:
                    refuse(route, reader, at, what)
                refuse(route, leg, "anchor", f"lets gradients of ranks count {', '.join(map(str, sorted(shares)))}")


def synchronous(memory: Memory, shard: int) -> object:
    """Return the values that ``full`` computes."""
    symbol = memory.symbol
    value, state = symbol("value", shard), symbol("state", shard)
    for iteration in range(memory.iteration + 1):
        gradients = [symbol("gradient", iteration, rank, shard) for rank in range(memory.size)]
        by = symbol("sum", *gradients), value, state
        value, state = symbol("new", 1, *by), symbol("kept", 1, *by)
    return value


def is_summed(route: Route) -> bool:
    """Tell whether the way out gives each rank its shard's sum, at first and later."""
    if any(update in route.out for update in route.updates):
        return False
    for iteration in {0, route.begin}:
        memory = Memory(hosts_of(route), route.lines)
        memory.iteration = iteration
        run_legs(route.out, memory)
        due = {(iteration, rank): 1 for rank in range(memory.size)}
        found = [memory.held.get(("gradients", shard, shard)) for shard in range(memory.size)]
        if not all(each is not None and memory.weighed[each] == due for each in found):
            return False
    return True


def kind_of(memory: Memory, line: str) -> str:
    held = memory.held
    alike = all(held.get((line, rank, shard)) == held.get((line, 0, shard)) for rank, shard in memory.places)
    return "equal" if alike else "own"
