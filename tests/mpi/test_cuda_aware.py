"""Device memory and MPI, asked of the libraries themselves; the MPIs of the wheels are built without CUDA."""

import sys

import numpy as np
import pytest

from dear_mpi.collectives.launch.cuda_aware import DeviceMemory, decide, probe, queries
from dear_mpi.collectives.program.errors import ArgumentError, MismatchError
from dear_mpi.collectives.transports.mpi import MpiTransport
from dear_mpi.kernels.array import current_gpu
from tests.collective_checks import DeviceArray

pytestmark = pytest.mark.mpi


def has_gpu():
    try:
        current_gpu()
    except ValueError:
        return False
    return True


def test_queries(comm):
    answers = queries(comm)
    assert list(answers) == ["MPIX_Query_cuda_support", "MPIX_GPU_query_support", "mpi_memory_alloc_kinds"]
    assert answers["MPIX_Query_cuda_support"] in (True, False, None)
    if "pypi.org/p/mpich" in library(comm):
        assert answers == dict(zip(answers, (False, False, "mpi,system"), strict=True))
    assert comm.allgather(answers) == [answers] * comm.size


def library(comm):
    from mpi4py import MPI

    return MPI.Get_library_version()


@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_without_a_gpu_it_is_staged_on_all_ranks(comm):
    found = decide(comm)
    assert not found.direct
    assert found.why.startswith("staged through pinned host memory: ")
    assert comm.allgather(found) == [found] * comm.size


def test_one_rank_of_a_host_probes(comm):
    calls = []

    def probing():
        calls.append(comm.rank)
        return DeviceMemory(True, "made up")

    assert decide(comm, "auto", probing=probing).direct
    assert comm.allgather(len(calls)) == [1] + [0] * (comm.size - 1)
    assert not decide(comm, "staged", probing=probing).direct
    assert len(calls) <= 1


def test_bad_overrides_are_errors_on_all_ranks(comm):
    with pytest.raises(ArgumentError, match="device_memory 'drect' is unknown"):
        decide(comm, "drect")
    if comm.size > 1:
        with pytest.raises(MismatchError, match="not direct and staged"):
            decide(comm, "direct" if comm.rank else "staged")


@pytest.mark.parametrize(("device_memory", "direct"), [("direct", True), ("staged", False)])
def test_a_transport_is_told_how_device_memory_travels(comm, device_memory, direct):
    transport = MpiTransport(comm, device_memory=device_memory)
    library = transport.name
    assert transport.takes(np.zeros(1))
    assert transport.name == library
    assert transport.takes(DeviceArray()) == direct
    assert transport.name.startswith(f"{library}; {'direct' if direct else 'staged'}")
    transport.free()


CHILD = """
import numpy as np
from mpi4py import MPI
sent, received = np.ones(1000), np.zeros(1000)
MPI.COMM_SELF.Sendrecv(sent, 0, recvbuf=received)
assert (sent == received).all()
assert MPI.COMM_WORLD.size == 1, MPI.COMM_WORLD.size
"""


def test_a_child_of_a_rank_is_a_job_of_its_own(comm, agree):
    agree(probe(30, command=[sys.executable, "-c", CHILD]).direct)
