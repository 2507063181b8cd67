"""A rehearsal: a schedule runs on the virtual fabric before it runs on the live one, and is refused if it is wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from numbers import Real

from dear_mpi.collectives.plans.tuning import serves
from dear_mpi.training.fabric.costs import Costs
from dear_mpi.training.fabric.order import Sequenced
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.in_time import in_time
from dear_mpi.training.routes.codes import OfCodes
from dear_mpi.training.routes.proof import Proof, prove
from dear_mpi.training.routes.route import EXTRAS, WAYS, Route
from dear_mpi.training.schedules import Schedule
from dear_mpi.training.virtual_trainer import VirtualTrainer

FLUSHES = (0, 0, 2, 0, 1)  # how often after each iteration: not at all, twice (the second has nothing to do), once


def check_collectives(schedules: Mapping[str, type[Schedule]]) -> None:
    """See that schedules say which collectives and extras they start; ValueError if one does not."""
    for name, schedule in schedules.items():
        found = schedule.collectives
        if not isinstance(found, tuple | list) or not found or not all(each in WAYS for each in found):
            allowed = ", ".join(WAYS)
            raise ValueError(f"schedule {name!r} must have collectives, a tuple of {allowed}, not {found!r}")
        if not isinstance(schedule.extras, tuple | list) or not all(each in EXTRAS for each in schedule.extras):
            allowed = ", ".join(map(repr, EXTRAS))
            raise ValueError(f"schedule {name!r} must have extras, a tuple of {allowed}, not {schedule.extras!r}")


def serve_halves(algorithm: str) -> bool:
    """Whether there is such an algorithm, and it has both halves of an all-reduce."""
    with suppress(KeyError, ValueError):
        return all(serves(algorithm, half) for half in ("reduce_scatter", "all_gather"))
    return False


def check_route(
    route: Route, schedules: Mapping[str, type[Schedule]], *, judged: bool, scaled: bool, scope: str = "element"
) -> Proof:
    """The proof that a route trains, and goes with what was asked for beside it; or a ValueError.

    Args:
        judged, scaled: whether gradients are looked at before they are used, and their loss is scaled.
        scope: of the optimiser.
    """
    check_collectives(schedules)
    proof = prove(route)
    if judged and not proof.summed:
        what = "clip and loss_scale look at the sums of gradients, which must be there before the update"
        raise ValueError(f"{what}: on the route {route.name!r} they are not")
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


def check_weights(route: Route) -> None:
    """See that a route adds up the gradients of all ranks: by its own, a rank with few examples would count as others.

    Raises:
        ValueError: it does not.
    """
    if any(leg.alone for leg in route.updates):
        what = "each rank updates by its own gradients, which count as those of all"
        raise ValueError(f"weights must be left out: on the route {route.name!r} {what}")


def rehearse(
    schedule: type[Schedule],
    rules: Rules,
    uses: int,
    *,
    split: Iterable[int] = (),
    accumulate: int = 1,
    order: Sequenced | None = None,
) -> None:
    """Run a few iterations, and flushes between them, where nothing takes time.

    Args:
        rules: a new book, with the buckets.
        uses: how many uses of layers a forward pass has.
        split: the uses whose backward pass has two halves.
        accumulate: how many forward passes an iteration has.
        order: what was decided from the times of layers, if anything was.

    Raises:
        ScheduleError: it breaks a rule of ``fabric/rules.py``, would wait for ever, never ends, or fails.
    """
    nothing, halves = [0.0] * uses, dict.fromkeys(split, 0.0)
    costs = Costs(forward_s=nothing, backward_s=nothing, weights_s=halves, parts=accumulate)
    in_time(rules, lambda: iterate(schedule, rules, costs, order))


def iterate(schedule: type[Schedule], rules: Rules, costs: Costs, order: Sequenced | None) -> None:
    """The iterations; then the schedule's bound."""
    trainer = VirtualTrainer(schedule, rules, costs)
    if order is not None:
        trainer.schedule.take(order)
    for flushes in FLUSHES:
        trainer.one()
        for _ in range(flushes):
            trainer.flush()
    rules.point = ("bound", ())
    bound = schedule.bound(1.0, 2.0, dict.fromkeys(schedule.collectives, 1.0))
    if not isinstance(bound, Real) or not 0 <= bound < math.inf:
        raise ValueError(f"it must return seconds, not {bound!r}")
