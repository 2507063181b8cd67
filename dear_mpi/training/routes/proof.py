"""Does a route train? Its legs are carried out in symbols, on three ranks, for two periods.

At the end of each period all ranks must have the same values, in which each gradient of each rank counts once. On the
way, no leg may read what is partial or was never written; and the main thread must leave alone what the engine may be
at: it knows nothing of the engine's legs until the schedule has waited for the last of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from dear_mpi.training.routes.legs import MAIN, WIRE, Collective, Leg, Update
from dear_mpi.training.routes.memory import GarbledError, Memory
from dear_mpi.training.routes.route import Route, said

SIZE = 3  # ranks: with two, a neighbour is all others
PERIODS = 2


class RouteError(ValueError):
    """A route does not train."""


@dataclass(frozen=True)
class Proof:
    """What was found out.

    Attributes:
        exact: whether values have the bits of the route ``full``.
        summed: whether each rank has the sum of its shard of the gradients after the way out, before any update.
        state: what the optimiser keeps: ``equal`` on all ranks, a ``shard`` on each, or each rank's ``own``.
    """

    exact: bool
    state: str
    summed: bool


def prove(route: Route, *, bucket: object = "bucket 0") -> Proof:
    """See that a route trains.

    Raises:
        RouteError: it does not; the message names the leg, the line and the bucket.
    """
    check_form(route)
    memory = Memory(SIZE, route.errors)
    for turn in range(PERIODS * route.period):
        memory.turn = turn
        carry_out(route, memory, bucket)
        if (turn + 1) % route.period == 0:
            check_values(route, memory, bucket)
    exact = all(memory.held.get(("values", rank, shard)) == synchronous(memory, shard) for rank, shard in memory.places)
    return Proof(exact, "shard" if route.update.shard else state_kind(memory), is_summed(route))


def check_form(route: Route) -> None:
    """See that there is one update, and that threads are where they can be."""
    updates = [leg for leg in route.legs if isinstance(leg, Update)]
    if len(updates) != 1:
        raise RouteError(f"route {route.name!r} must have one leg that updates, not {len(updates)}")
    for leg in route.legs:
        if leg.on not in (MAIN, WIRE):
            raise RouteError(f"route {route.name!r}: {leg} must be on {MAIN!r} or {WIRE!r}, not {leg.on!r}")
        if isinstance(leg, Collective) and leg.on == MAIN:
            raise RouteError(f"route {route.name!r}: {leg} must be on {WIRE!r}, which carries collectives out")
    for way in route.ways.values():
        for leg in way:
            if leg.on == MAIN:
                what = "is between legs of the engine, for which the main thread does not wait"
                raise RouteError(f"route {route.name!r}: {said(leg)} {what}; line {leg.reads[0]!r} of any bucket")


def carry_out(route: Route, memory: Memory, bucket: object) -> None:
    """One iteration."""
    for number, leg in enumerate(route.legs):
        if leg.is_due(memory.turn):
            try:
                leg.prove(memory)
            except GarbledError as wrong:
                line, rank, shard = wrong.args
                where = f"leg {number} ({said(leg)}) reads line {line!r} of {bucket}"
                what = f"where rank {rank} has no whole value of shard {shard}"
                raise RouteError(f"route {route.name!r}: {where}, {what}") from None


def check_values(route: Route, memory: Memory, bucket: object) -> None:
    """The end of a period."""
    due = {(turn, rank): 1 for turn in range(memory.turn + 1) for rank in range(memory.size)}
    for line in ("values", "layers"):
        for rank, shard in memory.places:
            found = memory.held.get((line, rank, shard))
            number, leg = last_writer(route, line)
            where = f"after leg {number} ({leg}) line {line!r} of {bucket}"
            if found is None:
                raise RouteError(f"route {route.name!r}: {where} is partial on rank {rank}")
            if found != memory.held.get(("values", 0, shard)):
                raise RouteError(f"route {route.name!r}: {where} differs between ranks 0 and {rank}, or is not new")
            counts = memory.weighed[found]
            for (turn, of), weight in due.items():
                if counts.get((turn, of), 0) != weight:
                    times = f"{counts.get((turn, of), 0)} times, instead of once"
                    raise RouteError(f"route {route.name!r}: {where} has the gradient of rank {of} {times}")


def last_writer(route: Route, line: str) -> tuple[int, Leg]:
    """The last leg that writes a line, or the last one of all."""
    writers = [(number, leg) for number, leg in enumerate(route.legs) if line in leg.writes]
    return writers[-1] if writers else (len(route.legs) - 1, route.legs[-1])


def synchronous(memory: Memory, shard: int) -> object:
    """The values of ``full``."""
    symbol = memory.symbol
    value, state = symbol("value", shard), symbol("state", shard)
    for turn in range(memory.turn + 1):
        gradients = [symbol("gradient", turn, rank, shard) for rank in range(memory.size)]
        by = symbol("sum", *gradients), value, state
        value, state = symbol("new", 1, *by), symbol("kept", 1, *by)
    return value


def is_summed(route: Route) -> bool:
    """Whether the way out, alone, leaves each rank with the sum of its shard."""
    memory = Memory(SIZE, route.errors)
    for leg in route.out:
        leg.prove(memory)
    due = {(0, rank): 1 for rank in range(SIZE)}
    found = [memory.held.get(("gradients", shard, shard)) for shard in range(SIZE)]
    return not any(leg.updates for leg in route.out) and all(
        each is not None and memory.weighed[each] == due for each in found
    )


def state_kind(memory: Memory) -> str:
    """Whether all ranks keep the same."""
    held = memory.held
    return "equal" if all(held["state", r, s] == held["state", 0, s] for r, s in memory.places) else "own"
