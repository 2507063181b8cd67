"""A rate for each pair of ranks. Time is virtual here."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from dear_mpi.collectives.transports import emulated
from dear_mpi.collectives.transports.emulated import BURST_S, EmulatedTransport
from dear_mpi.contrib.networks import emulate
from dear_mpi.contrib.networks.emulate import read_link
from dear_mpi.reporting.units import parse_links


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when somebody sleeps."""
    now = SimpleNamespace(s=100.0)
    fake = SimpleNamespace(perf_counter=lambda: now.s, sleep=lambda seconds: setattr(now, "s", now.s + seconds))
    monkeypatch.setattr(emulated, "time", fake)
    monkeypatch.setattr(emulate, "time", fake)
    return now


class Below:
    """Three ranks, whose others do what this one does; messages arrive at once."""

    rank, size, name, hosts = 0, 3, "nothing", (0, 0, 0)

    def send_init(self, data, peer, tag):
        return SimpleNamespace(Start=lambda: None, Test=lambda: True, Free=lambda: None)

    recv_init = send_init

    def gather_values(self, value):
        return [value] * self.size

    def barrier(self):
        """All are there."""


LINKS = [[0, 1, 1000.0], [1, 0, 500.0], [0, 2, 250.0], [2, 0, 250.0]]


def link_of(path, **more):
    path.write_text(json.dumps({"ranks": 3, "alpha_s": 0.25, "links": LINKS} | more), "utf-8")
    return read_link(str(path))


def send(transport, peer, nbytes=500):
    message = transport.send_init(np.zeros(nbytes, np.uint8), peer, 1)
    message.Start()
    return message


def test_each_pair_has_a_rate_in_each_direction(clock, tmp_path):
    transport = EmulatedTransport(Below(), link_of(tmp_path / "links.json"))
    near, far = send(transport, 1), send(transport, 2)  # at once: each on its link
    near.Wait()
    assert clock.s == pytest.approx(100 + 0.5 + 0.25, abs=emulated.NAP_S)
    far.Wait()
    assert clock.s == pytest.approx(100 + 2.0 + 0.25, abs=emulated.NAP_S)


def test_a_late_receiver_does_not_wait_for_its_link_again(clock, tmp_path):
    """The sender has taken the link's time: both messages have come."""
    transport = EmulatedTransport(Below(), link_of(tmp_path / "links.json"))
    receives = [transport.recv_init(np.zeros(500, np.uint8), 1, tag) for tag in range(2)]
    for receive in receives:
        receive.Start()
    for receive in receives:
        receive.Wait()
    assert clock.s == 100


def test_a_port_takes_its_time_from_a_receiver(clock, tmp_path):
    ports = [{"ranks": [0], "out": 1e9, "into": 100.0}]
    transport = EmulatedTransport(Below(), link_of(tmp_path / "links.json", ports=ports))
    receives = [transport.recv_init(np.zeros(500, np.uint8), peer, 1) for peer in (1, 2)]
    for receive in receives:
        receive.Start()
    for receive in receives:
        receive.Wait()
    assert clock.s == pytest.approx(100 + 500 / 100, abs=BURST_S + emulated.NAP_S)


def test_a_rate_changes_while_the_job_runs(clock, tmp_path):
    changes = [{"after_s": 1.0, "link": [0, 1], "rate": 500.0}]
    transport = EmulatedTransport(Below(), link_of(tmp_path / "links.json", changes=changes))
    for seconds in (0.5 + 0.25, 0.5 + 0.25, 1.0 + 0.25):
        begin_s = clock.s
        send(transport, 1).Wait()
        assert clock.s - begin_s == pytest.approx(seconds, abs=emulated.NAP_S)


def test_ranks_share_a_port(clock, tmp_path):
    """To rank 2, not between them: 100 bytes/s for all."""
    ports = [{"ranks": [0, 1], "out": 100.0, "into": 100.0}]
    transport = EmulatedTransport(Below(), link_of(tmp_path / "links.json", ports=ports))
    _, shared = transport.ports[2]
    send(transport, 1).Wait()
    assert clock.s == pytest.approx(100 + 0.5 + 0.25, abs=emulated.NAP_S)
    shared.free_s[emulated.OUT] = clock.s + 1.0  # rank 1 sends
    begin_s = clock.s
    send(transport, 2).Wait()
    assert clock.s - begin_s == pytest.approx(1.0 + 5.0 + 0.25, abs=emulated.NAP_S)


def test_links_differ_in_text_if_they_differ(tmp_path):
    """Ranks compare the text."""
    one = link_of(tmp_path / "links.json")
    assert str(one) == str(link_of(tmp_path / "other.json"))
    assert str(one).startswith("4 links of 2 kbit/s to 8 kbit/s, 2.5e+05 us")
    assert str(one) != str(link_of(tmp_path / "other.json", changes=[{"after_s": 1, "link": [0, 1], "rate": 1}]))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"changes": [{"after_s": 1, "link": [1, 2], "rate": 1.0}]}, r"changes\[0\] needs a link of the file"),
        ({"changes": [{"after_s": 1, "link": [0, 1], "rate": 0}]}, r"changes\[0\].rate must be a number >= 1.0, not 0"),
        ({"changes": [{"after_s": 1, "link": [0, 1], "rate": float("nan")}]}, r"\.rate must be a number >= 1"),
        (
            {"changes": [{"after_s": 1, "link": [0, 1], "rate": float("inf")}]},
            r"changes\[0\].rate must be a number <= 1",
        ),
        ({"changes": [{"after_s": float("nan"), "link": [0, 1], "rate": 1.0}]}, "a rate above 0 and a time"),
        ({"changes": [{"after_s": 1, "link": [0, 1], "rate": 1.0, "until_s": 9}]}, "not have the field 'until_s'"),
        ({"ranks": 1, "links": []}, "link '.*links.json' must have two ranks or more"),
        ({"changes": [{"after_s": 1, "link": [0, 1]}]}, "the field 'rate'"),
        ({"changes": 3}, "must be a list"),
    ],
)
def test_wrong_files_are_refused(tmp_path, more, said):
    with pytest.raises(ValueError, match=said):
        link_of(tmp_path / "links.json", **more)


def test_a_file_is_for_its_number_of_ranks(tmp_path):
    with pytest.raises(ValueError, match="the file has 3 ranks, and the job 2"):
        link_of(tmp_path / "links.json").hosts((0, 0))
    ports = [{"ranks": [0, 1], "out": 100.0, "into": 100.0}]
    with pytest.raises(ValueError, match="run on several machines"):
        link_of(tmp_path / "links.json", ports=ports).hosts((0, 1, 1))


def test_the_flag_reads_a_file(tmp_path):
    link_of(tmp_path / "links.json")
    assert parse_links(str(tmp_path / "links.json")).graph.size == 3
