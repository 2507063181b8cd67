"""The benchmark measures what it says, and its contestants are right."""

import numpy as np
import pytest

from dear_mpi.bench.collective import bench_collective
from dear_mpi.bench.prototype import PrototypeRing
from dear_mpi.bench.table import show_bench
from dear_mpi.world import run_world

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
def test_rows(comm, collective, monkeypatch):
    monkeypatch.setattr("dear_mpi.bench.collective.SAMPLES", (7, 7))
    rows = run_world(lambda world: bench_collective(collective, [100, 10_000], world, 512))
    names = ["native", "ring"] + ["prototype"] * (collective == "all_reduce")
    assert [row.algorithm for row in rows] == 2 * names
    for row in rows:
        assert row.wrong == 0
        assert row.samples == 7
        assert 0 < row.min_us <= row.ci_low_us <= row.p50_us <= row.ci_high_us <= row.max_us
        assert row.algbw_GBps == pytest.approx(row.bytes / row.p50_us * 1e-3)
        factor = (comm.size - 1) / comm.size * (2 if collective == "all_reduce" else 1)
        assert row.busbw_GBps == pytest.approx(row.algbw_GBps * factor)
        assert 0 <= row.slow_rank < comm.size
    assert all(answer == rows for answer in comm.allgather(rows))
    run_world(lambda world: show_bench(world, rows))


def test_a_wrong_result_is_counted(comm, monkeypatch):
    """A ring that loses one element is found out."""
    monkeypatch.setattr("dear_mpi.bench.collective.SAMPLES", (6, 6))
    whole = PrototypeRing.__call__

    def losing(ring):
        whole(ring)
        ring.x[-1] += 1

    monkeypatch.setattr(PrototypeRing, "__call__", losing)
    rows = run_world(lambda world: bench_collective("all_reduce", [400], world, 512))
    assert {row.algorithm: row.wrong > 0 for row in rows} == {"native": False, "ring": False, "prototype": True}


@pytest.mark.parametrize("segment_bytes", [4, 12, 4096])
def test_the_prototype_is_right(comm, segment_bytes):
    x = np.arange(40.0 * comm.size, dtype=np.float32) + comm.rank
    ring = PrototypeRing(x, comm, segment_bytes)
    ring()
    ring.free()
    np.testing.assert_array_equal(x, np.arange(40.0 * comm.size) * comm.size + sum(range(comm.size)))


def test_the_prototype_wants_equal_chunks(comm):
    if comm.size > 1:
        with pytest.raises(ValueError, match="x must split into"):
            PrototypeRing(np.zeros(comm.size + 1, np.float32), comm)


def test_sizes_too_small_are_refused(comm):
    with pytest.raises(ValueError, match=f"sizes must be at least {4 * comm.size} B on {comm.size} ranks, not 1 B"):
        run_world(lambda world: bench_collective("all_reduce", [1], world, 512))
