"""A rehearsal: a schedule runs on the virtual fabric before it runs on the live one, and is refused if it is wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dear_mpi.collectives.plans.runners import check_algorithm
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array
from dear_mpi.models.layers.synthetic import NoLoss
from dear_mpi.training.fabric.rules import ScheduleError
from dear_mpi.training.fabric.virtual import VirtualFabric, VirtualUse
from dear_mpi.training.line.bucket import Cut
from dear_mpi.training.schedules import Schedule, find_schedule
from dear_mpi.training.trainer import Trainer

__all__ = ["check_schedules", "rehearse"]

FLUSHES = (0, 0, 2, 0, 1)  # behind each iteration: the first has nothing to wait for, and one goes on behind a flush


def check_schedules(schedules: Sequence[str], algorithm: str, transport: Transport) -> None:
    """See that schedules exist, differ, and can run with an algorithm.

    Raises:
        ValueError: they do not.
    """
    for name in schedules:
        schedule = find_schedule(name)
        if not isinstance(schedule.collectives, tuple | list) or not schedule.collectives:
            raise ValueError(f"schedule {name!r} must have collectives, a tuple of names, not {schedule.collectives!r}")
        try:
            check_algorithm(algorithm, transport, *schedule.collectives)
        except ValueError as error:
            raise ValueError(f"schedule {name!r} takes {' and '.join(schedule.collectives)}: {error}") from None
    if len(set(schedules)) != len(schedules):
        raise ValueError(f"schedules must be different ones, not {', '.join(schedules)}")


def rehearse(
    name: str, schedule: type[Schedule], buckets: Cut, uses: int, *, accumulate: int = 1, judged: bool = False
) -> None:
    """Run a few iterations with these buckets, and flushes between them, where nothing takes time.

    Args:
        name: of the schedule, for messages.
        uses: how many uses of layers a forward pass has.
        accumulate: how many forward passes an iteration has.
        judged: whether gradients are looked at before any of them is used: then all must be on their way.

    Raises:
        ScheduleError: it breaks a rule of ``fabric/rules.py``, would wait for ever, or fails.
    """
    fabric = VirtualFabric(name, buckets, collectives=schedule.collectives, judged=judged)
    try:
        virtual = [VirtualUse(fabric, number) for number in range(uses)]
        meter = NoMeter(fabric)
        trainer = Trainer(virtual, NoLoss(), meter, schedule(fabric), fabric.rules, accumulate=accumulate)
        trainer.first = False  # which would flush behind the first iteration
        for flushes in FLUSHES:
            trainer.iteration(np.zeros(0), np.zeros(0), 0)
            for _ in range(flushes):
                trainer.flush()
    except (ScheduleError, KeyboardInterrupt):
        raise
    except BaseException as error:  # sys.exit() as well, which would end the command without a word
        said = f"{type(error).__name__}: {error}"
        raise ScheduleError(f"schedule {name!r} fails in {fabric.rules.where}: {said}") from error


class NoMeter:
    """Reads no loss."""

    def __init__(self, fabric: VirtualFabric) -> None:
        self.fabric = fabric

    def start(self, loss: Array | float, targets: int, total: int) -> None: ...

    def complaint(self) -> None: ...

    def read(self) -> float:
        return 0.0
