"""Links of all pairs: who meets whom, what is timed, and what stands out."""

import itertools
import json
from dataclasses import asdict, replace

import pytest

from dear_mpi.bench.machine_file import Link
from dear_mpi.collectives.transports.emulated import EmulatedTransport
from dear_mpi.collectives.transports.emulated import Link as EmulatedLink
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.contrib.doctor.links import MESSAGES, Talks, all_pairs, measure_links, neighbours
from dear_mpi.contrib.doctor.pairs import outliers, pairs_of
from dear_mpi.simulate.network import read_network
from tests.cli_checks import assert_one_line, invoke, succeed

NBYTES = 1000


@pytest.mark.parametrize("order", [neighbours, all_pairs])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_links_of_both_directions(order, size):
    told, pairs = [], order(size)

    def rank(transport):
        return measure_links(transport, pairs, NBYTES, "host", told.append if transport.rank == 0 else lambda _: None)

    answers = run_loopback(size, rank)
    assert all(rows == answers[0] for rows in answers)
    assert [(row.source, row.dest) for row in answers[0]] == [end for pair in pairs for end in (pair, pair[::-1])]
    assert told == pairs
    for row in answers[0]:
        assert 0 < row.latency_low_us <= row.latency_us <= row.latency_high_us
        assert 0 < row.GBps_low <= row.GBps <= row.GBps_high
        assert 6 <= row.samples <= 30
        assert asdict(row) == asdict(row) | {"path": "host", "bytes": NBYTES, "latency_bytes": 8, "messages": MESSAGES}


def planted(slower):
    """Samples that take 10 us and 1 ns for each byte; ``slower(source, dest)`` times as long, as the timing rank sees
    it. Messages travel all the same."""

    def sample(talks, runs):
        for run in runs:
            run.whole()
        messages = runs[0].listing.messages
        seconds = 10e-6 + 1e-9 * sum(message.length for message in messages)
        return seconds * slower(talks.transport.rank, messages[0].peer)

    return sample


def test_the_figures_are_those_of_the_definition(monkeypatch):
    monkeypatch.setattr(Talks, "sample", planted(lambda source, dest: 2 if (source, dest) == (1, 0) else 1))
    forth, back = run_loopback(2, lambda ranks: measure_links(ranks, [(0, 1)], NBYTES, "host"))[0]
    assert forth.latency_us == back.latency_us == pytest.approx((10 + 16e-3) / 2)
    assert forth.GBps == pytest.approx(8e3 / 18e3)  # 8 messages of 1000 B in 10 us + 8 us
    assert back.GBps == pytest.approx(8e3 / 36e3)
    assert (forth.samples, forth.latency_samples) == (30, 100)


PLANTED = {
    "a slow rank": (
        lambda source, dest: 5 if 2 in (source, dest) else 1,
        [
            "rank 2 (host a) is slow to answer",
            "rank 2 (host a) sends and receives slowly inside hosts: 0.089 GB/s at best",
        ],
    ),
    "a rank that sends slowly": (
        lambda source, dest: 5 if source == 4 else 1,  # round trips are timed by the other rank of a pair
        ["rank 4 (host a) sends slowly inside hosts: 0.089 GB/s at best, 0.444 GB/s is usual"],
    ),
    "a slow pair": (
        lambda source, dest: 5 if {source, dest} == {1, 3} else 1,
        [
            "latency inside hosts is worst between ranks 1 and 3",
            "bandwidth inside hosts is worst from rank 1 to rank 3",
        ],
    ),
    "a slow direction": (
        lambda source, dest: 5 if (source, dest) == (3, 1) else 1,
        ["bandwidth inside hosts is worst from rank 3 to rank 1: 0.089 GB/s, 0.444 GB/s is usual"],
    ),
    "alike": (lambda source, dest: 1, []),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(name, monkeypatch):
    slower, expected = PLANTED[name]
    monkeypatch.setattr(Talks, "sample", planted(slower))
    links = run_loopback(5, lambda ranks: measure_links(ranks, all_pairs(5), NBYTES, "host"))[0]
    found = [finding.text for finding in outliers(links, "aaaaa")]
    assert len(found) == len(expected), found
    assert all(text.startswith(start) for text, start in zip(found, expected, strict=True)), found
    slowdowns = {(pair.forth.source, pair.forth.dest): pair.slowdown for pair in pairs_of(links, "aaaaa")}
    slow = {pair for pair in slowdowns if max(slower(*pair), slower(*pair[::-1])) > 1}
    assert all((slowdowns[pair] > 4) == (pair in slow) for pair in slowdowns)


def test_a_rank_behind_a_slow_port_is_found():
    """20 MB/s, slept for; the others copy through memory."""

    def rank(transport):
        slow = EmulatedTransport(transport, EmulatedLink(20e6, 2e-3)) if transport.rank == 1 else transport
        return measure_links(slow, all_pairs(4), 10_000, "host")

    links = run_loopback(4, rank)[0]
    found = [finding.text.partition(" inside")[0] for finding in outliers(links, "aaaa")]
    assert {*found[:2]} == {"rank 1 (host a) is slow to answer", "rank 1 (host a) sends and receives slowly"}
    worst = sorted(pairs_of(links, "aaaa"), key=lambda pair: -pair.slowdown)[:3]
    assert all(1 in (pair.forth.source, pair.forth.dest) for pair in worst)


LINK = Link(0, 1, "host", 2.0, 8, 100, 10.0, 1 << 20, 30, 1.9, 2.1, 9.9, 10.1)


def mesh(hosts, slower):
    """Links of all pairs, so many times slower in both measures."""
    return [
        replace(
            LINK,
            source=source,
            dest=dest,
            **{name: getattr(LINK, name) * times for name in ("latency_us", "latency_low_us", "latency_high_us")},
            **{name: getattr(LINK, name) / times for name in ("GBps", "GBps_low", "GBps_high")},
        )
        for pair in itertools.combinations(range(len(hosts)), 2)
        for source, dest in (pair, pair[::-1])
        for times in [slower(source, dest)]
    ]


HOSTS = "aabbcc"
MESHES = {  # how many times slower a link is, and what is found, the worst first
    "all between hosts": (lambda source, dest: 1 if HOSTS[source] == HOSTS[dest] else 20, []),
    "host b": (
        lambda source, dest: 1 + 4 * ((HOSTS[source] == "b") != (HOSTS[dest] == "b")),
        [
            "warning: host b is slow to answer between hosts: a latency of 10.0 us at best, 2.0 us is usual",
            "warning: host b sends and receives slowly between hosts: 2.00 GB/s at best, 10.00 GB/s is usual",
        ],
    ),
    "rank 5 and one link": (  # which makes no rank a slow one
        lambda source, dest: 9 if {source, dest} == {2, 3} else 3 if 5 in (source, dest) else 1,
        [
            "warning: rank 5 (host c) is slow to answer between hosts",
            "warning: rank 5 (host c) sends and receives slowly between hosts",
            "note: latency inside hosts is worst between ranks 2 and 3",
            "note: bandwidth inside hosts is worst from rank 2 to rank 3",
        ],
    ),
}


@pytest.mark.parametrize("name", MESHES)
def test_what_stands_out_among_hosts(name):
    slower, due = MESHES[name]
    found = [f"{each.severity}: {each.text}" for each in outliers(mesh(HOSTS, slower), HOSTS)]
    assert [text[: len(start)] for text, start in zip(found, due, strict=True)] == due


def test_a_difference_within_the_intervals_is_none():
    links = mesh("aaaa", lambda source, dest: 1.6 if (source, dest) == (0, 1) else 1)
    wide = [replace(row, GBps_high=row.GBps * 1.2, latency_low_us=row.latency_us / 1.2) for row in links]
    assert len(outliers(links, "aaaa")) == 2
    assert outliers(wide, "aaaa") == []


@pytest.mark.parametrize("hosts", [1, 2])
def test_the_file_is_one_that_simulate_reads(hosts, tmp_path):
    file = tmp_path / "links.json"
    link = ["--link", f"800mbit,1us/80mbit,1us,hosts={hosts}"] * (hosts > 1)
    succeed("links", "--threads", 4, "--size", "100B", "--json", file, *link)
    report = json.loads(file.read_text())
    assert (len(report["links"]), len(report["ranks"]), report["hosts"]) == (12, 4, [4] if hosts == 1 else [2, 2])
    machine = read_network(str(file), 8)
    assert machine.origin == "measured"
    assert machine.network.hosts == (None if hosts == 1 else (0, 0, 1, 1, 2, 2, 3, 3))
    succeed("simulate", "--network", file, "--ranks", "8")


def test_the_table_has_the_worst_and_says_what_is_left_out(monkeypatch):
    monkeypatch.setattr("dear_mpi.contrib.doctor.show.MOST_PAIRS", 2)
    result = succeed("links", "--threads", 4, "--size", "100B")
    assert "left out: 4 pairs less slow than these" in result.stdout
    assert "inside hosts: 6 pairs, latency " in result.stdout
    assert len([line for line in result.stdout.splitlines() if "±" in line and " - " in line]) == 2


@pytest.mark.parametrize(("arguments", "message"), [
    (["--threads", 1], "error: there must be at least 2 ranks, not 1: mpirun -n 2, or --threads 2"),
    (["--threads", 2, "--size", "4"], "--size: size '4' has no unit"),
    (["--threads", 2, "--size", "0B"], "--size: size must be from 1 B to 1 GiB, not 0B"),
    (["--threads", 2, "--size", "2GiB"], "--size: size must be from 1 B to 1 GiB, not 2GiB"),
    (["--threads", 2, "--device", "gpu"], "device 'gpu' is unknown"),
    (["--threads", 2, "--device-memory", "staged"], "--device-memory does not apply to the device 'cpu'"),
    (["--threads", 3, "--link", "1gbit,1us/1gbit,1us,hosts=2"], "error: link: hosts=2 does not divide 3 ranks"),
])  # fmt: skip
def test_bad_input_is_one_line(arguments, message, tmp_path, here):
    assert_one_line(invoke("links", *arguments), message)
    assert not list(tmp_path.iterdir())


def test_a_gpu_that_is_not_there_is_one_line(monkeypatch):
    def none(device):
        raise ValueError(f"there is no {device}")

    monkeypatch.setattr("dear_mpi.contrib.doctor.command.open_streams", none)
    monkeypatch.setattr("dear_mpi.cli.run.select_gpu", lambda device: None)
    result = invoke("links", "--threads", 2, "--device", "cuda")
    assert (result.exit_code, result.stderr) == (2, "error: there is no cuda\n")
