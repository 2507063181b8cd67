"""Calls of a real MPI library in OSU's layout, and during compute."""

import pytest

from dear_mpi.bench.case import OPERATIONS
from dear_mpi.bench.run import agreed, bench
from dear_mpi.bench.suite import Suite
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.contrib.analysis.layouts import OSU
from dear_mpi.contrib.analysis.overlap import overlap
from dear_mpi.ranks.world import run_world
from tests.bench.readers import read_osu
from tests.rooms import DELETED

pytestmark = pytest.mark.mpi


@pytest.fixture(autouse=True)
def _two_ranks(comm):
    if comm.size < 2:
        pytest.skip("there is nobody to send to")


@pytest.mark.parametrize("collective", [name for name in OPERATIONS if name not in COLLECTIVES])
def test_what_was_measured_can_be_read_as_osus(comm, collective):
    suite = Suite((8, 100, 50_000), (collective,), iterations=3, warmup=1, start="barrier")
    report = run_world(lambda world: bench(suite, world))
    blocks = read_osu("\n".join(OSU.lines(report)))
    assert len(blocks) == len({row.algorithm for row in report.rows if row.segment_bytes})
    first = blocks[0].rows[0]
    if collective == "barrier":
        assert list(first) == ["Avg Latency(us)", "Min Latency(us)", "Max Latency(us)", "Iterations"]
    else:
        assert {found["Validation"] for block in blocks for found in block.rows} == {"Pass"}
        assert ("Bandwidth (MB/s)" in first) == (collective in ("bandwidth", "both_ways"))


@pytest.mark.skipif("operations" in DELETED, reason="an extra, which was deleted")
def test_calls_that_go_on_beside_compute(comm):
    """Those that do not block, of the operations that have one."""
    names = ("gather", "sendrecv", "barrier", "ping_pong")
    suite = Suite((64,), names, ("native",), ("out",), iterations=3, warmup=1, start="barrier")

    def found(world):
        ready = agreed(suite, world)
        return overlap({})(world, ready, bench(ready, world)).data["overlap"]

    assert {each["collective"] for each in run_world(found)} == {"gather", "sendrecv", "barrier"}
