"""The command ``simulate``: what it predicts follows from prices and compute, and bad input is told in one line."""

import json
from dataclasses import replace
from itertools import product

import pytest

from dear_mpi.bench.case import Case, Samples, row_of
from dear_mpi.collectives.algorithms.registry import programs
from dear_mpi.collectives.program.cost import cost
from dear_mpi.simulate.network import PRESETS, fitted
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from dear_mpi.training.schedules import SCHEDULES
from docs.benchmarks import testbed
from tests.cli_checks import succeed
from tests.rooms import ROOT

KEYS = (  # a contract: scripts depend on them
    "model params ranks schedule algorithm fusion buckets wire accumulate optimizer weights route clip"
    " loss_scale segment_bytes network network_origin alpha_s beta_s_per_B gamma_s_per_B o_s"
    " hosts alpha_between_s beta_between_s_per_B o_between_s"
    " compute compute_origin update_s_per_element update_origin"
    " ranks_per_core code_factor start_s wake_s straggler"
    " iteration_s compute_s exposed_comm_s update_s rest_s bound_s speedup_vs_wfbp"
)
QUICK = {
    "models": ("synthetic:resnet50",), "ranks": (8,), "network": "10gbit,50us", "schedules": tuple(SCHEDULES),
    "fusions": ("25MB", "cut:4MB"), "forward_s": 0.05,
}  # fmt: skip
ROW = row_of(Case("all_reduce", 8), "ring", Samples([[1e-3] * 3] * 2, 0), backend="", hosts=[2], segment_bytes=4)


def simulated(**settings):
    return simulate(Settings(**QUICK | settings))


def test_sequential_is_compute_and_all_reduces_one_after_the_other():
    (found,) = simulated(schedules=("sequential",), fusions=("25MB",))
    network, buckets = found.scenario.machine.network, found.prediction.buckets
    ring = programs("ring", "all_reduce", 8)
    communication_s = sum(cost(ring, bucket.count, 4, network).time_s for bucket in buckets)
    assert found.row["iteration_s"] == pytest.approx(0.15 + communication_s)
    assert found.row["exposed_comm_s"] == pytest.approx(communication_s)
    assert found.row["bound_s"] == pytest.approx(0.15 + communication_s)


def test_rows_keep_their_bounds_and_add_up():
    for found in simulated(ranks=(1, 4, 64)):
        row = found.row
        assert " ".join(row) == KEYS
        assert row["bound_s"] <= row["iteration_s"] * (1 + 1e-12)
        assert row["iteration_s"] == pytest.approx(row["compute_s"] + row["exposed_comm_s"])
        if row["schedule"] == "wfbp":
            assert row["speedup_vs_wfbp"] == 1


def test_messages_hide_all_updates_but_the_last():
    settings = {"schedules": ("sequential",), "fusions": ("25MB",)}
    plain, updated = (simulated(**settings, update_s=seconds)[0] for seconds in (0.0, 1e-9))
    last_s = 1e-9 * updated.prediction.buckets[0].count  # backward is through with it last
    assert updated.row["iteration_s"] == pytest.approx(plain.row["iteration_s"] + last_s)


def test_a_network_is_fitted_to_means():
    rows = [replace(ROW, bytes=size, count=size // 4, p50_us=size / 100) for size in (1 << 20, 1 << 24)]
    plain, slow = (fitted("rows", [replace(each, mean_us=factor * each.p50_us) for each in rows]) for factor in (1, 2))
    assert slow.beta == pytest.approx(2 * plain.beta)


def test_a_slow_rank_keeps_all_others_waiting():
    plain, slow = (simulated(schedules=("sequential",), fusions=("25MB",), straggler=each)[0] for each in (None, "3:2"))
    assert slow.row["iteration_s"] - plain.row["iteration_s"] == pytest.approx(0.15)
    assert slow.row["compute_s"] == pytest.approx(0.3), "of the slowest rank"
    same = simulated(schedules=("dear",), fusions=("25MB",), straggler="3:1")[0]
    (other,) = simulated(schedules=("dear",), fusions=("25MB",))
    assert same.row["iteration_s"] == pytest.approx(other.row["iteration_s"])


def test_the_command_writes_its_rows(tmp_path):
    file = tmp_path / "rows.json"
    done = succeed("simulate", "--ranks", "4,8", "--fusion", "none,25MB", "--json", file)
    rows = json.loads(file.read_text())
    cases = [(row["ranks"], row["fusion"], row["schedule"]) for row in rows]
    assert cases == [*product((4, 8), ("none", "25MB"), ("wfbp", "dear"))]
    assert "none of our schedules gains more than" in " ".join(done.output.split())


def test_the_page_of_the_testbed_is_of_these_presets():
    """`make testbed` has been run since: the presets, and a line of each network."""
    text = (ROOT / "docs/benchmarks/rows/testbed.txt").read_text("utf-8")
    for network, preset in PRESETS.items():
        assert preset in text
        cells = " | ".join(map(str, testbed.rows_of(network, "resnet50", "BSP-A2A")))
        assert f"| resnet50, BSP-A2A | {cells} |" in text
