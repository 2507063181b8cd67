"""Which wire goes with which schedule, also where several of both are asked for."""

from collections.abc import Mapping, Sequence

from dear_mpi.reporting.units import check_distinct
from dear_mpi.training.declared import options_of
from dear_mpi.training.options import Exchange
from dear_mpi.training.routes.find import FULL
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
    if options.route_name != FULL.name or is_code(options.wire):
        what = ", ".join(name for name in ("route", "update", "wire") if getattr(options, name) is not None)
        raise ValueError(f"schedule {schedule!r} has a route of its own: leave out {what}")


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
