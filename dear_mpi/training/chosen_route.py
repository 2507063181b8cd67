"""The route that was chosen for a session, and whether it can be carried out there."""

from __future__ import annotations

from collections.abc import Mapping

from dear_mpi.collectives.plans.runners import check_algorithm
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.training.options import Options
from dear_mpi.training.pairs import check_own, check_sent
from dear_mpi.training.rehearse import check_route, check_weights, serve_halves
from dear_mpi.training.routes.proof import Proof
from dear_mpi.training.routes.route import Route
from dear_mpi.training.schedules import Schedule
from dear_mpi.training.wires.find import is_code


def chosen_route(
    options: Options, dtype: str, schedules: Mapping[str, type[Schedule]], transport: Transport
) -> tuple[Route, Proof]:
    """The route that was chosen, for parameters of this type, and its proof.

    Raises:
        ValueError: it does not train, or does not go with the schedules, the algorithm or other options.
    """
    same_type = options.wire in (None, dtype)
    halves = transport.size > 1 and same_type and serve_halves(options.algorithm)
    own = route_of(schedules)
    if own is not None:
        check_own(options, next(iter(schedules)))
    route = own or options.find_route(halves=halves)
    check_sent(options, next(iter(schedules)), route, dtype)
    how = {"judged": options.judged, "scaled": options.loss_scale != "none"}
    proof = check_route(route, schedules, scope=options.optimizer.scope, **how)
    route.check(transport.size)
    if not options.optimizer.gradients_alone:
        check_sums(options, route)
    if options.weights is not None:
        check_weights(route)
    for name, schedule in schedules.items():
        legs = [leg for each in schedule.collectives for leg in route.collectives(each)]
        wanted = tuple(dict.fromkeys(leg.name for leg in legs if leg.algorithm(options.algorithm) == options.algorithm))
        try:
            check_algorithm(options.algorithm, transport, *wanted)
        except ValueError as error:
            by = f" on the route {route.name!r}" * (route.name != "full")
            raise ValueError(f"schedule {name!r}{by} takes {' and '.join(wanted)}: {error}") from None
    return route, proof


def check_sums(options: Options, route: Route) -> None:
    """See that nothing looks at all that travels, or loses any of it, where there are other sums beside gradients."""
    kind = f"optimizer {type(options.optimizer).__name__} sends other sums beside gradients"
    if options.judged:
        raise ValueError(f"{kind}: leave out clip, loss_scale and statistic, which would take them for gradients")
    if route.codes or route.period > 1 or is_code(options.wire):
        raise ValueError(f"{kind}, of all ranks in each iteration: the route {route.name!r} does not bring them all")


def route_of(schedules: Mapping[str, type[Schedule]]) -> Route | None:
    """The route that these schedules bring with them, if they do; ValueError if they bring different ones."""
    found = {name: schedule.own_route() for name, schedule in schedules.items()}
    first, *others = found
    for name in others:
        if found[name] != found[first]:
            raise ValueError(f"schedules {first!r} and {name!r} need different routes, and one model has one")
    return found[first]
