"""What ranks of a host see of each other."""

import os
import subprocess
import sys

import pytest

from dear_mpi.collectives.launch.neighbours import MONITOR_BYTES, Monitor, monitor_in
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.collectives.transports.watchdog import Watchdog

WAITING = "import sys; print(flush=True); sys.stdin.read()"


@pytest.fixture
def child():
    """A process that waits, as a rank of this launcher, with a byte in its environment that is no text."""
    environment = os.environb | {b"PMI_SIZE": b"2", b"PMI_RANK": b"1", b"TITLE": b"\xff"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", WAITING], env=environment, close_fds=False, **pipes) as process:
        process.stdout.readline()
        yield process
        process.communicate()


def test_a_process_with_the_monitor_of_another_is_no_rank(child):
    monitor = Monitor()
    monitor.launcher = os.getpid()
    assert [other.process for other in monitor.neighbours()] == [child.pid]
    os.set_inheritable(monitor.descriptor, True)
    environment = os.environ | {"PMI_SIZE": "2", "PMI_RANK": "0"}
    command = [sys.executable, "-c", WAITING]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, close_fds=False, **pipes) as other:
        other.stdout.readline()
        assert [other.process for other in monitor.neighbours()] == [child.pid]
        other.communicate()


@pytest.mark.parametrize("text", ["rank 1", "é" * MONITOR_BYTES, '"\n' * MONITOR_BYTES, "\udcff"], ids=range(4))
def test_a_monitor_keeps_to_its_room(text):
    monitor = Monitor()

    def said():
        return monitor_in(os.pread(monitor.descriptor, MONITOR_BYTES, 0))[2]

    monitor.post((3, 4), text)
    assert os.fstat(monitor.descriptor).st_size == MONITOR_BYTES
    assert said()[:100] == text.replace("\udcff", "?")[:100]
    monitor.post((), "short")
    assert said() == "short"


def test_a_watchdog_outlives_a_wait_that_it_could_not_read():
    class Moving:
        def progress(self):
            raise TypeError

    def body(transport):
        dog = Watchdog(transport, 1.0)
        dog.waited_s = 0.5
        transport.waits.now = Moving()
        dog.look()
        return dog.waited_s

    assert run_loopback(1, body) == [0.0]


def test_sleepers_do_not_stall():
    def body(transport):
        seen = []
        transport.hub.barrier.wait = lambda: seen.append(transport.waits.now)
        transport.barrier(asleep=True)
        return seen

    assert run_loopback(1, body) == [[None]]
