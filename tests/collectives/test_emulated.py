"""The emulated link. Time is virtual here: its arithmetic is tested, not the machine's clock."""

from types import SimpleNamespace

import numpy as np
import pytest

from dear_mpi.collectives import ALGORITHMS, CollectiveError
from dear_mpi.collectives.transports import emulated
from dear_mpi.collectives.transports.emulated import BURST_S, EmulatedTransport, Link, Port
from dear_mpi.collectives.transports.loopback import run_loopback
from tests import collective_checks as checks

FAST = Link(bandwidth=1e12, latency_s=1e-6)


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when somebody sleeps."""
    now = SimpleNamespace(s=100.0)
    fake = SimpleNamespace(perf_counter=lambda: now.s, sleep=lambda seconds: setattr(now, "s", now.s + seconds))
    monkeypatch.setattr(emulated, "time", fake)
    return now


class Below:
    """A transport that delivers at once."""

    rank, size, name = 0, 2, "nothing"

    def __init__(self):
        self.started = []

    def send_init(self, data, peer, tag):
        return SimpleNamespace(Start=lambda: self.started.append(tag), Test=lambda: True, Free=lambda: None)

    recv_init = send_init


def test_messages_leave_one_after_the_other_and_arrive_a_latency_later(clock):
    below = Below()
    transport = EmulatedTransport(below, Link(bandwidth=1000.0, latency_s=0.25))
    first, second = (transport.send_init(np.zeros(500, np.uint8), 1, tag) for tag in (1, 2))
    first.Start()
    second.Start()
    first.Wait()
    assert clock.s == pytest.approx(100 + 0.5 + 0.25)
    assert below.started == [1]
    second.Wait()
    assert clock.s == pytest.approx(100 + 1.0 + 0.25)
    assert below.started == [1, 2]


def test_an_idle_link_starts_anew(clock):
    transport = EmulatedTransport(Below(), Link(bandwidth=1000.0))
    send = transport.send_init(np.zeros(500, np.uint8), 1, 1)
    send.Start()
    send.Wait()
    clock.s += 10
    send.Start()
    send.Wait()
    assert clock.s == pytest.approx(100 + 0.5 + 10 + 0.5)


def test_the_incoming_port_is_shared_by_all_senders(clock):
    """Three messages that arrive at once through one port take the time of three, less the burst."""
    transport = EmulatedTransport(Below(), Link(bandwidth=1000.0))
    receives = [transport.recv_init(np.zeros(500, np.uint8), 1, tag) for tag in range(3)]
    for receive in receives:
        receive.Start()
    clock.s += 0.5  # the time that the first one took on the wire
    for receive in receives:
        receive.Wait()
    assert clock.s == pytest.approx(100 + 3 * 0.5, abs=BURST_S + emulated.NAP_S)


def test_a_single_sender_is_not_slowed_twice(clock):
    """What comes at the pace of the link is over when it is seen."""
    port = Port(Link(bandwidth=1000.0))
    for _ in range(50):
        clock.s += 0.5
        assert port.arrive(500) <= clock.s


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "shared"])
def test_results_have_the_same_bits_as_without_a_link(size, algorithm):
    run_loopback(size, lambda t: checks.check_same_bits(EmulatedTransport(t, FAST), algorithm, "fp32"))


@pytest.mark.parametrize("drive", checks.DRIVES)
def test_plans_work(drive):
    run_loopback(3, lambda t: checks.check_plan_is_reusable(EmulatedTransport(t, FAST), drive))


def test_no_rank_reaches_the_memory_of_another_one():
    def body(transport):
        emulated = EmulatedTransport(transport, FAST)
        block = emulated.allocate(8)
        assert emulated.reach(block) is None
        assert emulated.takes(block)

    run_loopback(2, body)


def test_shared_memory_refuses_an_emulated_link():
    with pytest.raises(CollectiveError, match="algorithm 'shared' needs ranks of one host"):
        run_loopback(2, lambda t: checks.all_reduce(np.ones(3), EmulatedTransport(t, FAST), algorithm="shared"))


def test_native_refuses_an_emulated_link():
    """The MPI library's collectives cannot be slowed: a baseline at full speed would be no baseline."""
    pytest.importorskip("mpi4py")
    message = "algorithm 'native' needs MPI, not the transport 'EMULATED link"
    run_loopback(2, lambda t: checks.check_error(EmulatedTransport(t, FAST), ValueError, message, native))


def native(transport):
    checks.make_plan("all_reduce", np.zeros(4), transport, algorithm="native")


def test_every_report_says_that_a_link_is_emulated():
    (name,) = run_loopback(1, lambda transport: EmulatedTransport(transport, FAST).name)
    assert name.startswith("EMULATED")
