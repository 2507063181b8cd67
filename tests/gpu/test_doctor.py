"""The doctor's view of a GPU, and of links from and to its memory, between threads that share it."""

import cupy
import pytest

from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.doctor.examine import gpu_of
from dear_mpi.doctor.links import Trips, measure_links
from dear_mpi.kernels.events import synchronize
from dear_mpi.kernels.gpu import current_gpu, use_gpu
from tests.gpu.conftest import watched


@pytest.mark.parametrize("path", ["host", "device", "staged"])
@pytest.mark.parametrize("size", [2, 3])
def test_links_of_all_neighbours(size, path):
    def rank(transport):
        with cupy.cuda.Stream(non_blocking=True):
            return measure_links(watched(transport), 10_000, path)

    answers = run_loopback(size, rank)
    pairs = [(0, 1)] if size == 2 else [(0, 1), (1, 2), (2, 0)]
    assert all(
        [(row.source, row.dest, row.path) for row in rows] == [(*pair, path) for pair in pairs] for rows in answers
    )
    assert all(0 < row.latency_us < 1e6 and row.GBps > 0 and row.bytes == 10_000 for row in answers[0])


@pytest.mark.parametrize("path", ["host", "device", "staged"])
def test_a_trip_brings_back_what_was_sent(path):
    """Through memory that is still what it was: the arrays of the device live as long as the trips do."""

    def rank(transport):
        with cupy.cuda.Stream(non_blocking=True):
            trips = Trips(watched(transport), 1 - transport.rank, 1, 1000, path)
            out, back = trips.memory[:2]
            if transport.rank == 0:
                out[...] = 7
                synchronize(out)
                trips.timed(2)
                return None
            trips.answered(2)
            return back.tolist()

    assert run_loopback(2, rank)[1] == [7] * 1000


def test_the_gpu_of_a_rank():
    count = cupy.cuda.runtime.getDeviceCount()
    use_gpu(count)  # more ranks than GPUs: the first serves again
    gpu = current_gpu()
    assert (gpu.number, gpu.count) == (0, count)
    assert ":" in gpu.address
    assert gpu_of(None) == gpu
    assert gpu_of("cpu") is None
