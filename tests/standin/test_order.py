"""What only the stand-in can see: a wait that is missing, and the number of launches. (PYTHONPATH=tests/standin)"""

import cupy
import numpy as np
import pytest

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.collectives.transports.transport import StagedTransport
from dear_mpi.ranks.world import run_world
from dear_mpi.training.runs.compare import Comparison
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import train
from tests.standin.checked_transport import CheckedTransport
from tests.training_checks import settings


@pytest.fixture(autouse=True)
def races():
    cupy.races.clear()
    yield cupy.races
    cupy.races.clear()


def reduce(transport, *, staged):
    watched = CheckedTransport(transport)
    with cupy.cuda.Stream(non_blocking=True):
        x = cupy.ones(1000, np.float32)
        with make_plan("all_reduce", x, StagedTransport(watched) if staged else watched, segment_bytes=256) as plan:
            return float(plan().sum())


@pytest.mark.parametrize("staged", [False, True])
def test_a_plan_waits_for_its_kernels(staged, races):
    assert run_loopback(3, lambda transport: reduce(transport, staged=staged)) == [3000.0] * 3
    assert not races


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("method", ["synchronize", "record"])
def test_without_the_wait_there_is_a_race(staged, method, races, monkeypatch):
    """The test of the tests: a plan has one wait, and it is needed."""
    monkeypatch.setattr(cupy.cuda.Event, method, lambda self: None)
    with pytest.raises(Exception, match="nothing makes it wait"):
        run_loopback(3, lambda transport: reduce(transport, staged=staged))
    assert races


@pytest.mark.parametrize("schedule", ["sequential", "wfbp", "dear"])
@pytest.mark.parametrize("forgotten", ["ready", "done"])
def test_compute_and_communication_wait_for_each_other(schedule, forgotten, races, monkeypatch):
    """The engine's plan begins behind the gradients, and the update behind the plan."""
    # Whose last step is a kernel: behind a message the host has waited anyway.
    algorithm = "ring" if schedule == "dear" else "recursive_doubling"
    config = Config.of(settings(device="cuda", schedule=schedule, algorithm=algorithm, iterations=2))
    run_world(lambda world: train(config, world), threads=2)
    assert not races
    monkeypatch.setattr(f"dear_mpi.training.fabric.live.PlanHandle.{forgotten}", Forgotten(), raising=False)
    with pytest.raises(Exception, match="nothing makes it wait"):
        run_world(lambda world: train(config, world), threads=2)
    assert races


def test_jobs_that_take_turns_work_on_their_own_streams(races):
    config = Config.of(settings(device="cuda", iterations=1))
    rows = run_world(lambda world: Comparison(config, world, ["dear"], wires=["fp32", "bf16"]).run(), threads=2)
    assert [row["wire"] for row in rows] == ["fp32", "bf16"]
    assert not races


class Forgotten:
    """An attribute that keeps a mark of the past whatever it is set to: as good as not waiting."""

    def __get__(self, handle, owner):
        event = cupy.cuda.Event()
        event.record(cupy.cuda.Stream(non_blocking=True))
        return event

    def __set__(self, handle, value):
        pass


@pytest.mark.parametrize("wire", ["bf16", "fp32"])
def test_a_bucket_packs_and_updates_in_one_launch_each(wire):
    cupy.launches.clear()
    config = Config.of(settings(device="cuda", wire=wire, fusion="25MB", iterations=4, schedule="sequential"))
    run_world(lambda world: train(config, world), threads=1)
    names = [launch.name for launch in cupy.launches]
    assert names.count("pack<Bfloat16>") == (4 if wire == "bf16" else 0)
    assert sum(name.startswith("update<") and ", Adam, " in name for name in names) == 4
