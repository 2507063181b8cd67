"""What cannot find room is refused before the work."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.models.layers import Dense, Reshape
from dear_mpi.models.networks import MODELS
from dear_mpi.ranks import host
from dear_mpi.ranks.world import run_world
from dear_mpi.training.runs import job as job_module
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from tests.rooms import ROOT
from tests.training_checks import settings


def built(**choices):
    def body(world):
        with Job(Config.of(settings(**choices)), world, ["dear"]) as job:
            return len(job.group.buckets)

    return run_world(body, threads=3)


def test_a_model_beyond_memory_is_refused_before_it_is_made(tmp_path, monkeypatch):
    table = tmp_path / "huge.json"
    table.write_text(json.dumps({"modules": [{"name": "a", "params": [10**15], "fwd_flops": 1}]}))
    monkeypatch.setattr(np, "zeros_like", None)
    with pytest.raises(ArgumentError, match=r"huge.json' needs at least .* GiB for the ranks of a host \(3\), where"):
        built(model=f"synthetic:{table}", data=None, batch=None)


def test_a_batch_beyond_memory_is_refused():
    with pytest.raises(ArgumentError, match=r"batch 1000000000000 needs at least .* GiB for the ranks of a host"):
        built(batch=10**12)


def test_where_nobody_knows_nothing_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "MEMINFO", tmp_path / "none")
    monkeypatch.setattr(host, "GROUP", tmp_path / "none")
    assert host.available_bytes() == math.inf
    assert built() == 3


STAT = "anon 400\nactive_file 100\ninactive_file 200\nshmem 0\n"


@pytest.mark.parametrize(
    ("meminfo", "group", "expected"),
    [
        ("MemTotal: 9 kB\nMemAvailable:   100 kB\n", {"max": "max\n"}, 102400),
        ("MemTotal: 9 kB\nMemAvailable:   100 kB\n", {"max": "1000\n"}, 1000),
        ("MemTotal: 9 kB\nMemAvailable:   100 kB\n", {"max": "1000\n", "current": "700\n", "stat": STAT}, 600),
        ("MemTotal: 9 kB\nMemAvailable:   100 kB\n", {"max": "1000\n", "current": "700\n", "stat": "anon 1\n"}, 1000),
        ("MemTotal: 9 kB\n", {"max": "max\n"}, math.inf),
        ("nonsense", {"max": ""}, math.inf),
    ],
)
def test_what_is_available(meminfo, group, expected, tmp_path, monkeypatch):
    """Files that a group has cached are room: the kernel drops them."""
    (tmp_path / "meminfo").write_text(meminfo)
    for name, text in group.items():
        (tmp_path / f"memory.{name}").write_text(text)
    monkeypatch.setattr(host, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(host, "GROUP", tmp_path)
    assert host.available_bytes() == expected


def test_a_batch_in_parts_needs_room_for_one_of_them(monkeypatch):
    monkeypatch.setattr(host, "available_bytes", lambda: 200e6)
    with pytest.raises(ArgumentError, match="batch 400000 needs at least"):
        built(batch=400000)
    assert built(batch=400000, accumulate=50) == 3


def test_what_is_frozen_or_tied_needs_no_second_room(monkeypatch):
    def build(shape, classes, rng, dtype):
        weight, head = np.zeros((64, 64), dtype), np.zeros((64, classes), dtype)
        large = Dense("large", np.zeros((64, 100_000), dtype))
        large.weight.trained = large.bias.trained = False
        layers = [Reshape((64,)), Dense("one", weight), Dense("two", weight), Dense("head", head), large]
        return [Reshape((64,)), *layers[1:4], Frozen(large)]

    class Frozen:
        def __init__(self, layer):
            self.parameters = layer.parameters

        def forward(self, x):
            return x

        def backward(self, dy):
            return dy

    monkeypatch.setitem(MODELS, "mlp", build)
    monkeypatch.setattr(host, "available_bytes", lambda: 20e6)
    assert built()


@pytest.mark.parametrize(("route", "bytes_of_an_element"), [("full", 8), ("int8", 8 + 4 + 1)])
def test_errors_and_codes_need_room(route, bytes_of_an_element, monkeypatch):
    """Values and gradients; and, of codes, what they have lost, and the codes of all shards."""
    needed = []
    monkeypatch.setattr(job_module, "check", lambda what, nbytes, *_: needed.append(nbytes))
    own = {"route": f"{ROOT}/tests/routes/int8.py:int8"} if route == "int8" else {}
    config = Config.of(settings(optimizer="sgd", **own))
    job_module.check_model(256_000, config, SimpleNamespace(size=3))
    assert needed[0] == pytest.approx(256_000 * bytes_of_an_element, rel=0.02)
