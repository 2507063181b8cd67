"""Calls of a user's code that must come to an end: one that does not get on is left alone.

Python cannot end a thread. Such a call stays on its own, which ends with the process.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

LIMIT_S = 10.0  # from one place to the next: what users write for us takes milliseconds
LOOK_S = 0.05  # from one look at a call to the next


class Endless(Exception):
    """A call has not come to an end in time."""


def in_time(call: Callable[[], T], place: Callable[[], object] = lambda: None) -> T:
    """What a call returns or raises, however long it takes, as long as ``place()``, where it is, changes.

    Raises:
        Endless: it has been at one place for too long.
    """
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # sys.exit() as well, which would end the command without a word
            future.set_exception(error)

    threading.Thread(target=run, name="in time", daemon=True).start()
    seen, since_s = place(), time.monotonic()
    while wait([future], LOOK_S).not_done:
        now = place()
        if now != seen:
            seen, since_s = now, time.monotonic()
        elif time.monotonic() - since_s > LIMIT_S and not future.done():
            raise Endless(f"has not come to an end after {LIMIT_S:g} seconds")
    return future.result()
