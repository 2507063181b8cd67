"""The doctor's view of a GPU, and of links from and to its memory, between threads that share it."""

import cupy
import pytest

from dear_mpi.collectives.plans.runners.messages import MessagesRun
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.kernels.array import current_gpu, use_gpu
from tests.gpu.conftest import watched

pytest.importorskip("dear_mpi.contrib.doctor")
from dear_mpi.contrib.doctor.examine import gpu_of
from dear_mpi.contrib.doctor.links import measure_links, neighbours, there_and_back


@pytest.mark.parametrize("path", ["host", "device", "staged"])
@pytest.mark.parametrize("size", [2, 3])
def test_links_of_all_neighbours(size, path):
    def rank(transport):
        with cupy.cuda.Stream(non_blocking=True):
            return measure_links(watched(transport), neighbours(size), 10_000, path)

    answers = run_loopback(size, rank)
    pairs = [(0, 1), (1, 0)] if size == 2 else [(0, 1), (1, 0), (1, 2), (2, 1), (2, 0), (0, 2)]
    assert all(
        [(row.source, row.dest, row.path) for row in rows] == [(*pair, path) for pair in pairs] for rows in answers
    )
    assert all(row.latency_us > 0 and row.GBps > 0 and row.bytes == 10_000 for row in answers[0])


@pytest.mark.parametrize("staged", [False, True])
def test_a_round_trip_ends_with_what_was_sent(staged):
    def rank(transport):
        with cupy.cuda.Stream(non_blocking=True):
            x = cupy.zeros(2000, "u1")
            x[:1000] = 7 - 7 * transport.rank
            program = there_and_back(transport.rank, 2, 0, 1)
            chunks = (0, 1000, 2000)
            run = MessagesRun(program, x, chunks, watched(transport), op="sum", segment=1000, tag=1, staged=staged)
            run.whole()
            run.free()
            return x.tolist()

    assert run_loopback(2, rank) == [[7] * 2000, [7] * 1000 + [0] * 1000]


def test_the_gpu_of_a_rank():
    count = cupy.cuda.runtime.getDeviceCount()
    use_gpu(count)  # more ranks than GPUs: the first serves again
    gpu = current_gpu()
    assert (gpu.number, gpu.count) == (0, count)
    assert ":" in gpu.address
    assert gpu_of(None) == (gpu, None)
    assert gpu_of("cpu") == (None, None)
