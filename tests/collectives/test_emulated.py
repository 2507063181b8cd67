"""The emulated link. Time is virtual here: its arithmetic is tested, not the machine's clock."""

from types import SimpleNamespace

import numpy as np
import pytest

from dear_mpi.collectives import ALGORITHMS, CollectiveError
from dear_mpi.collectives.program.hosts import Blocks, Rates
from dear_mpi.collectives.transports import emulated
from dear_mpi.collectives.transports.emulated import BURST_S, IN, OUT, EmulatedTransport, Link, Port
from dear_mpi.collectives.transports.loopback import run_loopback
from tests import collective_checks as checks

FAST = Link(bandwidth=1e12, latency_s=1e-6)
TWO_HOSTS = Link(1000.0, 0.25, between=Link(100.0, 2.0), blocks=Blocks("hosts", 2))


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when somebody sleeps."""
    now = SimpleNamespace(s=100.0)
    fake = SimpleNamespace(perf_counter=lambda: now.s, sleep=lambda seconds: setattr(now, "s", now.s + seconds))
    monkeypatch.setattr(emulated, "time", fake)
    return now


class Below:
    """A transport that delivers at once."""

    rank, size, name, hosts = 0, 2, "nothing", (0, 0)

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


class BelowFour(Below):
    """Four ranks, whose others do what this one does."""

    size, hosts = 4, (0, 0, 0, 0)

    def gather_values(self, value):
        return [value] * self.size

    def barrier(self):
        """All are there."""


@pytest.mark.parametrize(("peer", "seconds"), [(1, 500 / 1000 + 0.25), (2, 500 / 100 + 2), (3, 500 / 100 + 2)])
def test_messages_inside_a_host_and_between_hosts_have_a_pace_of_their_own(clock, peer, seconds):
    transport = EmulatedTransport(BelowFour(), TWO_HOSTS)
    send = transport.send_init(np.zeros(500, np.uint8), peer, 1)
    send.Start()
    send.Wait()
    assert clock.s == pytest.approx(100 + seconds, abs=emulated.NAP_S)


def test_a_message_between_hosts_holds_up_none_inside(clock):
    """Though it was started first: the one that arrives first leaves first."""
    below = BelowFour()
    transport = EmulatedTransport(below, TWO_HOSTS)
    far, near = (transport.send_init(np.zeros(500, np.uint8), peer, peer) for peer in (2, 1))
    far.Start()
    near.Start()
    near.Wait()
    assert (below.started, clock.s) == ([1], pytest.approx(100 + 0.75, abs=emulated.NAP_S))
    far.Wait()
    assert (below.started, clock.s) == ([1, 2], pytest.approx(100 + 7, abs=emulated.NAP_S))


def test_the_ranks_of_a_host_take_turns(clock):
    """Rank 0 has three messages for its host's port, and rank 1 one: that is the second to go."""
    free_s, arrived = np.zeros(2), []
    first, second = (emulated.Outbox([Port(Link(bandwidth=1000.0), free_s)]) for _ in range(2))

    def send(outbox, name, nbytes):
        below = SimpleNamespace(Start=lambda: arrived.append((name, clock.s)), Test=lambda: True)
        emulated.EmulatedSend(outbox, outbox.ports, below, nbytes).Start()

    for number in range(3):
        send(first, number, 500)
    send(second, "other", 500)
    for _ in range(4):
        clock.s += 0.5
        first.release()
        second.release()
    assert arrived == [(0, 100.5), ("other", 101.0), (1, 101.5), (2, 102.0)]


@pytest.mark.parametrize("side", [OUT, IN])
def test_the_ranks_of_a_host_share_its_port(side):
    run_loopback(5, lambda transport: checks.check_shared_port(transport, side))


def test_algorithms_see_the_emulated_hosts_and_their_rates():
    """The port of a host is its two ranks'."""
    link = Link(1e12, between=Link(2e12), blocks=Blocks("per_host", 2))

    def body(transport):
        emulated = EmulatedTransport(transport, link)
        assert (emulated.hosts, emulated.rates) == ((0, 0, 1, 1), Rates(1e12, 1e12))
        x = np.arange(1000.0)
        with checks.make_plan("all_gather", x, emulated, algorithm="hierarchical", segment_bytes=80) as plan:
            first = {message.peer for message in plan.run.listing.messages if message.key[0] == 0}
            checks.check_same_bits(emulated, "hierarchical", "fp32")
        return first

    assert [len(each) for each in run_loopback(4, body)] == [1] * 4


@pytest.mark.parametrize(("blocks", "machines", "said"), [
    (Blocks("hosts", 3), (0, 0, 0, 0), "hosts=3 does not divide 4 ranks"),
    (Blocks("hosts", 2), (0, 0, 0, 1), "hosts=2 puts ranks 2 and 3 on one host, but they run on two machines"),
    (Blocks("per_host", 3), (0, 0, 1, 1), "per_host=3 puts ranks 0 and 2 on one host"),
])  # fmt: skip
def test_hosts_that_cannot_be_emulated_are_one_error_on_all_ranks(blocks, machines, said):
    link = Link(1e9, between=Link(1e9), blocks=blocks)

    def body(transport):
        with pytest.raises(ValueError, match=said):
            EmulatedTransport(transport, link)

    run_loopback(4, body, hosts=machines)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "shared"])
def test_results_have_the_same_bits_as_without_a_link(size, algorithm):
    run_loopback(size, lambda t: checks.check_same_bits(EmulatedTransport(t, FAST), algorithm, "fp32"))


@pytest.mark.parametrize("drive", checks.DRIVES)
def test_plans_work(drive):
    run_loopback(3, lambda t: checks.check_plan_is_reusable(EmulatedTransport(t, FAST), drive))


def test_shared_memory_refuses_an_emulated_link():
    with pytest.raises(CollectiveError, match="algorithm 'shared' needs ranks of one host"):
        run_loopback(2, lambda t: checks.all_reduce(np.ones(3), EmulatedTransport(t, FAST), algorithm="shared"))


def test_every_report_says_that_a_link_is_emulated():
    (name,) = run_loopback(1, lambda transport: EmulatedTransport(transport, FAST).name)
    assert name.startswith("EMULATED")
    (name, _) = run_loopback(2, lambda transport: EmulatedTransport(transport, TWO_HOSTS).name)
    links = "8 kbit/s, 2.5e+05 us inside hosts and 800 bit/s, 2e+06 us between them (hosts=2)"
    assert name == f"EMULATED link of {links} over loopback (threads)"
