"""The GPU suite: what needs CuPy. It runs on a GPU (`make test-gpu`), and over a stand-in for CuPy on any machine.

The stand-in (PYTHONPATH=tests/standin) runs the same kernels, compiled for the host, keeps the streams' order in mind,
and fails a test in which somebody did not wait for them. Without either, this suite fails: nothing is skipped.
"""

import cupy
import pytest

from dear_mpi.collectives.transports.transport import StagedTransport

IS_STANDIN = getattr(cupy, "is_standin", False)


def pytest_report_header():
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return f"device: {properties['name'].decode()}, CuPy {cupy.__version__}"


@pytest.fixture(autouse=True)
def stream():
    """Tests work on a stream of their own, as a job does; at the end no race is left that somebody caught and hid."""
    with cupy.cuda.Stream(non_blocking=True) as stream:
        yield stream
        stream.synchronize()
    if IS_STANDIN:
        races, cupy.races[:] = list(cupy.races), []
        assert not races, f"races were found, and their errors were caught: {races}"


def watched(transport):
    """The transport; with the stand-in, each buffer that it is handed must have been waited for."""
    if not IS_STANDIN:
        return transport
    from tests.standin.checked_transport import CheckedTransport

    return CheckedTransport(transport)


@pytest.fixture(params=["direct", "staged"])
def path(request):
    """A function that gives a transport which plans use directly, or through pinned host memory."""
    staged = request.param == "staged"
    return lambda transport: StagedTransport(watched(transport)) if staged else watched(transport)
