"""Something to do before this process ends, because another rank ends the job.

A launcher that hears of an abort tells the other ranks to end (SIGTERM), as Open MPI's does, or kills them at once, as
MPICH's. So a rank that fails first tells those of its host (SIGUSR2), and leaves them a moment.

Python runs the handlers of signals on the main thread, which may be blocked in MPI. So a signal wakes another thread.
A forked child has none of this: it would wake the rank's thread, by the socket that it inherits, and end the rank.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.collectives.launch.neighbours import own_monitor

TOLD, ENDS = signal.SIGUSR2, signal.SIGTERM
STATUS = 128 + ENDS
SIGNALS: dict[signal.Signals, Any] = {}  # what we listen to at present, each with its handler before
MASKS = threading.local()  # of the thread that forks


@contextmanager
def before_the_end(act: Callable[[], object]) -> Iterator[None]:
    """Meanwhile, let this process act when another rank tells it to, or when it is to end. On other threads than the
    main one this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    inside, outside = socket.socketpair()
    inside.setblocking(False)

    def wait() -> None:
        while numbers := outside.recv(64):
            try:
                if {TOLD, ENDS} & set(numbers):
                    act()
            finally:
                if ENDS in numbers:
                    os._exit(STATUS)

    thread = threading.Thread(target=wait, name="termination", daemon=True)
    protect_children()
    descriptor = signal.set_wakeup_fd(inside.fileno(), warn_on_full_buffer=False)
    SIGNALS.update({number: signal.signal(number, lambda number, frame: None) for number in (TOLD, ENDS)})
    thread.start()
    try:
        yield
    finally:
        stop_listening()
        signal.set_wakeup_fd(descriptor)
        inside.shutdown(socket.SHUT_WR)  # the thread reads no more, even if a child still has this end
        thread.join()
        inside.close()
        outside.close()


def stop_listening() -> None:
    if SIGNALS:
        signal.set_wakeup_fd(-1)
    while SIGNALS:
        signal.signal(*SIGNALS.popitem())


@cache
def protect_children() -> None:
    """Let children that are forked from now on be as if we did not listen. Their signals wait until they are so far."""

    def begin() -> None:
        MASKS.before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def end() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, MASKS.before)

    def end_in_child() -> None:
        stop_listening()
        end()

    os.register_at_fork(before=begin, after_in_parent=end, after_in_child=end_in_child)


def tell_others(*, idle: bool = False) -> bool:
    """Tell the other ranks of this host that the job ends; of ``idle`` ones alone, those that wait for nobody. Whether
    there are any, and each will act."""
    if launch_of(os.environ).size == 1:
        return False
    told = False
    for other in own_monitor().neighbours():
        if other.process not in (None, os.getpid()) and not (idle and other.waits) and listens(other.process):
            with suppress(OSError):  # it has just ended
                os.kill(other.process, TOLD)
                told = True
    return told


def listens(process: int | None) -> bool:
    """Whether a process acts on being told, which would end it otherwise."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text("ascii", "replace").splitlines():
            name, _, mask = line.partition(":")
            if name == "SigCgt":
                return bool(int(mask, 16) >> (TOLD - 1) & 1)
    return False
