"""The route that is chosen; whether schedules, wires and other options go with it; and, of several wires and schedules,
which go together.

Each check raises a ValueError, which says what does not go together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from dear_mpi.collectives.plans.tuning import serves
from dear_mpi.kernels.optimizer import Optimizer
from dear_mpi.reporting.units import check_distinct
from dear_mpi.training.declared import options_of
from dear_mpi.training.options import Exchange, Options
from dear_mpi.training.routes.codes import OfCodes
from dear_mpi.training.routes.find import FULL, find_code, is_code
from dear_mpi.training.routes.proof import Proof, prove
from dear_mpi.training.routes.route import EXTRAS, WAYS, Route
from dear_mpi.training.schedules import Schedule

Wire = str | None  # None: the type of the parameters
SEVERAL = f"{options_of(Exchange)['wire'].help} Several with commas, e.g. fp32,int8,blocks:10%."


def chosen_route(
    options: Options, dtype: str, schedules: Mapping[str, type[Schedule]], hosts: Sequence[int]
) -> tuple[Route, Proof]:
    """The route that was chosen, for parameters of this type and ranks on these hosts, and its proof."""
    halves = len(hosts) > 1 and options.wire in (None, dtype) and serve_halves(options.algorithm)
    first, own = next(iter(schedules)), route_of(schedules)
    if own is not None:
        check_own(options, first)
    route = own or options.find_route(halves=halves)
    check_sent(options, first, route, dtype)
    proof = check_choice(options, route, schedules, options.optimizer)
    route.check(hosts)
    return route, proof


def check_choice(
    options: Exchange, route: Route, schedules: Mapping[str, type[Schedule]], optimizer: Optimizer | None
) -> Proof:
    """The proof that a route trains, and goes with all that was chosen; None for an optimiser that is not known."""
    scope = "element" if optimizer is None else optimizer.scope
    how = {"judged": options.judged, "scaled": options.loss_scale != "none"}
    proof = check_route(route, schedules, scope=scope, **how)
    if optimizer is not None:
        check_sums(optimizer, route, judged=options.judged, wire=options.wire)
    if options.weights is not None:
        check_weights(route)
    return proof


def route_of(schedules: Mapping[str, type[Schedule]]) -> Route | None:
    """The route that these schedules bring with them, if they do."""
    found = {name: schedule.own_route() for name, schedule in schedules.items()}
    first, *others = found
    for name in others:
        if found[name] != found[first]:
            raise ValueError(f"schedules {first!r} and {name!r} need different routes, and one model has one")
    return found[first]


def serve_halves(algorithm: str) -> bool:
    """Whether there is such an algorithm, and it has both halves of an all-reduce."""
    with suppress(ValueError):
        return all(serves(algorithm, half) for half in ("reduce_scatter", "all_gather"))
    return False


def check_route(
    route: Route, schedules: Mapping[str, type[Schedule]], *, judged: bool, scaled: bool, scope: str = "element"
) -> Proof:
    """The proof that a route trains, and goes with what was asked for beside it: whether gradients are looked at before
    they are used, whether their loss is scaled, and the scope of the optimiser."""
    check_collectives(schedules)
    proof = prove(route)
    if judged and not proof.summed:
        what = "clip, loss_scale and statistic need the sums of gradients before the update"
        raise ValueError(f"{what}: the route {route.name!r} does not have them")
    if scaled and route.errors:
        what = f"on the route {route.name!r} what codes have lost would be of another scale than what comes next"
        raise ValueError(f"loss_scale must be none: {what}")
    if scope == "tensor" and any(isinstance(each, OfCodes) for each in route.updates):
        what = f"the optimizer updates whole tensors, and selected elements lie within tensors, on {route.name!r}"
        raise ValueError(f"optimizer and wire do not go together: {what}")
    for name, schedule in schedules.items():
        if route.delay and (schedule.foresees or schedule.order is not None):
            what = f"the route {route.name!r} uses what was sent some iterations later"
            raise ValueError(f"schedule {name!r} decides an order of each iteration, and {what}: take dear")
        if "second all_gather" in schedule.extras and not proof.alike:
            what = "gathers values again, which must be the same on all ranks"
            raise ValueError(f"schedule {name!r} {what}: on the route {route.name!r} they differ between rounds")
    return proof


def check_collectives(schedules: Mapping[str, type[Schedule]]) -> None:
    """See that schedules say which collectives and extras they start."""
    for name, schedule in schedules.items():
        found = schedule.collectives
        if not isinstance(found, tuple | list) or not found or not all(each in WAYS for each in found):
            allowed = ", ".join(WAYS)
            raise ValueError(f"schedule {name!r} must have collectives, a tuple of {allowed}, not {found!r}")
        if not isinstance(schedule.extras, tuple | list) or not all(each in EXTRAS for each in schedule.extras):
            allowed = ", ".join(map(repr, EXTRAS))
            raise ValueError(f"schedule {name!r} must have extras, a tuple of {allowed}, not {schedule.extras!r}")


def check_sums(optimizer: Optimizer, route: Route, *, judged: bool, wire: Wire) -> None:
    """See that nothing looks at all that travels, or loses any of it, where there are other sums beside gradients."""
    if optimizer.gradients_alone:
        return
    kind = f"optimizer {type(optimizer).__name__} sends other sums beside gradients"
    if judged:
        raise ValueError(f"{kind}: leave out clip, loss_scale and statistic, which would take them for gradients")
    if route.codes or route.period > 1 or is_code(wire):
        raise ValueError(f"{kind}, of all ranks in each iteration: the route {route.name!r} does not bring them all")


def check_weights(route: Route) -> None:
    """See that a route adds up the gradients of all ranks: of its own, a rank's few examples would count as many."""
    if any(leg.alone for leg in route.updates):
        what = "each rank updates by its own gradients, which count as those of all"
        raise ValueError(f"weights must be left out: on the route {route.name!r} {what}")


def check_own(options: Exchange, schedule: str) -> None:
    """See that no route was chosen beside one that a schedule brings."""
    chosen = {"route": options.route not in (None, FULL.name), "update": options.update not in (None, FULL.name)}
    chosen["wire"] = is_code(options.wire)
    if any(chosen.values()):
        what = ", ".join(name for name, matters in chosen.items() if matters)
        raise ValueError(f"schedule {schedule!r} has a route of its own: leave out {what}")


def check_sent(options: Exchange, schedule: str, route: Route, dtype: str) -> None:
    """See that gradients travel on a route, if a type for them was chosen that is not the parameters': else each rank
    would round its own gradients, and send not a byte less."""
    if options.wire not in (None, dtype) and not route.sends_gradients:
        what = f"no gradients travel under schedule {schedule!r} on the route {route.name!r}"
        allowed = f"leave it out, or give {dtype}, the type of the parameters"
        raise ValueError(f"wire {options.wire!r} does not apply, because {what}: {allowed}")


def check_wires(wires: Sequence[Wire]) -> None:
    """See that there are such wires, and that no two are one."""
    for wire in wires:
        Exchange(wire=wire).check()
    named = [wire for wire in wires if wire is not None]
    check_distinct("wire", named, lambda wire: str(find_code(wire)) if is_code(wire) else wire)


def pairs(
    wires: Sequence[Wire], schedules: Mapping[str, type[Schedule]], *, implied: bool = False
) -> list[tuple[Wire, str]]:
    """Each wire with each schedule, by name. Where there are several wires, or nobody asked for one (``implied``), a
    schedule with a route of its own stands once, with the parameters' type: what it sends is no gradients.

    >>> from dear_mpi.training.schedules import find_schedules
    >>> pairs(["fp16", "int8"], find_schedules(["dear", "local:10"]))
    [('fp16', 'dear'), (None, 'local:10'), ('int8', 'dear')]
    """
    own = [
        name for name, schedule in schedules.items() if (implied or len(wires) > 1) and schedule.own_route() is not None
    ]
    found: dict[tuple[Wire, str], None] = {}
    for wire in wires:
        found |= dict.fromkeys((None if name in own else wire, name) for name in schedules)
    return list(found)
