"""SimGrid as an oracle: where it is installed, its replay of a program is held against ``cost``.

On 7 and 8 ranks; with EVERY_ORACLE=1 also on others, up to 64, which takes a minute more. What needs no SimGrid is
tested everywhere, and so are a few times that it once found.
"""

import os
import shutil

import pytest

from dear_mpi.collectives.algorithms.registry import ALGORITHMS, programs, runner_of
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.collectives.program.program import COLLECTIVES, Program, Receive, Send, Step
from dear_mpi.collectives.program.user_file import WithExtras
from tests.simulate import simgrid
from tests.simulate.simgrid import trace_lines, write_traces

needs_simgrid = pytest.mark.skipif(shutil.which("smpirun") is None, reason="needs SimGrid (Debian: libsimgrid-dev)")
LINK = {"alpha": 5e-6, "beta": 1e-9}  # 5 us, 1 GB/s
COUNT = 25 * 2**18  # fp32 numbers, 25 MiB
RANKS = (3, 5, 7, 8, 12, 17, 64) if os.environ.get("EVERY_ORACLE") else (7, 8)
SERVED = [(name, collective) for name, row in ALGORITHMS.items() if runner_of(name) == "messages" for collective in row]
CLOSE = 1e-4

# What SimGrid 3.32 says: where ranks are folded, flows share ports, messages have an order, and hosts differ in size.
RECORDED_S = [
    ("naive", "all_reduce", 5, {}, 0.209755328), ("ordered", "reduce_scatter", 6, {}, 0.02185042),
    ("rabenseifner", "reduce_scatter", 3, {}, 0.043705732), ("rabenseifner", "all_reduce", 17, {}, 0.111085936),
    ("swing", "all_reduce", 12, {}, 0.104907912), ("double_tree", "all_reduce", 7, {}, 0.131102208),
    ("double_tree", "all_reduce", 13, {"pieces": 5}, 0.10137915), ("torus", "all_reduce", 12, {}, 0.048110496),
    ("hierarchical", "all_gather", 8, {"hosts": [0, 0, 0, 1, 1, 1, 2, 2]}, 0.03278816),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "collective", "size", "given", "time_s"),
    [row for row in RECORDED_S if row[0] in WithExtras(ALGORITHMS, "algorithms")],
)
def test_cost_agrees_with_what_simgrid_once_said(name, collective, size, given, time_s):
    written = programs(name, collective, size, **given)
    assert cost(written, COUNT, 4, Network(**LINK)).time_s == pytest.approx(time_s, rel=CLOSE)


@needs_simgrid
@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize(("name", "collective"), SERVED)
def test_cost_agrees_with_simgrid(name, collective, size):
    written, count = programs(name, collective, size), COUNT - COUNT % size * COLLECTIVES[collective].addressed
    time_s = simgrid.replay(written, count, 4, **LINK)
    assert cost(written, count, 4, Network(**LINK)).time_s == pytest.approx(time_s, rel=CLOSE)


def test_a_trace_posts_receives_first_and_has_a_message_for_each_pair():
    """And its empty messages; a step without messages has no lines."""
    sends = (Send(1, range(2)), Send(2, range(1, 2)), Send(1, range(2, 3)))
    program = Program("all_gather", 0, 3, (Step(), Step(sends, (Receive(2, range(2, 3)),))))
    said = "init, irecv 2 0 4 6, isend 1 0 12 6, isend 2 0 0 6, waitall, finalize"
    assert list(trace_lines(program, [0, 8, 8, 12])) == [f"0 {line}" for line in said.split(", ")]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_traces_of_all_ranks_have_the_bytes_of_cost(tmp_path, size):
    written = programs("rabenseifner", "all_reduce", size)
    write_traces(written, 103, 8, tmp_path)
    index = tmp_path / "index.txt"
    lines = [line.split() for name in index.read_text().split() for line in (tmp_path / name).read_text().splitlines()]
    sent = [sum(int(line[4]) for line in lines if line[:2] == [str(rank), "isend"]) for rank in range(size)]
    assert tuple(sent) == cost(written, 103, 8, Network(**LINK)).nbytes
    assert sum(line[1] == "finalize" for line in lines) == size
