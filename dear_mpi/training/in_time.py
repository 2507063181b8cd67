"""Calls of a user's code that must come to an end: one that takes too long is refused by its hook, and left alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from dear_mpi.training.fabric.rules import Rules, ScheduleError

T = TypeVar("T")

LIMIT_S = 10.0  # of a hook; a whole rehearsal takes milliseconds
LOOK_S = 0.05  # from one look at a call to the next


def in_time(rules: Rules, call: Callable[[], T]) -> T:
    """What a call of a schedule's code returns, however long it takes, as long as it gets on from hook to hook.

    Python cannot end a thread. A hook that never returns stays on its own, which ends with the process; what it may
    touch is on the virtual fabric.

    Raises:
        ScheduleError: a hook takes too long, or fails.
    """
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # sys.exit() as well, which would end the command without a word
            future.set_exception(error)

    threading.Thread(target=run, name="rehearsal", daemon=True).start()
    seen, since_s = (0, rules.point), time.monotonic()
    while wait([future], LOOK_S).not_done:
        now = (rules.iteration, rules.point)
        if now != seen:
            seen, since_s = now, time.monotonic()
        elif time.monotonic() - since_s > LIMIT_S and not future.done():
            rules.refuse(f"has not come to an end after {LIMIT_S:g} seconds")
    error = future.exception()
    if error is None or isinstance(error, ScheduleError | KeyboardInterrupt):
        return future.result()
    said = " ".join(f"{type(error).__name__}: {error}".split())
    raise ScheduleError(f"schedule {rules.name!r} fails in {rules.where}: {said}") from error
