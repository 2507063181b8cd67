"""A rehearsal: a schedule runs on the virtual fabric before it runs on the live one, and is refused if it is wrong."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

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
            raise ValueError(f"schedule {name!r} takes {' and '.join(wanted)}: {error}") from None


def rehearse(schedule: type[Schedule], rules: Rules, uses: int, *, accumulate: int = 1) -> None:
    """Run a few iterations, and flushes between them, where nothing takes time.

    Args:
        rules: a new book, with the buckets.
        uses: how many uses of layers a forward pass has.
        accumulate: how many forward passes an iteration has.

    Raises:
        ScheduleError: it breaks a rule of ``fabric/rules.py``, would wait for ever, never ends, or fails.
    """
    fabric = VirtualFabric(rules)
    try:
        with interrupted_after(LIMIT_S):
            virtual = [VirtualUse(fabric, number) for number in range(uses)]
            trainer = Trainer(virtual, NoLoss(), VirtualMeter(fabric), schedule(fabric), rules, accumulate=accumulate)
            trainer.first = False  # which would flush behind the first iteration
            for flushes in FLUSHES:
                trainer.iteration(np.zeros(0), np.zeros(0), 0)
                for _ in range(flushes):
                    trainer.flush()
    except (ScheduleError, KeyboardInterrupt):
        raise
    except Endless:
        rules.refuse(f"has not come to an end after {LIMIT_S:g} seconds")
    except BaseException as error:  # sys.exit() as well, which would end the command without a word
        said = f"{type(error).__name__}: {error}"
        raise ScheduleError(f"schedule {rules.name!r} fails in {rules.where}: {said}") from error


class Endless(BaseException):
    """What is raised in a schedule that does not come to an end; not for its own ``except Exception``."""


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Raise ``Endless`` in this thread if the block takes longer, wherever its Python code is then.

    What sleeps or waits outside Python is not interrupted before it is over. A rank may be a thread other than the main
    one, where no signal arrives.
    """
    lock, over, thread = threading.Lock(), False, threading.get_ident()

    def interrupt() -> None:
        with lock:
            if not over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Endless))

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            over = True
        timer.cancel()
