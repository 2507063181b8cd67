"""A rehearsal: a schedule runs on the virtual fabric before it runs on the live one, and is refused if it is wrong."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Mapping
from numbers import Real

import numpy as np

from dear_mpi.collectives.plans.runners import check_algorithm
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.models.layers.synthetic import NoLoss
from dear_mpi.training.fabric.rules import Rules, ScheduleError, carried_out
from dear_mpi.training.fabric.virtual import VirtualFabric, VirtualMeter, VirtualUse
from dear_mpi.training.options import Options
from dear_mpi.training.schedules import Schedule
from dear_mpi.training.trainer import Trainer

__all__ = ["check_schedules", "rehearse"]

LIMIT_S = 60.0  # a rehearsal takes milliseconds
FLUSHES = (0, 0, 2, 0, 1)  # how often behind each iteration: not at all, twice (the second has nothing to do), once


def check_schedules(schedules: Mapping[str, type[Schedule]], options: Options, transport: Transport) -> None:
    """See that schedules can run with the algorithm that was chosen.

    Raises:
        ValueError: they do not.
    """
    for name, schedule in schedules.items():
        if not isinstance(schedule.collectives, tuple | list) or not schedule.collectives:
            raise ValueError(f"schedule {name!r} must have collectives, a tuple of names, not {schedule.collectives!r}")
        wanted = carried_out(schedule.collectives, sharded=options.sharded)
        try:
            check_algorithm(options.algorithm, transport, *wanted)
        except ValueError as error:
            sharded = " with sharded updates" * options.sharded
            raise ValueError(f"schedule {name!r}{sharded} takes {' and '.join(wanted)}: {error}") from None


def rehearse(schedule: type[Schedule], rules: Rules, uses: int, *, accumulate: int = 1) -> None:
    """Run a few iterations, and flushes between them, where nothing takes time.

    Args:
        rules: a new book, with the buckets.
        uses: how many uses of layers a forward pass has.
        accumulate: how many forward passes an iteration has.

    Raises:
        ScheduleError: it breaks a rule of ``fabric/rules.py``, would wait for ever, never ends, or fails.
    """
    failed: list[BaseException] = []

    def run() -> None:
        try:
            iterate(schedule, rules, uses, accumulate)
        except BaseException as error:  # sys.exit() as well, which would end the command without a word
            failed.append(error)

    thread = threading.Thread(target=run, name="rehearsal", daemon=True)  # it may never end
    thread.start()
    thread.join(LIMIT_S)
    if thread.is_alive():
        interrupt(thread)
        rules.refuse(f"has not come to an end after {LIMIT_S:g} seconds")
    for error in failed:
        if isinstance(error, ScheduleError | KeyboardInterrupt):
            raise error
        said = f"{type(error).__name__}: {error}"
        raise ScheduleError(f"schedule {rules.name!r} fails in {rules.where}: {said}") from error


def iterate(schedule: type[Schedule], rules: Rules, uses: int, accumulate: int) -> None:
    """The iterations; then the schedule's bound."""
    fabric = VirtualFabric(rules)
    virtual = [VirtualUse(fabric, number) for number in range(uses)]
    trainer = Trainer(virtual, NoLoss(), VirtualMeter(fabric), schedule(fabric), rules, accumulate=accumulate)
    trainer.first = False  # which would flush behind the first iteration
    for flushes in FLUSHES:
        trainer.iteration(np.zeros(0), np.zeros(0), 0)
        for _ in range(flushes):
            trainer.flush()
    rules.point = ("bound", ())
    bound = schedule.bound(1.0, 2.0, dict.fromkeys(schedule.collectives, 1.0))
    if not isinstance(bound, Real) or not 0 <= bound < math.inf:
        raise ValueError(f"it must return seconds, not {bound!r}")


def interrupt(thread: threading.Thread) -> None:
    """Stop Python code that runs on a thread; what sleeps or waits outside Python stays there."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
