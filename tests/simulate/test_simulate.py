"""The command ``simulate``: what it predicts follows from prices and compute, and bad input is told in one line."""

import json
import time
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from dear_mpi.bench.case import Case, Samples, row_of
from dear_mpi.cli.app import app
from dear_mpi.collectives.algorithms.registry import programs
from dear_mpi.collectives.program.cost import cost
from dear_mpi.simulate.contention import Contention, contention_of, parse_stall
from dear_mpi.simulate.gains import remedies
from dear_mpi.simulate.network import PRESETS, fitted, read_network
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from dear_mpi.simulate.table import exposed_parts
from dear_mpi.training.fabric.costs import Costs
from dear_mpi.training.fabric.virtual import VirtualFabric
from dear_mpi.training.line.bucket import Bucket
from dear_mpi.training.routes.find import FULL
from dear_mpi.training.schedules import SCHEDULES, Schedule
from tests.cli_checks import assert_one_line
from tests.rooms import ROOT
from tests.simulate import testbed

KEYS = (  # a contract: scripts depend on them
    "model params ranks schedule algorithm fusion buckets wire accumulate optimizer weights route clip"
    " loss_scale segment_bytes network network_origin alpha_s beta_s_per_B gamma_s_per_B o_s"
    " hosts alpha_between_s beta_between_s_per_B o_between_s"
    " compute compute_origin update_s_per_element contention contention_origin update_origin"
    " ranks_per_core code_factor start_s wake_s straggler jitter iterations seed"
    " iteration_s compute_s exposed_comm_s update_s rest_s bound_s speedup_vs_wfbp"
)
QUICK = {
    "models": ("synthetic:resnet50",),
    "ranks": (8,),
    "network": "10gbit,50us",
    "schedules": tuple(SCHEDULES),
    "fusions": ("25MB", "cut:4MB"),
    "forward_s": 0.05,
}


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
        assert sum(seconds for _, seconds in exposed_parts(found)) == pytest.approx(row["exposed_comm_s"], abs=1e-12)
        if row["schedule"] == "wfbp":
            assert row["speedup_vs_wfbp"] == 1


def test_updates_that_hold_up_messages_are_hidden_by_none():
    settings = {"schedules": ("sequential",), "fusions": ("25MB",), "update_s": 1e-9}
    free, half, held = (simulated(**settings, contention=parse_stall(stall))[0] for stall in ("0%", "50%", "100%"))
    alone = simulated(**settings | {"update_s": 0.0})[0].row["iteration_s"]
    every_s = 1e-9 * sum(bucket.count for bucket in held.prediction.buckets)
    last_s = 1e-9 * held.prediction.buckets[0].count  # backward is through with it last
    assert held.row["iteration_s"] == pytest.approx(alone + every_s)
    assert half.row["iteration_s"] == pytest.approx(alone + every_s / 2 + last_s / 2)
    assert free.row["iteration_s"] == pytest.approx(alone + last_s)


def test_layers_that_hold_up_messages_hide_none():
    settings = {"schedules": ("wfbp", "sequential"), "fusions": ("none",)}
    found = [simulated(**settings, contention=parse_stall(f"0%,{stall}")) for stall in ("0%", "33%", "100%")]
    (free, after), (third, _), (held, behind) = ([each.row["iteration_s"] for each in rows] for rows in found)
    assert free < third < held == pytest.approx(behind)
    assert behind == pytest.approx(after, rel=1e-3)  # but for the sum of the loss
    assert free == simulated(**settings)[0].row["iteration_s"]


def test_a_layer_holds_up_messages_while_there_are_any():
    bucket, fabric = (
        Bucket(0, 0, 4, (0,), 16),
        virtual_fabric(price_s=1.0, update_s=0.0, beside=(0.0, 1.0), layer_stall=0.5),
    )
    fabric.spend(2.0)  # nothing is under way
    handle = fabric.start("all_reduce", bucket)
    fabric.spend(1.0)
    assert (handle.event.end, fabric.now()) == (3.5, 3.0)
    fabric.spend(4.0)  # 1 s of the layer brings messages their last half second further
    assert (handle.event.end, fabric.now()) == (4.0, 7.0)


def test_an_update_takes_longer_only_while_there_are_messages():
    bucket, fabric = Bucket(0, 0, 4, (0,), 16), virtual_fabric(price_s=1.0, update_s=4.0, beside=(0.5, 1.5))
    fabric.start("all_reduce", bucket)
    fabric.update(bucket)
    # 1 s of the update brings messages 1 s further in 1.5 s, of which it holds them up for 0.5 s: then they are over
    assert (fabric.engine_free_s, fabric.now()) == (1.5, 4.5)
    fabric.update(bucket)
    assert (fabric.engine_free_s, fabric.now()) == (1.5, 8.5)


def test_messages_that_outlast_an_update_are_delayed_by_its_share():
    bucket, fabric = Bucket(0, 0, 4, (0,), 16), virtual_fabric(price_s=100.0, update_s=4.0, beside=(2.0, 1.5))
    handle = fabric.start("all_reduce", bucket)
    fabric.update(bucket)
    assert (handle.event.end, fabric.engine_free_s, fabric.now()) == (108.0, 108.0, 6.0)


def test_an_update_delays_all_that_is_in_the_queue():
    fabric = virtual_fabric(price_s=10.0, update_s=4.0, beside=(1.0, 1.0), count=3)
    first, second, third = (fabric.start("all_reduce", Bucket(i, 4 * i, 4 * i + 4, (i,), 16)) for i in range(3))
    fabric.update(Bucket(0, 0, 4, (0,), 16))
    spans = [(handle.event.begin, handle.event.end) for handle in (first, second, third)]
    assert spans == [(0.0, 14.0), (14.0, 24.0), (24.0, 34.0)]


def test_a_rank_whose_update_ends_before_the_messages_is_slowed_down_for_its_own_time():
    ranks = {"compute": lambda seconds: seconds * np.array([1.0, 3.0])}
    bucket, fabric = Bucket(0, 0, 4, (0,), 16), virtual_fabric(price_s=100.0, update_s=4.0, beside=(0.5, 1.5), **ranks)
    fabric.start("all_reduce", bucket)
    fabric.update(bucket)
    assert fabric.now().tolist() == [6.0, 18.0]


def virtual_fabric(*, price_s, update_s, beside, count=1, **options):
    rules = SimpleNamespace(buckets=range(count), route=FULL, judged=False, update=lambda _: None)
    rules.start = rules.started = lambda *_: None
    costs = Costs(price=lambda *_: price_s, update_s=update_s / 4, contention=lambda _: beside, **options)
    return VirtualFabric(rules, costs)


def rows_beside(*delays):
    """Rows of bench --beside: collectives of 1 ms, and the delays of each."""
    base = row_of(Case("all_reduce", 8), "ring", Samples([[1e-3] * 3] * 2, 0), backend="", hosts=[2], segment_bytes=4)
    names = ("delay_us", "update_us", "update_beside_us")
    return [replace(base, **dict(zip(names, each, strict=True))) for each in delays]


def test_contention_is_that_of_the_rows_with_an_update_beside_them():
    found = contention_of(rows_beside((100, 200, 300), (300, 200, 500), (0, 900, 900), (30, 1, 2), (None, None, None)))
    measured = Contention((1.0,), (2.0,), pytest.approx((200e-6,)), "measured")
    assert found == measured, "of updates that outlast messages, or are tiny, nothing"
    assert contention_of(rows_beside((-50.0, 100.0, 90.0))).rows() == [
        {"update_s": pytest.approx(100e-6), "stall": 0.0, "stretch": 1.0}
    ]
    assert contention_of(rows_beside((None, None, None))) == Contention(origin="unknown")


def test_contention_depends_on_the_length_of_the_update():
    short, long = rows_beside((90, 60, 120), (200, 400, 500))
    found = contention_of([replace(long, bytes=80), short])
    assert [found(seconds) for seconds in (1e-6, 60e-6, 400e-6, 1.0)] == [(1.5, 2.0)] * 2 + [(0.5, 1.25)] * 2
    between = found((60e-6 * 400e-6) ** 0.5)
    assert between == pytest.approx((1.0, 1.625))
    assert "of updates of 0.06 to 0.4 ms each delays messages by 0.5 to 1.5 s, and takes 1.2 to 2 s" in str(found)


def test_a_file_of_bench_beside_says_how_long_updates_hold_messages_up(tmp_path):
    rows, file = rows_beside((100, 200, 300)), tmp_path / "rows.json"
    more = replace(rows[0], bytes=1 << 20, count=1 << 18, p50_us=9000.0, mean_us=9000.0)
    file.write_text(json.dumps({"rows": [asdict(rows[0]), asdict(more)]}))
    expected = Contention((0.5, 0.5), (1.5, 1.5), pytest.approx((200e-6,) * 2), "measured")
    assert read_network(str(file), 4).contention == expected
    settings = {"schedules": ("sequential",), "fusions": ("25MB",), "update_s": 1e-9, "network": str(file)}
    measured, given = simulated(**settings)[0].row, simulated(**settings, contention=Contention())[0].row
    assert measured["iteration_s"] > given["iteration_s"]
    assert [(each["stall"], each["stretch"]) for each in measured["contention"]] == [(0.5, 1.5)] * 2
    assert measured["contention_origin"] == "measured"


def test_a_file_without_updates_beside_messages_says_nothing_of_contention(tmp_path):
    (row,), file = rows_beside((None, None, None)), tmp_path / "rows.json"
    rows = [replace(row, bytes=size, count=size // 4) for size in (1 << 20, 1 << 24)]
    file.write_text(json.dumps({"rows": list(map(asdict, rows))}))
    done = CliRunner().invoke(
        app, ["simulate", "--ranks", "4", "--network", str(file), "--json", str(tmp_path / "out")]
    )
    assert done.exit_code == 0, done.output
    assert {row["contention_origin"] for row in json.loads((tmp_path / "out").read_text())} == {"unknown"}


def test_a_network_is_fitted_to_means():
    (row,) = rows_beside((None, None, None))
    rows = [replace(row, bytes=size, count=size // 4, p50_us=size / 100) for size in (1 << 20, 1 << 24)]
    plain, slow = (fitted("rows", [replace(each, mean_us=factor * each.p50_us) for each in rows]) for factor in (1, 2))
    assert slow.beta == pytest.approx(2 * plain.beta)


@pytest.mark.parametrize("uneven", [{"jitter": "20%", "iterations": 5}, {"straggler": "3:2"}])
def test_rows_and_their_waits_add_up_where_ranks_differ(uneven):
    for found in simulated(fusions=("25MB",), **uneven):
        row = found.row
        assert row["iteration_s"] == pytest.approx(row["compute_s"] + row["exposed_comm_s"] + row["rest_s"])
        assert row["rest_s"] <= (0.01 if "jitter" in uneven else 1e-12) * row["iteration_s"]
        assert sum(seconds for _, seconds in exposed_parts(found)) == pytest.approx(row["exposed_comm_s"], abs=1e-12)


def test_remedies_are_those_that_the_algorithm_can_carry_out():
    (found,) = simulated(schedules=("wfbp",), fusions=("25MB",), algorithms=("double_tree",), network="1gbit,50us")
    changes = [change for change, _ in remedies(found)]
    assert "twice the bandwidth" in changes
    assert "schedule dear" not in changes, "double_tree has no reduce-scatter"


def test_a_slow_rank_keeps_all_others_waiting():
    plain, slow = (simulated(schedules=("sequential",), fusions=("25MB",), straggler=each)[0] for each in (None, "3:2"))
    assert slow.row["iteration_s"] - plain.row["iteration_s"] == pytest.approx(0.15)
    assert slow.row["compute_s"] == pytest.approx(0.3), "of the slowest rank"
    same = simulated(schedules=("dear",), fusions=("25MB",), straggler="3:1")[0]
    assert same.row["iteration_s"] == pytest.approx(
        simulated(schedules=("dear",), fusions=("25MB",))[0].row["iteration_s"]
    )


def test_jitter_costs_time_and_can_be_repeated():
    settings = {"schedules": ("dear",), "fusions": ("25MB",), "iterations": 5}
    plain, first, again, other = (
        simulated(**settings, jitter=jitter, seed=seed)[0].row["iteration_s"]
        for jitter, seed in (("0%", 0), ("20%", 1), ("20%", 1), ("20%", 2))
    )
    assert first == again != other
    assert min(first, other) > plain


def test_what_would_help_does():
    found = simulated(schedules=("wfbp",), fusions=("25MB",))[0]
    changes = dict(remedies(found))
    assert "twice the bandwidth" in changes
    assert "schedule dear" in changes
    assert all(seconds < found.row["iteration_s"] for seconds in changes.values())


def test_thousands_of_ranks():
    rows = [found.row for found in simulated(ranks=(4096,), models=("synthetic:densenet201",), fusions=("none",))]
    assert all(row["iteration_s"] > 2 * 4095 * 50e-6 for row in rows), "latencies alone take as long"


def test_the_command_writes_its_rows(tmp_path):
    file = tmp_path / "rows.json"
    done = CliRunner().invoke(app, ["simulate", "--ranks", "4,8", "--fusion", "none,25MB", "--json", str(file)])
    assert done.exit_code == 0, done.output
    rows = json.loads(file.read_text())
    assert [(row["ranks"], row["fusion"], row["schedule"]) for row in rows] == [
        (ranks, fusion, schedule) for ranks in (4, 8) for fusion in ("none", "25MB") for schedule in ("wfbp", "dear")
    ]
    said = " ".join(done.output.split())
    assert "none of our schedules gains more than" in said
    assert "waits longest" in said
    assert "What would help" in done.output


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--network", "fast"], "network 'fast' is unknown"),
        (["--network", "10gbt"], "bandwidth '10gbt' cannot be read"),
        (["--network", "10gbit,50us,p=3"], "network '10gbit,50us,p=3': p is unknown. Allowed: o=, gamma=, hosts="),
        (["--network", "1gbit,1us/1gbit,2us"], "must be one link, or INSIDE/BETWEEN,hosts=N"),
        (["--network", "1gbit/1gbit,hosts=3"], "hosts=3 does not divide 64 ranks"),
        (["--network", "1gbit/1gbit,hosts=2,gamma=1ns"], "gamma= belongs to INSIDE"),
        (["--network", "1gbit/1gbit,per_host=x"], "per_host must be a whole number above zero, not 'x'"),
        (["--network", "rows.json"], "network 'rows.json' is no readable JSON file: No such file or directory"),
        (["--network", "paper-10gbe", "--ranks", "128"], "network 'paper-10gbe' has 64 ranks, not 128"),
        (["--ranks", "0"], "--ranks must be whole numbers of at least 1, or ranges that go up, as 8:64, not '0'"),
        (["--ranks", "8:4"], "or ranges that go up, as 8:64, not '8:4'"),
        (["--ranks", "8:16,16"], "ranks"),
        (["--algorithm", "ring,"], "--algorithm takes one or several with commas between them, not 'ring,'"),
        (["--algorithm", "ring,ring"], "--algorithm must be different ones, not ring, ring"),
        (["--fusion", "mine.py:cut"], "mine.py' does not exist: write it like path/to/mine.py:cut"),
        (["--straggler", "64:2"], "straggler must be a rank of 0..63, not 64"),
        (["--straggler", "fast"], "straggler 'fast' cannot be read: write it like 3:1.5"),
        (["--straggler", "1:-2"], "the factor of the straggler must be above zero, and at most 1000, not -2"),
        (["--jitter", "-5%"], "jitter must be from 0% to 100%, not -5%"),
        (["--stall", "-1"], "stall must be from 0% to 1000%, not -1"),
        (["--stall", "much"], "stall 'much' cannot be read: write it like 5%"),
        (["--model", "mlp"], "simulate takes synthetic models, as synthetic:resnet50, not 'mlp'"),
        (["--model", "synthetic:resnet5"], "did you mean 'resnet50'?"),
        (["--algorithm", "native"], "algorithm 'native' sends no messages"),
        (["--forward-time", "-1"], "--forward-time must be from 0 to 86400 seconds, not -1.0"),
        (["--fusion", "huge"], "size 'huge' cannot be read"),
        (["--segment", "256"], "--segment: size '256' has no unit: write it like 25MB"),
        (["--segment", "2B"], "--segment must be a whole number from 4 (one element) to"),
        (["--update", "sharded", "--route", "full"], "leave out update 'sharded', and the route 'full' holds"),
        (["--schedules", "deer"], "did you mean 'dear'?"),
    ],
)
def test_bad_input_is_one_line(flags, said):
    done = CliRunner().invoke(app, ["simulate", *flags])
    assert_one_line(done, said)


def test_a_schedule_that_never_ends_is_refused(monkeypatch):
    class Endless(Schedule):
        collectives = ("all_reduce",)

        def end_backward(self):
            while True:
                time.sleep(0.1)

    monkeypatch.setattr("dear_mpi.collectives.program.user_file.LIMIT_S", 0.3)
    scenario = simulated(schedules=("wfbp",), fusions=("25MB",))[0].scenario
    with pytest.raises(ValueError, match=r"schedule 'mine' did not finish within 0.3 seconds"):
        scenario.check("mine", Endless, "25MB")


def test_the_page_of_the_testbed_is_of_these_presets():
    """`make testbed` has been run since: the presets, and a line of each network."""
    text = (ROOT / testbed.PAGE).read_text("utf-8")
    for network, preset in PRESETS.items():
        assert preset in text
        cells = " | ".join(map(str, testbed.rows_of(network, "resnet50", "BSP-A2A")))
        assert f"| resnet50, BSP-A2A | {cells} |" in text
