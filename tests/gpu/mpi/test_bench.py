"""The benchmark on device memory: whoever can run there is right, and the others say why they cannot."""

import pytest

from dear_mpi.bench.collective import bench
from dear_mpi.bench.contest import Contest
from dear_mpi.ranks.streams import select_gpu
from dear_mpi.ranks.world import run_world

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("placement", ["in", "out"])
def test_contestants_on_a_device(comm, placement):
    select_gpu()
    kinds = "all_reduce", "reduce_scatter", "all_gather"
    settings = Contest((4, 10_000), kinds, placements=(placement,), device="cuda", iterations=3, start="barrier")
    report = run_world(lambda world: bench(settings, world))
    assert [row.wrong for row in report.rows] == [0] * len(report.rows)
    assert {row.device for row in report.rows} == {"cuda"}
    missing = {entry.partition(":")[0] for entry in report.left_out}
    assert {row.algorithm for row in report.rows} == {"host copies", "staged", "direct", "native"} - missing
    assert ("host copies" in missing) == (placement == "out")
