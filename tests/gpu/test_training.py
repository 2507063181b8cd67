"""Training on the device: as on the host to the tolerance of the type, and the same bits under every schedule."""

import json

import cupy
import numpy as np
import pytest

from dear_mpi.collectives.transports.transport import StagedTransport
from dear_mpi.kernels.array import to_host
from dear_mpi.models.layers import Dense, SoftmaxCrossEntropy
from dear_mpi.models.networks import ALL_MODELS
from dear_mpi.ranks.world import World, run_world
from dear_mpi.training import Session
from dear_mpi.training.events.profile import read_profile
from dear_mpi.training.events.spans import COMPUTE, WIRE
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from dear_mpi.training.runs.train import train
from dear_mpi.training.schedules import ALL_SCHEDULES
from tests.gpu.conftest import watched
from tests.timelines import recorded
from tests.training_checks import KINDS, README, Mixes, installed, settings

CASES = installed(
    {"model": "mlp", "fusion": "none"},
    {"model": "mlp", "fusion": "25MB", "optimizer": "sgd:nesterov=1", "lr": 0.1, "momentum": 0.9},
    {"model": "cnn", "fusion": "layers:2", "weight_decay": 1e-3, "iterations": 3},
    {"model": "cnn", "fusion": "buckets:3", "wire": "bf16", "iterations": 3},
    {"model": "mlp", "fusion": "cut:9kB", "clip": 0.5, "accumulate": 2, "optimizer": "adamw"},
    {"model": "mlp", "fusion": "none", "wire": "fp16", "loss_scale": "dynamic", "iterations": 3},
    {"model": "mlp", "fusion": "cut:9kB", "clip": 0.5, "update": "sharded", "accumulate": 2, "wire": "bf16"},
    {"model": "gpt", "data": README, "fusion": "layers:3", "context": 8, "batch": 6, "iterations": 2},
)


def trained(world=lambda world: world, threads=2, **choices):
    config = Config.of(settings(**choices))
    return run_world(lambda given: train(config, world(given)), threads=threads)


def staged(world):
    return World(StagedTransport(watched(world.transport)), world.link)


def direct(world):
    return World(watched(world.transport), world.link)


@pytest.mark.parametrize("choices", CASES, ids=str)
def test_same_bits_under_every_schedule_direct_and_staged(choices):
    digests = {
        trained(path, schedule=schedule, device="cuda", **choices)["params_sha256"]
        for schedule in KINDS
        for path in (direct, staged)
    }
    assert len(digests) == 1


@pytest.mark.parametrize("path", [direct, staged])
def test_invariant_sums_have_the_bits_of_one_rank(path):
    choices = {"device": "cuda", "invariant": 8, "accumulate": 2, "clip": 0.1, "fusion": "cut:9kB", "iterations": 3}
    reports = [trained(path, threads=ranks, **choices) for ranks in (1, 2, 3)]
    assert len({(report["params_sha256"], *report["loss"]) for report in reports}) == 1


@pytest.mark.parametrize("update", ["full", "sharded"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_value_that_was_changed_in_place_is_kept(dtype, update):
    """Where it stays in its own memory: it is read on the stream of the update, behind that of the change."""

    def body(world):
        weight = np.random.default_rng(0).standard_normal((6, 40))
        layers = [Cast("narrow", weight.astype(dtype)), Dense("last", np.ones((40, 4)))]
        layers[0].weight.rebind = dtype == "float32"
        with Session(layers, SoftmaxCrossEntropy(), direct(world), device="cuda", update=update) as session:
            for _ in range(2):
                session.step(np.ones((3, 6)), np.zeros(3, int))
                session.flush()
                layers[0].weight.value[1] = 5.0
            session.step(np.ones((3, 6)), np.zeros(3, int))
            session.flush()
            return abs(to_host(layers[0].weight.value)[1] - 5.0).max()

    assert run_world(body, threads=2) < 0.5


def test_halves_and_exchanges_are_in_order_on_both_streams():
    """The engine's stream exchanges what the compute stream has made, while that writes the gradients of weights."""

    def body(world, schedule):
        rng, transport = np.random.default_rng(0), direct(world).transport
        layers = [Dense("in", rng.standard_normal((6, 8)))]
        layers += [Mixes(name, rng.standard_normal((8, 8)) / 4, transport) for name in ("first", "second")]
        with Session(layers, SoftmaxCrossEntropy(), World(transport), device="cuda", schedule=schedule) as session:
            for iteration in range(3):
                session.step(np.full((4, 6), float(iteration + world.rank)), np.arange(4))
            session.flush()
            return session.parameters_sha256()

    names = ["dear", *({"lancet"} & set(ALL_SCHEDULES))]
    assert len({run_world(lambda world, name=name: body(world, name), threads=2) for name in names}) == 1


class Cast(Dense):
    """A layer of another type than the model's."""

    def forward(self, x):
        return super().forward(x.astype(self.weight.value.dtype)).astype(float)

    def backward(self, dy):
        return super().backward(dy.astype(self.weight.value.dtype)).astype(float)


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("model", [name for name in ALL_MODELS if name != "gpt"])
def test_losses_are_those_of_the_host(model, dtype):
    here, there = (trained(model=model, dtype=dtype, device=device, iterations=6) for device in ("cpu", "cuda"))
    assert there["device"] == "cuda"
    assert there["loss"] == pytest.approx(here["loss"], rel={"fp32": 2e-3, "fp64": 1e-8}[dtype])
    assert there["accuracy"] == pytest.approx(here["accuracy"], abs=0.03)


def test_times_are_those_between_marks_of_the_device(tmp_path, monkeypatch):
    elapsed = cupy.cuda.get_elapsed_time
    monkeypatch.setattr(cupy.cuda, "get_elapsed_time", lambda *marks: elapsed(*marks) * 0 + 1e6)  # ms
    table = tmp_path / "model.json"
    table.write_text(json.dumps({"modules": [{"name": str(n), "params": [999], "fwd_flops": 1} for n in range(5)]}))
    report = trained(device="cuda", model=f"synthetic:{table}", forward_time=0.02, iterations=3, data=None, batch=None)
    assert report["iteration_s"] == [1000.0] * 3
    assert report["compute_s"] == 2 * 5 * 1000.0


@pytest.mark.parametrize("update", ["full", "sharded"])
def test_a_profile_has_the_times_of_the_device(update, tmp_path):
    """Between marks of the streams: those around a layer and an update are the stream's that works on it."""
    file, config = tmp_path / "profile.json", Config.of(settings(device="cuda", accumulate=2, update=update))
    report = run_world(lambda world: train(config, world, profile=file), threads=2)
    profile = read_profile(file)
    assert profile.device == "cuda"
    measured_s = sum(use.forward_s + use.backward_s for use in profile.uses)
    assert 0 < measured_s < max(report["iteration_s"])
    assert all(use.forward_s > 0 and use.backward_s > 0 for use in profile.uses if use.tensors)
    assert profile.update_s_per_element > 0


# A timeline of the device: marks are events of two streams, and spans add up to what the trainer has measured.

ROUNDING_S = 1e-5  # a device tells milliseconds in single precision


@pytest.mark.parametrize("update", ["full", "sharded"])
def test_spans_of_the_device_add_up(update):
    config = Config.of(settings(device="cuda", schedule="dear", update=update, iterations=4))

    def trained(world):
        with Job(config, world, [config.schedule]) as job:
            times = [job.iterate(config.schedule, *job.batch(number))[1] for number in range(config.iterations)]
            return recorded(job, "mine").ranks[world.rank], times

    rank, times = run_world(trained, threads=2)
    for iteration in rank.iterations:
        told = times[iteration.number]
        for kind, seconds in (("wait", told.exposed_s), ("forward", told.forward_s), ("backward", told.backward_s)):
            assert sum(span.seconds for span in rank.within(iteration, kind)) == pytest.approx(seconds, abs=ROUNDING_S)
    lanes = {span.lane for span in rank.spans if span.kind == "update"}
    assert lanes == {WIRE if update == "sharded" else COMPUTE}
