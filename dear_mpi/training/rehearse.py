"""A rehearsal: a schedule runs on the virtual fabric before it runs on the live one, and is refused if it is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dear_mpi.collectives.plans.runners import check_algorithm
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array
from dear_mpi.models.layers.synthetic import NoLoss
from dear_mpi.training.fabric.rules import ScheduleError
from dear_mpi.training.fabric.virtual import VirtualFabric, VirtualStep
from dear_mpi.training.line.bucket import Cut
from dear_mpi.training.schedules import Schedule, find_schedule
from dear_mpi.training.trainer import Trainer

__all__ = ["check_schedules", "rehearse"]

ITERATIONS = 3  # the first one has nothing to wait for, and the second one a first to compare with


def check_schedules(schedules: Sequence[str], algorithm: str, transport: Transport) -> None:
    """See that schedules exist, differ, and can run with an algorithm.

    Raises:
        ValueError: they do not.
    """
    for name in schedules:
        schedule = find_schedule(name)
        try:
            check_algorithm(algorithm, transport, *schedule.collectives)
        except ValueError as error:
            raise ValueError(f"schedule {name!r} takes {' and '.join(schedule.collectives)}: {error}") from None
    if len(set(schedules)) != len(schedules):
        raise ValueError(f"schedules must be different ones, not {', '.join(schedules)}")


def rehearse(name: str, schedule: type[Schedule], buckets: Cut, uses: int) -> None:
    """Run a few iterations with these buckets, and a flush, where nothing takes time.

    Args:
        name: of the schedule, for messages.
        uses: how many uses of layers a forward pass has.

    Raises:
        ScheduleError: it breaks a rule of ``fabric/rules.py``, would wait for ever, or fails.
    """
    fabric = VirtualFabric(name, buckets, collectives=schedule.collectives)
    try:
        hooks = Watched(schedule(fabric), fabric)
        steps = [VirtualStep(fabric, number) for number in range(uses)]
        trainer = Trainer(steps, NoLoss(), NoMeter(fabric), hooks)  # type: ignore[arg-type]
        for _ in range(ITERATIONS):
            trainer.iteration(np.zeros(0), np.zeros(0), 1.0)
            fabric.rules.iteration += 1
        hooks.flush()
        fabric.rules.flushed()
    except ScheduleError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise ScheduleError(f"schedule {name!r} fails in {fabric.rules.point}: {said}") from error


class Watched:
    """A schedule whose hooks tell the book of rules which of them runs."""

    def __init__(self, schedule: Schedule, fabric: VirtualFabric) -> None:
        self.schedule, self.rules = schedule, fabric.rules

    @property
    def order(self) -> Any:
        return self.schedule.order

    def __getattr__(self, hook: str) -> Callable[..., None]:
        def call(*use: int) -> None:
            self.rules.point = f"{hook}({', '.join(map(str, use))})"
            getattr(self.schedule, hook)(*use)

        return call


class NoMeter:
    """Reads no loss; when it would, backward is over."""

    def __init__(self, fabric: VirtualFabric) -> None:
        self.fabric = fabric

    def start(self, loss: Array | float, scale: float, targets: int) -> None: ...

    def read(self) -> float:
        self.fabric.rules.end_backward()
        return 0.0
