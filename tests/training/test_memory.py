"""What cannot find room is refused before the work."""

import json
import math

import numpy as np
import pytest

from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.ranks import host
from dear_mpi.ranks.world import run_world
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
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


def test_where_nobody_knows_nothing_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "MEMINFO", tmp_path / "none")
    monkeypatch.setattr(host, "GROUP", tmp_path / "none")
    assert host.available_bytes() == math.inf
    assert built() == 3


STAT = "anon 400\nactive_file 100\ninactive_file 200\nshmem 0\n"


@pytest.mark.parametrize(("meminfo", "group", "expected"), [
    ("MemTotal: 9 kB\nMemAvailable:   100 kB\n", {"max": "max\n"}, 102400),
    ("MemTotal: 9 kB\nMemAvailable:   100 kB\n", {"max": "1000\n"}, 1000),
    ("MemTotal: 9 kB\nMemAvailable:   100 kB\n", {"max": "1000\n", "current": "700\n", "stat": STAT}, 600),
    ("MemTotal: 9 kB\nMemAvailable:   100 kB\n", {"max": "1000\n", "current": "700\n", "stat": "anon 1\n"}, 1000),
    ("MemTotal: 9 kB\n", {"max": "max\n"}, math.inf),
    ("nonsense", {"max": ""}, math.inf),
])  # fmt: skip
def test_what_is_available(meminfo, group, expected, tmp_path, monkeypatch):
    """Files that a group has cached are room: the kernel drops them."""
    (tmp_path / "meminfo").write_text(meminfo)
    for name, text in group.items():
        (tmp_path / f"memory.{name}").write_text(text)
    monkeypatch.setattr(host, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(host, "GROUP", tmp_path)
    assert host.available_bytes() == expected
