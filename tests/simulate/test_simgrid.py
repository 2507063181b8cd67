"""SimGrid as an oracle: where it is installed, its replay of a program is held against ``cost``.

On 7 and 8 ranks; with EVERY_ORACLE=1 also on others, up to 64, which takes a minute more. What needs no SimGrid is
tested everywhere, and so are a few times that it once found.
"""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dear_mpi.collectives.algorithms.registry import ALGORITHMS, programs, runner_of
from dear_mpi.collectives.program.cost import cost
from dear_mpi.collectives.program.network import Network
from dear_mpi.collectives.program.partition import Partition
from dear_mpi.collectives.program.program import Program, Receive, Send, Step
from dear_mpi.collectives.program.simulation import Simulation
from dear_mpi.simulate.topology import ShapedNetwork, Topology, parse_topology
from tests.simulate import simgrid
from tests.simulate.simgrid import trace_lines, write_traces

needs_simgrid = pytest.mark.skipif(
    shutil.which("smpirun") is None,
    reason="SimGrid is not installed (Debian: libsimgrid-dev): costs are not held against it",
)
LINK = {"alpha": 5e-6, "beta": 1e-9}  # 5 us, 1 GB/s
STAR = Topology("star")
COUNT = 25 * 2**18  # fp32 numbers, 25 MiB
RANKS = (3, 5, 7, 8, 12, 17, 64) if os.environ.get("EVERY_ORACLE") else (7, 8)
SERVED = [(name, collective) for name, row in ALGORITHMS.items() if runner_of(name) == "messages" for collective in row]
CLOSE = 1e-4

# What SimGrid 3.32 says: where ranks are folded, flows share ports, messages have an order, and hosts differ in size.
RECORDED_S = [
    ("naive", "all_reduce", 5, {}, 0.209755328),
    ("ordered", "reduce_scatter", 6, {}, 0.02185042),
    ("rabenseifner", "reduce_scatter", 3, {}, 0.043705732),
    ("rabenseifner", "all_reduce", 17, {}, 0.111085936),
    ("swing", "all_reduce", 12, {}, 0.104907912),
    ("double_tree", "all_reduce", 7, {}, 0.131102208),
    ("double_tree", "all_reduce", 13, {"pieces": 5}, 0.10137915),
    ("torus", "all_reduce", 12, {}, 0.048110496),
    ("hierarchical", "all_gather", 8, {"hosts": [0, 0, 0, 1, 1, 1, 2, 2]}, 0.03278816),
]


@pytest.mark.parametrize(("name", "collective", "size", "given", "time_s"), RECORDED_S)
def test_cost_agrees_with_what_simgrid_once_said(name, collective, size, given, time_s):
    written = programs(name, collective, size, **given)
    assert cost(written, COUNT, 4, Network(**LINK)).time_s == pytest.approx(time_s, rel=CLOSE)


@needs_simgrid
@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize(("name", "collective"), SERVED)
def test_cost_agrees_with_simgrid(name, collective, size):
    written = programs(name, collective, size)
    time_s = simgrid.replay(written, COUNT, 4, STAR, **LINK)
    assert cost(written, COUNT, 4, Network(**LINK)).time_s == pytest.approx(time_s, rel=CLOSE)


class Enveloped(Simulation):
    """Messages have 16 bytes more, as SimGrid's have."""

    def nbytes(self, chunks):
        return super().nbytes(chunks) + 16


@needs_simgrid
@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize("name", [name for name, collective in SERVED if collective == "all_reduce"])
def test_latency_agrees_with_simgrid(name, size):
    """A buffer of 64 KiB, of which latency is the larger part, and envelopes up to a hundredth."""
    written, count = programs(name, "all_reduce", size), 2**14
    chunks = Partition.of(count, size).chunks(written[0].parts)
    run = Enveloped(written, [4 * border for border in chunks], Network(**LINK))
    run.to_the_end()
    time_s = simgrid.replay(written, count, 4, STAR, **LINK)
    assert max(rank.entered_s for rank in run.ranks) == pytest.approx(time_s, rel=CLOSE)


@needs_simgrid
@pytest.mark.parametrize("text", ["fattree:4x4,1", "fattree:4x4,3", "torus:4x4", "torus:2x2x4", "dragonfly:2x2x2x2"])
@pytest.mark.parametrize(("name", "collective"), SERVED)
def test_cost_on_a_topology_agrees_with_simgrid(name, collective, text):
    written, topology = programs(name, collective, 16), parse_topology(text)
    network = ShapedNetwork(**LINK, topology=topology)
    time_s = simgrid.replay(written, COUNT, 4, topology, **LINK)
    assert cost(written, COUNT, 4, network).time_s == pytest.approx(time_s, rel=6e-3)


@needs_simgrid
@pytest.mark.parametrize(
    ("text", "hops"),
    [
        ("star", {1: 2, 63: 2}),
        ("fattree:8x8,2", {1: 2, 7: 2, 8: 4}),
        ("torus:4x16", {1: 1, 15: 1, 16: 1, 17: 2, 8: 8}),
        ("dragonfly:4x2x4x2", {1: 2, 2: 3}),
    ],
)
def test_neighbours_are_where_the_text_says(text, hops):
    """A message without bytes takes half of alpha for each link on its way, and its envelope."""
    for peer, links in hops.items():
        assert len(parse_topology(text).way(0, peer)) == links
        steps = [(Step(sends=(Send(peer, range(1)),)),) if rank == 0 else () for rank in range(64)]
        steps[peer] = (Step(receives=(Receive(0, range(1)),)),)
        written = [Program("broadcast", rank, 64, steps[rank]) for rank in range(64)]
        time_s = simgrid.replay(written, 0, 4, parse_topology(text), alpha=2e-6, beta=1e-9)
        assert time_s == pytest.approx(links * 1e-6 + 16e-9, abs=1e-10)


@needs_simgrid
def test_ranks_without_work_do_not_end_the_replay():
    steps = [(), (Step(sends=(Send(2, range(3)),)),), (Step(receives=(Receive(1, range(3)),)),)]
    written = [Program("broadcast", rank, 3, steps[rank]) for rank in range(3)]
    assert simgrid.replay(written, 10**6, 4, STAR, **LINK) == pytest.approx(4.005e-3, rel=1e-4)


@needs_simgrid
def test_an_oversubscribed_tree_is_slower_than_a_star_for_distant_partners():
    written = programs("bruck", "all_reduce", 16)
    star, tree = (simgrid.replay(written, COUNT, 4, parse_topology(text), **LINK) for text in ("star", "fattree:4x4,1"))
    assert tree > 2 * star


@needs_simgrid
def test_a_program_that_blocks_is_told():
    written = programs("ring", "all_reduce", 3)
    silent = Step(receives=written[2].steps[0].receives)
    written[2] = replace(written[2], steps=(silent, *written[2].steps[1:]))
    with pytest.raises(ValueError, match=r"SimGrid did not say how long it took; it says: .*Deadlock"):
        simgrid.replay(written, 9, 4, STAR, **LINK)


@needs_simgrid
def test_what_simgrid_refuses_is_told():
    written = programs("ring", "all_reduce", 2)
    written[1] = replace(written[1], steps=())
    with pytest.raises(ValueError, match=r"SimGrid failed with exit status \d+: .*Actor pid=\d+ is gone"):
        simgrid.replay(written, 9, 4, STAR, **LINK)


def test_a_command_that_takes_too_long_ends_with_its_children(tmp_path):
    """As smpirun does, the command starts another one and waits for it."""
    with pytest.raises(ValueError, match=r"SimGrid was not done after 0\.5 s: give it fewer messages, or more time"):
        simgrid.run(["sh", "-c", "sleep 600 & echo $! > child; wait"], tmp_path, 0.5)
    stat = Path("/proc") / (tmp_path / "child").read_text().strip() / "stat"
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)


def test_without_simgrid_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match=r"SimGrid is not installed: .*apt-get install libsimgrid-dev"):
        simgrid.replay(programs("ring", "all_reduce", 2), 9, 4, STAR, **LINK)


def test_the_time_is_read_from_what_simgrid_says():
    settings, end = "[0.000000] [xbt_cfg/INFO] Configuration change: ...\n", "{} Simulation time 0.052001\n"
    said = settings + end.format("0.000000000000") + end.format("0.052001234567")
    assert simgrid.end_of(said) == 0.052001234567
    with pytest.raises(ValueError, match="did not say how long it took; it says: nothing"):
        simgrid.end_of(settings)


def test_a_trace_posts_receives_first_and_keeps_the_order_of_a_pair():
    """And its empty messages; a step without messages has no lines."""
    sends = (Send(1, range(2)), Send(1, range(2, 3)), Send(1, range(1, 2)))
    program = Program("all_gather", 0, 3, (Step(), Step(sends, (Receive(2, range(2, 3)),))))
    said = "init, irecv 2 0 4 6, isend 1 0 8 6, isend 1 0 4 6, isend 1 0 0 6, waitall, finalize"
    assert list(trace_lines(program, [0, 8, 8, 12])) == [f"0 {line}" for line in said.split(", ")]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_traces_of_all_ranks_have_the_bytes_of_cost(tmp_path, size):
    written = programs("swing", "all_reduce", size)
    index = write_traces(written, 103, 8, tmp_path)
    lines = [line.split() for name in index.read_text().split() for line in (tmp_path / name).read_text().splitlines()]
    sent = [sum(int(line[4]) for line in lines if line[:2] == [str(rank), "isend"]) for rank in range(size)]
    assert tuple(sent) == cost(written, 103, 8, Network(**LINK)).nbytes
    assert sum(line[1] == "finalize" for line in lines) == size


def test_a_message_that_simgrid_cannot_count_is_refused():
    with pytest.raises(ValueError, match=r"irecv of rank 0 with rank 1 has 4294967296 bytes: SimGrid takes at most"):
        list(trace_lines(programs("ring", "all_reduce", 2)[0], [0, 2**32, 2**33]))
