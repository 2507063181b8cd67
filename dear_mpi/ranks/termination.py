"""Something to do before this process ends because a launcher says so, as it does when another rank aborts the job.

Python runs the handlers of signals on the main thread, which may be blocked in MPI. So the signal wakes another thread,
which acts and then ends the process. A launcher that kills at once leaves no time for that.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STATUS = 128 + signal.SIGTERM


@contextmanager
def on_termination(act: Callable[[], object]) -> Iterator[None]:
    """Meanwhile SIGTERM lets this process act, and end. On other threads than the main one this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    inside, outside = socket.socketpair()
    inside.setblocking(False)

    def wait() -> None:
        while numbers := outside.recv(64):
            if signal.SIGTERM in numbers:
                try:
                    act()
                finally:
                    os._exit(STATUS)

    thread = threading.Thread(target=wait, name="termination", daemon=True)
    handler = signal.signal(signal.SIGTERM, lambda number, frame: None)
    descriptor = signal.set_wakeup_fd(inside.fileno(), warn_on_full_buffer=False)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(descriptor)
        signal.signal(signal.SIGTERM, handler)
        inside.close()  # the thread reads no more
        thread.join()
        outside.close()
