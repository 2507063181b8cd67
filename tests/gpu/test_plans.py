"""Collectives on device arrays, on threads that share one GPU: directly, and staged through pinned host memory."""

import cupy
import numpy as np
import pytest
from hypothesis import given, settings

from dear_mpi.collectives import ALGORITHMS, make_plan
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.collectives.transports.transport import StagedTransport
from dear_mpi.kernels.slab import Slab
from tests.collective_checks import MESSAGES, cases, check_case
from tests.gpu.conftest import watched
from tests.see.test_explain import IN_SCRATCH

SIZES = [1, 2, 3, 4]


def on_streams(body):
    """A rank's thread with a stream of its own."""

    def rank(transport):
        with cupy.cuda.Stream(non_blocking=True):
            return body(transport)

    return rank


@pytest.mark.parametrize("size", SIZES)
@settings(max_examples=30)
@given(case=cases(MESSAGES))
def test_any_call_is_exact(size, case):
    def body(transport):
        for wrapped in (watched(transport), StagedTransport(watched(transport))):
            check_case(wrapped, case, cupy.asarray)

    run_loopback(size, on_streams(body))


def test_scratch_is_on_the_device(path, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(IN_SCRATCH)

    def body(transport):
        x = cupy.arange(1001, dtype=np.float32) + transport.rank
        call = {"algorithm": f"{file}:exchange", "segment_bytes": 256}
        with make_plan("all_reduce", x, path(transport), **call) as plan:
            return plan().get().tolist()

    assert run_loopback(2, on_streams(body)) == [[2 * number + 1 for number in range(1001)]] * 2


@pytest.mark.parametrize(
    "algorithm", [name for name in ALGORITHMS if "all_reduce" in ALGORITHMS[name] and name != "shared"]
)
@pytest.mark.parametrize("size", SIZES)
def test_same_bits_as_on_the_host(size, algorithm, path):
    """The kernels sum in the order in which NumPy does."""
    data = [np.random.default_rng(rank).standard_normal(5003).astype(np.float32) for rank in range(size)]
    call = {"algorithm": algorithm, "segment_bytes": 2048}

    def on_host(transport):
        with make_plan("all_reduce", data[transport.rank].copy(), transport, **call) as plan:
            return plan().tobytes()

    def on_device(transport):
        with make_plan("all_reduce", cupy.asarray(data[transport.rank]), path(transport), **call) as plan:
            return plan().get().tobytes()

    bits = {*run_loopback(size, on_host), *run_loopback(size, on_streams(on_device))}
    assert len(bits) == 1


@pytest.mark.parametrize("size", SIZES)
def test_a_plan_sees_what_the_stream_writes_between_its_runs(size, path):
    """Nobody waits for the kernel that fills the buffer, nor for the plan, but the plan and the stream themselves."""

    def body(transport):
        x, seen = cupy.zeros(3001, np.float32), []
        with make_plan("all_reduce", x, path(transport), segment_bytes=1024) as plan:
            for turn in range(4):
                cupy.copyto(x, cupy.full(3001, transport.rank + turn, np.float32))
                plan()
                seen.append(x.copy())
        return [float(total[-1]) for total in seen]

    expected = [float(sum(rank + turn for rank in range(size))) for turn in range(4)]
    assert run_loopback(size, on_streams(body)) == [expected] * size


def test_a_plan_can_be_polled(path):
    def body(transport):
        x = cupy.full(1000, transport.rank, np.float32)
        with make_plan("all_reduce", x, path(transport), segment_bytes=256) as plan:
            plan.start()
            while not plan.advance():
                pass
        return float(x.sum())

    assert run_loopback(3, on_streams(body)) == [3000.0] * 3


def test_landing_places_come_from_the_slab():
    def body(transport):
        slab = Slab.beside(cupy.zeros(1), 1 << 16)
        x = slab.zeros(1000, np.dtype(np.float32))
        before = slab.left
        make_plan("reduce_scatter", x, transport, segment_bytes=256, slab=slab).free()
        return before - slab.left

    assert run_loopback(3, on_streams(body)) == [512] * 3, "two segments of 256 bytes"
