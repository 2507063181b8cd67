"""The benchmark on device memory: whoever can run there is right, and the others say why they cannot."""

import pytest

from dear_mpi.bench.case import OPERATIONS
from dear_mpi.bench.run import bench
from dear_mpi.bench.suite import Suite
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.ranks.streams import select_gpu
from dear_mpi.ranks.world import run_world

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("placement", ["in", "out"])
def test_contestants_on_a_device(comm, placement):
    select_gpu()
    kinds = "all_reduce", "reduce_scatter", "all_gather"
    settings = Suite((4, 10_000), kinds, placements=(placement,), device="cuda", iterations=3, start="barrier")
    report = run_world(lambda world: bench(settings, world))
    assert [row.wrong for row in report.rows] == [0] * len(report.rows)
    assert {row.device for row in report.rows} == {"cuda"}
    missing = {why.partition(":")[0] for why, _, _ in report.left_out}
    assert {row.algorithm for row in report.rows} == {"host copies", "staged", "direct", "native"} - missing
    assert ("host copies" in missing) == (placement == "out")


@pytest.mark.parametrize("placement", ["in", "out"])
def test_what_mpi_alone_does_with_device_memory(comm, placement):
    """It does it right, or the reason is that this MPI was not built for GPUs."""
    select_gpu()
    names = tuple(name for name in OPERATIONS if name not in COLLECTIVES)
    if not names:
        pytest.skip("they are of an extra, which was deleted")
    settings = Suite(
        (4, 10_000),
        names,
        ("native-best", "direct"),
        placements=(placement,),
        device="cuda",
        iterations=3,
        start="barrier",
    )
    report = run_world(lambda world: bench(settings, world))
    assert [row.wrong for row in report.rows] == [0] * len(report.rows)
    assert {row.device for row in report.rows} == {"cuda"}
    assert {row.collective for row in report.rows} >= {"barrier"}
    missing = set()
    for why, name, _ in report.left_out:
        if not why.startswith("direct: has no program"):
            assert "needs an MPI built for GPUs" in why
            missing.add(name)
    assert {row.collective for row in report.rows} == set(names) - missing
