"""What is simulated is what trains: routes, sharded updates, clipping and parts of a batch have their times."""

from dataclasses import replace
from itertools import product

import pytest

from dear_mpi.collectives import programs
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.models.synthetic import Module
from dear_mpi.simulate.model import synthetic_model
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from dear_mpi.simulate.table import heading, timeline_of
from dear_mpi.training.events.spans import WIRE
from dear_mpi.training.routes.find import FULL, SHARDED
from dear_mpi.training.schedules import SCHEDULES
from tests.rooms import ROOT
from tests.simulate.predicted import predicted

USERS = {name: f"{ROOT}/tests/routes/{name}.py:{name}" for name in ("half", "local", "int8")}
UPDATE_S = 1e-9
RANKS = 4
ROUNDING = 1e-9


def simulated(**choices):
    base = {"models": ("synthetic:resnet50",), "ranks": (RANKS,), "network": "10gbit,50us", "forward_s": 0.05}
    base |= {"fusions": ("cut:8MB",), "schedules": ("dear",), "update_s": UPDATE_S}
    return simulate(Settings(**base | choices), traced=True)


def one_layer(name, route, *, judged=False, ranks=RANKS):
    """A model of one layer and one bucket: 1 s forward, 2 s back; 3 s each half of an all-reduce, 8 s an update."""
    model = synthetic_model("a", [Module("a", (1024,), 1.0)], ranks=ranks, forward_s=1.0, backward_s=2.0)
    model = replace(model, costs=replace(model.costs, update_s=8.0 / model.layout.count))
    seconds = {"all_reduce": 6.0, "reduce_scatter": 3.0, "all_gather": 3.0}
    how = {"route": route, "judged": judged, "ranks": ranks, "verdict_s": 0.5}
    prices = lambda _: lambda stage, _: seconds[stage.name]  # noqa: E731
    return predicted(model, name, "own", prices, **how)


@pytest.mark.parametrize("name", ["sequential", "wfbp", "dear", "dear-eager"])
def test_each_rank_updates_its_shard_between_the_halves(name):
    """Nothing overlaps: 1 + 2 + 3 + 8 / 4 + 3 s, where whole updates take 1 + 2 + 6 + 8."""
    assert one_layer(name, FULL).iteration_s == pytest.approx(17.0)
    found = one_layer(name, SHARDED)
    assert (found.iteration_s, found.update_s) == pytest.approx((11.0, 0.0)), "the engine updates"
    assert found.exposed_s == pytest.approx(8.0)


@pytest.mark.parametrize(("name", "route"), [*product(["wfbp", "dear"], [FULL, SHARDED])])
def test_the_verdict_is_on_the_wire(name, route):
    judged = one_layer(name, route, judged=True).iteration_s
    assert judged == pytest.approx(one_layer(name, route).iteration_s + 0.5)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("update", ["full", "sharded"])
@pytest.mark.parametrize(("clip", "accumulate"), [(None, 3), (1.0, 1)])
def test_parts_add_up_and_bounds_hold(schedule, update, clip, accumulate):
    choices = {"schedules": (schedule,), "update": update, "clip": clip, "accumulate": accumulate}
    (found,) = simulated(**choices)
    row, (run,) = found.row, timeline_of([found]).runs
    assert (row["route"], row["clip"], row["accumulate"]) == (update, clip, accumulate)
    parts = ("compute_s", "exposed_comm_s", "update_s", "rest_s")
    assert sum(row[name] for name in parts) == pytest.approx(row["iteration_s"])
    assert row["iteration_s"] >= row["bound_s"] * (1 - ROUNDING)
    assert row["compute_s"] == pytest.approx(accumulate * 0.15)
    lanes = [span.lane for rank in run.ranks for span in rank.spans if span.kind == "update"]
    assert set(lanes) == {WIRE if update == "sharded" else "compute"}


def test_auto_takes_shards_where_the_bits_are_the_same():
    rows = [simulated(update="auto", **choices)[0].row for choices in ({}, {"wire": "fp32"}, {"wire": "fp16"})]
    assert [row["route"] for row in rows] == ["sharded", "sharded", "full"]


def seconds_of(collective, nbytes, algorithm="ring"):
    """On the network of ``simulated``."""
    network = Network(alpha=50e-6, beta=8e-10)
    return cost(programs(algorithm, collective, RANKS), nbytes, 1, network).time_s


def test_values_travel_in_their_own_type():
    (found,) = simulated(update="sharded", wire="fp16", fusions=("buckets:1",))
    count, network_s = found.prediction.buckets[0].count, found.prediction.network_s
    assert network_s["reduce_scatter"] == pytest.approx(seconds_of("reduce_scatter", 2 * count), rel=1e-3)
    assert network_s["all_gather"] == pytest.approx(seconds_of("all_gather", 4 * count), rel=1e-3)
    (half,) = simulated(route=USERS["half"], fusions=("buckets:1",))
    assert (half.row["wire"], half.row["route"]) == ("fp16", "half")
    assert half.prediction.network_s == network_s


def test_codes_have_their_bytes():
    (found,) = simulated(route=USERS["int8"], fusions=("buckets:1",))
    count = found.prediction.buckets[0].count
    codes = count + 4 * -(-count // 256)
    assert found.prediction.network_s == {
        "reduce_scatter": pytest.approx(seconds_of("all_to_all", codes, "pairwise"), rel=1e-3),
        "all_gather": pytest.approx(seconds_of("all_gather", codes), rel=1e-3),
    }


def test_local_steps_communicate_in_each_fourth_iteration():
    """A mean over a round: three iterations of compute, and one that communicates as always."""
    names = {"schedules": ("sequential",), "update_s": 0.0, "fusions": ("buckets:1",)}
    (each,), (local,) = simulated(**names), simulated(**names, route=USERS["local"])
    compute_s = each.row["compute_s"]
    assert local.row["iteration_s"] - compute_s == pytest.approx((each.row["iteration_s"] - compute_s) / 4, rel=0.05)
    assert local.row["bound_s"] == pytest.approx(compute_s + (each.row["bound_s"] - compute_s) / 4, rel=1e-3)


def test_each_wire_has_rows_over_one_baseline():
    """What one wire has among several is what it has alone; a schedule with rounds stands once."""
    choices = {"schedules": ("wfbp", "dear", "local:4"), "network": "1gbit,50us"}
    found = simulated(wires=("fp32", "int8", "int8:error=no"), **choices)
    pairs = [(row["wire"], row["schedule"]) for row in (each.row for each in found)]
    assert pairs == [
        *(("fp32", name) for name in choices["schedules"]),
        *((wire, name) for wire in ("int8", "int8:error=no") for name in ("wfbp", "dear")),
    ]
    for each, (wire, name) in zip(found, pairs, strict=True):
        (alone,) = simulated(**choices | {"wire": wire, "schedules": (name,)})
        assert each.row["iteration_s"] == alone.row["iteration_s"]
        assert each.row["speedup_vs_wfbp"] == found[0].row["iteration_s"] / each.row["iteration_s"]
    _, compute = heading(found).splitlines()
    assert compute.startswith("compute: "), "a wire that not all have is in no title"
    assert len({run.name for run in timeline_of(found).runs}) == len(found)


@pytest.mark.parametrize(("choices", "said"), [
    ({"wires": ("int8", "int8")}, "wire must be different ones, not int8, int8"),
    ({"wires": ("fp32", "int9")}, "wire 'int9' is unknown: did you mean"),
    ({"clip": 1.0, "schedules": ("dear", "local:4")}, "the route 'local:4' does not have them"),
    ({"wires": ("int8",), "schedules": ("local:4",)}, "schedule 'local:4' sets the route: leave out wire"),
    ({"wires": ("fp16",), "schedules": ("local:4",)}, "'fp16' does not apply, because no gradients travel"),
    ({"update": "sharded", "schedules": ("local:4",)}, "'local:4' sets the route: leave out update"),
])  # fmt: skip
def test_wires_that_do_not_go_together_are_refused(choices, said):
    with pytest.raises(ValueError, match=said):
        simulated(**choices)
