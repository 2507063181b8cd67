"""Which wire goes with which schedule, also where several of both are asked for."""

from collections.abc import Mapping, Sequence

from dear_mpi.reporting.units import check_distinct
from dear_mpi.training.declared import options_of
from dear_mpi.training.options import Exchange
from dear_mpi.training.routes.find import FULL
from dear_mpi.training.routes.route import Route
from dear_mpi.training.schedules import Schedule
from dear_mpi.training.wires.find import find_code, is_code

Wire = str | None  # None: the type of the parameters
SEVERAL = f"{options_of(Exchange)['wire'].help} Several with commas, e.g. fp32,int8,blocks:10%."


def check_wires(wires: Sequence[Wire]) -> None:
    """See that there are such wires, and that no two are one; else ValueError."""
    for wire in wires:
        Exchange(wire=wire).check()
    named = [wire for wire in wires if wire is not None]
    check_distinct("wire", named, lambda wire: str(find_code(wire)) if is_code(wire) else wire)


def check_own(options: Exchange, schedule: str) -> None:
    """See that no route was chosen beside one that a schedule brings; else ValueError."""
    chosen = {"route": options.route not in (None, FULL.name), "update": options.update not in (None, FULL.name)}
    chosen["wire"] = is_code(options.wire)
    if any(chosen.values()):
        what = ", ".join(name for name, matters in chosen.items() if matters)
        raise ValueError(f"schedule {schedule!r} has a route of its own: leave out {what}")


def check_sent(options: Exchange, schedule: str, route: Route, dtype: str) -> None:
    """See that gradients travel on a route, if a type for them was chosen that is not the parameters'; else ValueError.

    Otherwise each rank would round its own gradients, and send not a byte less.
    """
    if options.wire not in (None, dtype) and not route.sends_gradients:
        what = f"no gradients travel under schedule {schedule!r} on the route {route.name!r}"
        allowed = f"leave it out, or give {dtype}, the type of the parameters"
        raise ValueError(f"wire {options.wire!r} does not apply, because {what}: {allowed}")


def pairs(wires: Sequence[Wire], schedules: Mapping[str, type[Schedule]]) -> list[tuple[Wire, str]]:
    """Each wire with each schedule, by name. Where there are several wires, a schedule with a route of its own stands
    once, with the parameters' type: what it sends is no gradients.

    >>> from dear_mpi.training.schedules import find_schedules
    >>> pairs(["fp16", "int8"], find_schedules(["dear", "local:10"]))
    [('fp16', 'dear'), (None, 'local:10'), ('int8', 'dear')]
    """
    own = [name for name, schedule in schedules.items() if len(wires) > 1 and schedule.own_route() is not None]
    found: dict[tuple[Wire, str], None] = {}
    for wire in wires:
        found |= dict.fromkeys((None if name in own else wire, name) for name in schedules)
    return list(found)
