"""Device arrays over MPI, on as many ranks as there are, which may share a GPU: staged, and directly where MPI can."""

import hashlib
from unittest.mock import Mock

import cupy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples

from dear_mpi.collectives import make_plan, transport_of
from dear_mpi.collectives.launch.cuda_aware import built_for
from dear_mpi.collectives.plans.call import Call, Task
from dear_mpi.collectives.transports.transport import StagedTransport
from dear_mpi.models.networks import ALL_MODELS
from dear_mpi.ranks.streams import select_gpu
from dear_mpi.ranks.world import World
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import train
from tests.collective_checks import MESSAGES, cases, check_case
from tests.gpu.conftest import watched
from tests.training_checks import KINDS, settings

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="session")
def paths(comm):
    """The ways to the other ranks: staged always, and direct where the probe says that this MPI takes device memory."""
    select_gpu()
    transport = transport_of(comm)
    direct = [watched(transport)] if transport.takes(cupy.zeros(1)) else []
    if comm.rank == 0:
        print(f"device memory: {transport.name}")
    return [StagedTransport(watched(transport)), *direct]


@examples(max_examples=60)
@given(case=cases(MESSAGES))
def test_any_call_is_exact(paths, case):
    for transport in paths:
        check_case(transport, case, cupy.asarray)


@pytest.mark.parametrize("count", [5003, 4_000_037])
def test_same_bits_on_every_rank(paths, comm, count):
    digests = set()
    for transport in paths:
        x = cupy.asarray(np.random.default_rng(comm.rank).standard_normal(count).astype(np.float32))
        with make_plan("all_reduce", x, transport, segment_bytes=1 << 18) as plan:
            digests.add(hashlib.sha256(plan().get().tobytes()).hexdigest())
    assert len(set().union(*comm.allgather(digests))) == 1


@pytest.mark.parametrize("model", [name for name in ALL_MODELS if name != "gpt"])
def test_same_bits_under_every_schedule_direct_and_staged(paths, model):
    def digest(transport, schedule):
        config = Config.of(settings(model=model, fusion="layers:2", device="cuda", schedule=schedule, iterations=3))
        return train(config, World(transport))["params_sha256"]

    assert len({digest(transport, schedule) for transport in paths for schedule in KINDS}) == 1


def test_losses_are_those_of_the_host(paths):
    def losses(device):
        return train(Config.of(settings(device=device, iterations=6)), World(paths[0]))["loss"]

    assert losses("cuda") == pytest.approx(losses("cpu"), rel=2e-3)


def test_the_librarys_own_collectives_wait_for_the_stream(stream, monkeypatch):
    """MPI knows no streams; and most MPIs would crash, so it is not called."""
    from dear_mpi.collectives.plans.runners import native

    monkeypatch.setattr(native, "built_for", lambda *_, **__: True)
    x, seen = cupy.zeros(1000, np.float32), []
    transport = Mock(rank=0, size=1, native=Mock(Allreduce=lambda *_: seen.append(stream.done)))
    run = native.NativeRun(Task.of(Call("all_reduce", x, None, "native", "sum", None, 0), transport, tag=1))
    run.start()
    x += 1
    run.wait()
    assert seen == [True]


def test_native_is_refused_where_mpi_was_not_built_for_gpus(comm, paths):
    transport = transport_of(comm)
    x = cupy.zeros(100)
    if not built_for(x, transport.native, taken=transport.takes(x)):
        with pytest.raises(ValueError, match="algorithm 'native' needs an MPI built for GPUs"):
            make_plan("all_reduce", x, transport, algorithm="native")
