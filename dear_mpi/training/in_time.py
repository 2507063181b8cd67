"""Calls of a user's code that must come to an end: one that takes too long is interrupted, and said."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from dear_mpi.training.fabric.rules import Rules, ScheduleError

T = TypeVar("T")

LIMIT_S = 10.0  # of a hook; a whole rehearsal takes milliseconds
LOOK_S = 0.05  # from one look at a call to the next


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


def interrupt(thread: threading.Thread) -> None:
    """Stop Python code that runs on a thread; a thread that sleeps or waits outside Python stays there.

    The exception is taken back from a thread that stays. Until some thread has taken one, CPython 3.11 looks for it at
    each call, and never gets on where calls are traced: so a new thread takes one, and ends.
    """
    raise_in(thread, SystemExit)
    thread.join(LOOK_S)
    if thread.is_alive():
        raise_in(thread, None)
        taker = threading.Thread(target=take_one)
        taker.start()
        taker.join()


def take_one() -> None:
    """Raise an exception in this thread, and take it."""
    with contextlib.suppress(SystemExit):
        raise_in(threading.current_thread(), SystemExit)


def raise_in(thread: threading.Thread, exception: type[BaseException] | None) -> None:
    """Let an exception come up in the Python code of a thread; None takes it back."""
    raised = ctypes.py_object() if exception is None else ctypes.py_object(exception)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), raised)
