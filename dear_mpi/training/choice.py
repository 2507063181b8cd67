"""Choose the route of a run, and check that schedules, wire format and optimiser fit it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from dear_mpi.collectives.plans.tuning import serves
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.optimizers import Optimizer
from dear_mpi.training.options import Exchange, Options
from dear_mpi.training.routes.find import FULL, is_code
from dear_mpi.training.routes.invariant import is_exact, with_tree
from dear_mpi.training.routes.proof import Proof, prove
from dear_mpi.training.routes.route import EXTRAS, WAYS, Payload, Route, with_copies
from dear_mpi.training.schedules import Schedule


def chosen_route(
    options: Options, dtype: str, schedules: Mapping[str, type[Schedule]], hosts: Sequence[int]
) -> tuple[Route, Proof]:
    """Return the chosen route and its proof, for parameters of this type."""
    halves = len(hosts) > 1 and options.wire in (None, dtype) and serve_halves(options.algorithm)
    (first, own), *others = ((name, schedule.own_route()) for name, schedule in schedules.items())
    for name, other in others:
        if other != own:
            raise ValueError(f"schedules {first!r} and {name!r} need different routes, and one model has one")
    route = own or options.find_route(halves=halves)
    check_sent(options, first, schedules[first], route, dtype)
    if options.elastic:
        route = outliving(route, dtype, options.optimizer)
    route = summed_as_asked(options, route, dtype, len(hosts))
    proof = check_choice(options, route, schedules, options.optimizer, elastic=options.elastic)
    route.check(hosts)
    return route, proof


def outliving(route: Route, dtype: str, optimizer: Optimizer | None) -> Route:
    """Return the route of elastic training: with sharded updates ranks copy their state to each other."""
    if not route.update.shard:
        return route
    if optimizer is None:
        raise ValueError("optimizer must be given with elastic, for ranks send its state to each other")
    state_bytes = sum(each.itemsize for each in optimizer.new_state(np.zeros(1, DTYPES[dtype])))
    return with_copies(route, state_bytes) if state_bytes else route


def summed_as_asked(options: Exchange, route: Route, dtype: str, ranks: int | None = None) -> Route:
    """Return the route, under ``invariant`` with sums along a tree; ``ranks``: see ``with_tree``."""
    if options.invariant is None:
        return route
    if options.wire not in (None, dtype) and not is_exact(route):
        what = f"wire must be left out with invariant, or be {dtype}, the type in which each rank adds up"
        raise ValueError(f"{what}, not {options.wire!r}")
    return with_tree(route, options.invariant, ranks)


def check_choice(
    options: Exchange,
    route: Route,
    schedules: Mapping[str, type[Schedule]],
    optimizer: Optimizer | None,
    *,
    elastic: bool = False,
) -> Proof:
    """Prove that a route trains and fits all choices; ``optimizer`` is None if unknown."""
    for name, schedule in schedules.items():
        for what, known, least in (("collectives", WAYS, 1), ("extras", EXTRAS, 0)):
            found = getattr(schedule, what)
            if not isinstance(found, tuple | list) or len(found) < least or not all(each in known for each in found):
                allowed = ", ".join(known)
                raise ValueError(f"schedule {name!r} must have {what}, a tuple of {allowed}, not {found!r}")
    proof = prove(route)
    if options.judged and not proof.summed:
        what = "clip, loss_scale and statistic need the sums of gradients before the update"
        raise ValueError(f"{what}: the route {route.name!r} does not have them")
    if options.loss_scale != "none" and route.errors:
        what = f"on the route {route.name!r} what codes have lost would be of another scale than what comes next"
        raise ValueError(f"loss_scale must be none: {what}")
    if optimizer is not None:
        check_optimizer(optimizer, route, options)
    for name, schedule in schedules.items():
        if route.delay and (schedule.foresees or schedule.order is not None):
            what = f"the route {route.name!r} uses what was sent some iterations later"
            raise ValueError(f"schedule {name!r} decides an order of each iteration, and {what}: take dear")
        if "second all_gather" in schedule.extras and not proof.alike:
            what = "gathers values again, which must be the same on all ranks"
            raise ValueError(f"schedule {name!r} {what}: on the route {route.name!r} they differ between rounds")
    if options.weights is not None and any(stage.alone for stage in route.updates):  # few examples would count as many
        what = "each rank updates by its own gradients, which count as those of all"
        raise ValueError(f"weights must be left out: on the route {route.name!r} {what}")
    if elastic:
        check_elastic(options, route, proof, optimizer)
    return proof


def check_elastic(options: Exchange, route: Route, proof: Proof, optimizer: Optimizer | None) -> None:
    """Refuse exchanges with a state that is lost with a rank. Raises ValueError."""
    kept = [name for name, kind in route.buffers.items() if kind != "scratch"]
    for wrong, what in (
        (
            route.period > 1 or route.delay or proof.state == "own" or kept,
            f"ranks differ in what they keep on the route {route.name!r}",
        ),
        (
            route.update.shard and optimizer and not optimizer.in_arrays,
            f"on the route {route.name!r} a dead rank's shard of the state of PyTorch's optimizer is lost",
        ),
        (is_code(options.wire), f"codes of wire {options.wire!r} are not kept for a repair"),
        (options.weights is not None, "weights are of ranks that may die"),
        (options.loss_scale != "none", "loss_scale and statistic keep a state"),
        (optimizer and not optimizer.gradients_alone, f"the optimizer {optimizer} sends other sums"),
    ):
        if wrong:
            raise ValueError(f"elastic must be left out: {what}")


def check_optimizer(optimizer: Optimizer, route: Route, options: Exchange) -> None:
    if optimizer.scope == "tensor" and any(isinstance(each, Payload) for each in route.updates):
        what = f"the optimizer updates whole tensors, and selected elements lie within tensors, on {route.name!r}"
        raise ValueError(f"optimizer and wire do not go together: {what}")
    if optimizer.gradients_alone:
        return
    kind = f"optimizer {type(optimizer).__name__} sends other sums beside gradients"
    if options.judged:
        raise ValueError(f"{kind}: leave out clip, loss_scale and statistic, which would take them for gradients")
    if route.codes or route.period > 1 or is_code(options.wire):
        raise ValueError(f"{kind}, of all ranks in each iteration: the route {route.name!r} does not bring them all")


def serve_halves(algorithm: str) -> bool:
    """Tell whether the algorithm has both halves of an all-reduce."""
    with suppress(ValueError):
        return all(serves(algorithm, half) for half in ("reduce_scatter", "all_gather"))
    return False


def check_sent(options: Exchange, name: str, schedule: type[Schedule], route: Route, dtype: str) -> None:
    """Check that a user chose no other route than the schedule, nor a wire format without effect."""
    chosen = [each for each in ("route", "update") if getattr(options, each) not in (None, FULL.name)]
    chosen += ["wire"] * is_code(options.wire)
    if schedule.own_route() is not None and chosen:
        raise ValueError(f"schedule {name!r} sets the route: leave out {', '.join(chosen)}")
    if options.wire not in (None, dtype) and not route.sends_gradients:
        what = f"no gradients travel under schedule {name!r} on the route {route.name!r}"
        allowed = f"leave it out, or give {dtype}, the type of the parameters"
        raise ValueError(f"wire {options.wire!r} does not apply, because {what}: {allowed}")
