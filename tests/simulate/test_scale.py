"""What a simulation costs is counted, and never timed: layers once in each hook, programs once, and little memory."""

import json
import os
import pickle
import sys
import tracemalloc
from collections import Counter

import pytest

from dear_mpi.simulate import prices
from dear_mpi.simulate.prices import Lockstep, StandIns
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from dear_mpi.training.schedules import SCHEDULES
from tests.training_checks import KINDS

MODELS = tuple(f"synthetic:{name}" for name in ("resnet50", "densenet201", "inceptionv4", "bert_base", "bert_large"))
LINEAR = SCHEDULES if os.environ.get("EVERY") else KINDS


def simulated(**settings):
    usual = {"network": "10gbit,50us", "schedules": tuple(SCHEDULES), "fusions": ("25MB",)}
    return simulate(Settings(**usual | settings))


def calls_of(function):
    """How many functions and methods are called, those of C included."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(("schedule", "fusion"), [*((each, "none") for each in LINEAR), ("dear-eager", "cut:1MB")])
def test_the_work_is_linear_in_the_number_of_layers(tmp_path, schedule, fusion):
    def work(layers):
        file = tmp_path / f"{layers}.json"
        modules = [{"name": f"layer{each}", "params": [100_000 + each], "fwd_flops": 1} for each in range(layers)]
        file.write_text(json.dumps({"modules": modules}))
        model = (f"synthetic:{file}",)
        return calls_of(lambda: simulated(models=model, ranks=(4,), schedules=(schedule,), fusions=(fusion,)))

    work(10)  # what is done once is done
    few, once, twice = work(10), work(60), work(110)
    assert twice - few < 2.1 * (once - few)


def counting(function, calls, name):
    def counted(*args, **more):
        calls[name] += 1
        return function(*args, **more)

    return counted


def test_thousands_of_ranks_take_few_programs_and_replays(monkeypatch):
    """Programs are written once for all models and schedules, and no ring is replayed event by event."""
    calls = Counter()
    monkeypatch.setattr(prices, "write_program", counting(prices.write_program, calls, "programs"))
    monkeypatch.setattr(Lockstep, "seconds", counting(Lockstep.seconds, calls, "replays"))
    monkeypatch.delattr(StandIns, "seconds")
    found = simulated(models=MODELS[:2], ranks=(1024,), schedules=("wfbp", "dear"))
    (shared,) = {id(each.scenario.prices): each.scenario.prices for each in found}.values()
    assert {key[:2]: len(each.ranks.programs) for key, each in shared.replays.items()} == {
        ("ring", "all_reduce"): 1,
        ("ring", "reduce_scatter"): 1,
        ("ring", "all_gather"): 1,
        ("recursive_doubling", "all_reduce"): 512,  # of the loss: a rank and its partner take turns
    }
    assert calls["programs"] < 3 * 5 + 1024
    assert calls["replays"] == 2 * 3 + 1, "of each model's buckets for each collective, and one of the loss"


def test_memory_is_small_on_thousands_of_ranks_of_different_pace():
    peaks = {}
    for ranks in (64, 128):
        tracemalloc.start()
        found = simulated(models=MODELS[:1], ranks=(ranks,), fusions=("none",), straggler="7:1.5")
        peaks[ranks] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[128] < 2.2 * peaks[64], "no faster than the number of ranks"
    assert peaks[128] * 32 < 2**30 / 8, "so 4096 ranks and five models, one after the other, stay far below a GiB"
    kept = [len(pickle.dumps((each.row, each.prediction))) for each in found]
    assert max(kept) < 100_000, "no row keeps the times of all ranks"
