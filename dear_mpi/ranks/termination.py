"""Act before this process ends because another rank ends the job.

After an abort, a launcher asks the other ranks to end (SIGTERM), as Open MPI's does, or kills them at once, as MPICH's.
So a failing rank first signals the ranks of its host (SIGUSR2), and waits for a moment.

Python runs signal handlers on the main thread, which may be blocked in MPI. So a signal wakes another thread. A forked
child must not listen: it would wake the rank's thread through the inherited socket, and end the rank.
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
SIGNALS: dict[signal.Signals, Any] = {}  # the signals we listen to, each with its previous handler
MASKS = threading.local()  # of the forking thread


@contextmanager
def before_the_end(act: Callable[[], object]) -> Iterator[None]:
    """Run ``act`` when another rank signals, or when this process is asked to end, during the block.

    It does nothing on threads other than the main one.
    """
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
        inside.shutdown(socket.SHUT_WR)  # the thread stops reading, even if a child still has this end
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
    """Make forked children ignore our signals. They are blocked until the child is ready."""

    def begin() -> None:
        MASKS.before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def end() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, MASKS.before)

    def end_in_child() -> None:
        stop_listening()
        end()

    os.register_at_fork(before=begin, after_in_parent=end, after_in_child=end_in_child)


def tell_others(*, idle: bool = False) -> bool:
    """Tell this host's other ranks that the job ends; ``idle``: only ranks that wait for no message.

    Returns whether there are any, and each will act.
    """
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
    """Return whether a process handles our signal, which would kill it otherwise."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text("ascii", "replace").splitlines():
            name, _, mask = line.partition(":")
            if name == "SigCgt":
                return bool(int(mask, 16) >> (TOLD - 1) & 1)
    return False
