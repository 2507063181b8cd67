"""A rehearsal: a schedule runs on the virtual fabric before it runs on the live one, and is refused if it is wrong."""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
import time
from collections.abc import Callable, Mapping
from numbers import Real
from typing import TypeVar

from dear_mpi.collectives.plans.runners import check_algorithm
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.training.fabric.extras import EXTRAS
from dear_mpi.training.fabric.rules import Rules, ScheduleError, carried_out
from dear_mpi.training.fabric.virtual import VirtualFabric
from dear_mpi.training.options import Options
from dear_mpi.training.schedules import Schedule
from dear_mpi.training.virtual_trainer import VirtualTrainer

__all__ = ["check_collectives", "check_schedules", "in_time", "rehearse"]

T = TypeVar("T")

LIMIT_S = 10.0  # of a hook; a whole rehearsal takes milliseconds
LOOK_S = 0.05  # from one look at a rehearsal to the next
FLUSHES = (0, 0, 2, 0, 1)  # how often behind each iteration: not at all, twice (the second has nothing to do), once


def check_collectives(schedules: Mapping[str, type[Schedule]]) -> None:
    """See that schedules say which collectives and extras they start.

    Raises:
        ValueError: one does not.
    """
    for name, schedule in schedules.items():
        found = schedule.collectives
        if not isinstance(found, tuple | list) or not found or not all(isinstance(each, str) for each in found):
            raise ValueError(f"schedule {name!r} must have collectives, a tuple of names, not {found!r}")
        if not isinstance(schedule.extras, tuple | list) or not all(each in EXTRAS for each in schedule.extras):
            allowed = ", ".join(map(repr, EXTRAS))
            raise ValueError(f"schedule {name!r} must have extras, a tuple of {allowed}, not {schedule.extras!r}")


def check_schedules(schedules: Mapping[str, type[Schedule]], options: Options, transport: Transport) -> None:
    """See that schedules can run with the algorithm that was chosen.

    Raises:
        ValueError: they do not.
    """
    check_collectives(schedules)
    for name, schedule in schedules.items():
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
    in_time(rules, lambda: iterate(schedule, rules, uses, accumulate))


def in_time(rules: Rules, call: Callable[[], T]) -> T:
    """What a call of a schedule's code returns.

    Raises:
        ScheduleError: it never ends, or fails.
    """
    failed: list[BaseException] = []
    found: list[T] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:  # sys.exit() as well, which would end the command without a word
            failed.append(error)

    thread = threading.Thread(target=run, name="rehearsal", daemon=True)  # it may never end
    thread.start()
    see_it_end(thread, rules)
    for error in failed:
        if isinstance(error, ScheduleError | KeyboardInterrupt):
            raise error
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise ScheduleError(f"schedule {rules.name!r} fails in {rules.where}: {said}") from error
    return found[0]


def see_it_end(thread: threading.Thread, rules: Rules) -> None:
    """Wait for a rehearsal as long as it gets on from hook to hook.

    Raises:
        ScheduleError: a hook takes too long.
    """
    seen, since_s = (0, rules.point), time.monotonic()
    while thread.is_alive():
        thread.join(LOOK_S)
        now = (rules.iteration, rules.point)
        if now != seen:
            seen, since_s = now, time.monotonic()
        elif time.monotonic() - since_s > LIMIT_S and thread.is_alive():
            interrupt(thread)
            rules.refuse(f"has not come to an end after {LIMIT_S:g} seconds")


def iterate(schedule: type[Schedule], rules: Rules, uses: int, accumulate: int) -> None:
    """The iterations; then the schedule's bound."""
    fabric = VirtualFabric(rules)
    trainer = VirtualTrainer(fabric, schedule(fabric), [(0.0, 0.0)] * uses, accumulate=accumulate)
    for flushes in FLUSHES:
        trainer.one()
        for _ in range(flushes):
            trainer.flush()
    rules.point = ("bound", ())
    bound = schedule.bound(1.0, 2.0, dict.fromkeys(schedule.collectives, 1.0))
    if not isinstance(bound, Real) or not 0 <= bound < math.inf:
        raise ValueError(f"it must return seconds, not {bound!r}")


def interrupt(thread: threading.Thread) -> None:
    """Stop Python code that runs on a thread; what sleeps or waits outside Python stays there.

    The exception is taken back from one that stays. Until some thread has taken an exception, CPython 3.11 looks for
    it at each call, and never gets on where calls are traced; so a thread that lives for nothing else takes one.
    """
    raise_in(thread, SystemExit)
    thread.join(LOOK_S)
    if thread.is_alive():
        raise_in(thread, None)
        taker = threading.Thread(target=take_one)
        taker.start()
        taker.join()


def take_one() -> None:
    """Take an exception that a thread raises in itself."""
    with contextlib.suppress(SystemExit):
        raise_in(threading.current_thread(), SystemExit)


def raise_in(thread: threading.Thread, exception: type[BaseException] | None) -> None:
    """Let an exception come up in the Python code of a thread; None takes it back."""
    raised = ctypes.py_object() if exception is None else ctypes.py_object(exception)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), raised)
