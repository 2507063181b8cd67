"""Several results in one comparison: each candidate trains a model of its own, as it would train alone."""

import json
from itertools import product

import numpy as np
import pytest

from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.ranks.world import run_world
from dear_mpi.see.tables import show_comparison
from dear_mpi.training.events import Times
from dear_mpi.training.runs.compare import Comparison
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import timing
from dear_mpi.training.runs.train import train
from dear_mpi.training.schedules import Wfbp
from tests.cli_checks import assert_one_line, invoke, succeed
from tests.docs.commands import SMALL
from tests.rooms import DELETED, ROOT
from tests.training.test_report import NETWORK, gathering
from tests.training_checks import settings


def compared(schedules, wires=(), *, ranks=2, fusions=(), **choices):
    config = Config.of(settings(**choices))
    how = {"wires": wires, "fusions": fusions}
    return run_world(lambda world: Comparison(config, world, schedules, **how).run(), threads=ranks)


def alone(ranks=2, **choices):
    return run_world(lambda world: train(Config.of(settings(**choices)), world), threads=ranks)


@pytest.mark.parametrize("ranks", [1, 3])
def test_each_wire_trains_a_model_of_its_own_and_schedules_have_its_bits(ranks):
    """Of 3 counted iterations in a turn, with one more before the first turn, and one before those that count."""
    rows = compared(["wfbp", "dear"], ["fp32", "int8"], ranks=ranks, iterations=4)
    assert [(row["wire"], row["schedule"]) for row in rows] == [*product(("fp32", "int8"), ("wfbp", "dear"))]
    for row in rows:
        assert (row["iterations"], row["period"], len(row["loss"])) == (4, 1, 4)
        expected = alone(ranks, schedule=row["schedule"], wire=row["wire"], iterations=1 + 2 + 4)
        assert (row["accuracy"], row["params_sha256"]) == (expected["accuracy"], expected["params_sha256"])
        assert row["predicted_s"] > 0
    assert len({row["params_sha256"] for row in rows}) == 2
    assert [row["verdict"] == "baseline" for row in rows] == [True, False, False, False]


@pytest.mark.parametrize("schedule", ["local:4", "diloco:4", "post-local:4:after=4", "diloco:4:delay=2:staggered=yes"])
def test_whole_rounds_are_counted_after_as_many_iterations_of_all(schedule):
    """A turn has 4 + 2 * 4 iterations; the first 4 of all come before it."""
    rows = compared(["dear", schedule], iterations=7)
    assert [(row["iterations"], row["period"]) for row in rows] == [(11, 1), (8, 4)]
    for row in rows:
        expected = alone(schedule=row["schedule"], iterations=4 + 4 + 8)
        if "delay" not in row["schedule"]:
            assert row["accuracy"] == expected["accuracy"]
        assert row["params_sha256"] == expected["params_sha256"]
        rounds = np.reshape(row["iteration_s"], (-1, row["period"])).mean(axis=1)
        assert row["median_s"] == pytest.approx(np.median(rounds))


def test_the_table_says_how_many_iterations_whole_rounds_have(capsys):
    """Rounds of 6 for both, of which the first one's own does not count: 12 + 6 - 2, and 12 + 6 - 3."""

    def body(world, *schedules):
        config = Config.of(settings(iterations=7))
        rows = Comparison(config, world, schedules).run()
        show_comparison(world, rows)
        return [(row["iterations"], row["asked_iterations"]) for row in rows]

    assert run_world(lambda world: body(world, "local:2", "local:3"), threads=1) == [(16, 7), (15, 7)]
    assert "of 15 or 16 iterations each, in whole rounds: 7 were asked for" in " ".join(capsys.readouterr().out.split())
    assert run_world(lambda world: body(world, "wfbp", "dear"), threads=1) == 2 * [(7, 7)]
    assert "asked for" not in capsys.readouterr().out


def test_a_schedule_with_rounds_stands_once_among_wires():
    rows = compared(["local:2", "dear"], ["fp16", "int8"], fusions=["none", "buckets:1"], iterations=2)
    cases = [(row["asked_fusion"], (row["schedule"], row["wire"])) for row in rows]
    pairs = (("local:2", "fp32"), ("dear", "fp16"), ("dear", "int8"))
    assert cases == [*product(("none", "buckets:1"), pairs)]
    assert [row["verdict"] == "baseline" for row in rows] == 2 * [True, False, False]


def test_a_route_with_rounds_is_compared_under_several_schedules():
    wfbp, dear = compared(["wfbp", "dear"], route=f"{ROOT}/tests/routes/local.py:local", iterations=4)
    assert (wfbp["period"], wfbp["iterations"]) == (4, 4)
    assert wfbp["params_sha256"] == dear["params_sha256"]


def test_a_round_is_a_sample():
    """What a sum at the end of a round takes is in each sample, and in no median of iterations."""
    block = [Times(float(seconds), 0.5, 0.25, 0.125) for seconds in (9, 9, 1, 3, 1, 5)]
    figures = timing(gathering([[block, block]]), Wfbp, [block, block], NETWORK, fill=2, early=1, period=2)
    assert figures.counted_s == [1, 3, 1, 5]
    assert figures.steady_s == [2, 3]
    assert (figures.forward_s, figures.exposed_comm_s, figures.rest_s) == pytest.approx((0.5, 0.125, 1.625))


def test_a_model_without_data_has_no_accuracy(capsys, tmp_path):
    (tmp_path / "small.json").write_text(json.dumps(SMALL), encoding="utf-8")
    model = {"model": f"synthetic:{tmp_path}/small.json", "iterations": 2, "data": None, "batch": None}
    config, wires = Config.of(settings(**model, forward_time=0.0)), ["fp32", "int8"]
    world, rows = run_world(lambda world: (world, Comparison(config, world, ["dear"], wires=wires).run()), threads=1)
    assert {row["accuracy"] for row in rows} == {None}
    show_comparison(world, rows)
    assert "bound" in capsys.readouterr().out


@pytest.mark.parametrize(("schedules", "wires", "said"), [
    (["dear"], ["int8", "int8"], "wire must be different ones, not int8, int8"),
    pytest.param(
        *(["dear"], ["topk:1%", "topk:1.0%"], "wire must be different ones, not topk:1%, topk:1.0%"),
        marks=pytest.mark.skipif("wires" in DELETED, reason="an extra, which was deleted"),
    ),
    (["dear"], ["fp32", "int9"], "wire 'int9' is unknown: did you mean 'int8'"),
    (["dear", "local:4"], ["int8"], "schedule 'local:4' sets the route: leave out wire"),
    (["post-local:4:after=50"], [], "iterations must be more than 8: the rounds of schedule 'post-local:4:after=50'"),
])  # fmt: skip
def test_what_cannot_be_compared_is_refused(schedules, wires, said):
    with pytest.raises(AgreedError, match=said):
        compared(schedules, wires)


def test_who_takes_part_is_called_by_what_differs():
    def body(world):
        comparison = Comparison(Config.of(settings()), world, ["dear", "local:4"], wires=["fp32", "int8"])
        assert comparison.steps == 3 * (1 + len(comparison.turns))
        return [comparison.called(*entry) for entry in comparison.entries]

    assert run_world(body, threads=1) == ["dear, fp32", "local:4, fp32", "dear, int8"]


def test_the_command_has_one_table(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    file = tmp_path / "rows.json"
    job = ("compare", "--threads", 2, "--model", "mlp", "--iterations", 2, "--json", file)
    job += ("--timeline", tmp_path / "line.json")
    done = succeed(*job, "--schedules", "dear-eager,local:2", "--wire", "fp32,int8")
    assert [row["wire"] for row in json.loads(file.read_text())] == ["fp32", "fp32", "int8"]
    line = (tmp_path / "line.json").read_text()
    assert all(name in line for name in ("dear-eager, fp32", "local:2, fp32", "dear-eager, int8"))
    assert done.stdout.count("speed-up  ") == 1
    assert "…" not in done.stdout, "80 columns have room for the table"


@pytest.mark.parametrize("command", ["compare", "simulate"])
def test_an_empty_wire_is_refused(command):
    done = invoke(command, "--wire", "fp32,", *(("--threads", 2) if command == "compare" else ()))
    assert_one_line(done, "--wire takes one or several with commas between them, not 'fp32,'")
