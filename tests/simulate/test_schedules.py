"""Schedules of the field on one serial wire: their iteration times are those of independent list scheduling."""

import os
import random

import numpy as np
import pytest

from dear_mpi.models.synthetic import load_modules
from dear_mpi.simulate.model import Model, synthetic_model
from dear_mpi.training.buckets.layout import Layout
from dear_mpi.training.fabric.virtual import Costs
from dear_mpi.training.fusion import in_cycles, mg_wfbp
from dear_mpi.training.routes.find import FULL, SHARDED
from dear_mpi.training.routes.stages import all_gather, all_reduce, reduce_scatter
from tests.cli_checks import assert_one_line, invoke
from tests.simulate.predicted import predicted
from tests.simulate.test_bounds import random_model, random_prices

MODELS = ("resnet50", "densenet201", "inceptionv4", "bert_base", "bert_large")
# In units of the forward pass, where backward takes 2 of them, and the all-reduce of the model this many. Computed by a
# script of its own, of 60 lines, before there were these schedules.
PUBLISHED = {  # wfbp 25 MB, all-reduces by priority 4 MB, dear 25 MB, dear 4 MB, dear-eager 4 MB, dear-eager 1 MB
    ("resnet50", 2.5): (3.61, 3.15, 3.61, 3.30, 3.10, 3.03),
    ("resnet50", 3.0): (4.07, 3.23, 3.90, 3.56, 3.17, 3.04),
    ("resnet50", 3.5): (4.56, 3.50, 4.21, 3.82, 3.50, 3.50),
    ("resnet50", 4.0): (5.05, 4.00, 4.51, 4.08, 4.00, 4.00),
    ("densenet201", 3.0): (4.00, 3.25, 3.97, 3.58, 3.17, 3.04),
    ("bert_base", 3.0): (4.53, 3.75, 4.18, 4.08, 3.75, 3.72),
}
CASES = (
    ("wfbp", "25MB"), ("bytescheduler:credit=1", "cut:4MB"), ("dear", "25MB"), ("dear", "cut:4MB"),
    ("dear-eager", "cut:4MB"), ("dear-eager", "cut:1MB"),
)  # fmt: skip


def model_of(name, ranks=4):
    return synthetic_model(f"synthetic:{name}", load_modules(name), ranks=ranks, forward_s=1.0, backward_s=2.0)


def iteration(model, schedule, fusion, all_reduce_s, alpha_s=0.0):
    """Seconds on a wire that carries the whole model's all-reduce in this time, and each half in half of it."""
    beta = all_reduce_s / (model.layout.count * model.layout.itemsize)
    halves = {"all_reduce": 1.0, "reduce_scatter": 0.5, "all_gather": 0.5, "second all_gather": 0.5, "negotiation": 0.0}

    def prices(buckets):
        return lambda stage, bucket: halves[stage.label] * (alpha_s + beta * bucket.nbytes)

    found = predicted(model, schedule, fusion, prices)
    return found.iteration_s, found


@pytest.mark.parametrize(("name", "all_reduce_s"), PUBLISHED)
def test_iterations_are_those_of_list_scheduling(name, all_reduce_s):
    model = model_of(name)
    found = [iteration(model, *case, all_reduce_s)[0] for case in CASES]
    assert found == pytest.approx(PUBLISHED[name, all_reduce_s], rel=0.02)


def test_zero_gathers_behind_the_backward_pass_or_under_the_forward_pass():
    model = model_of("resnet50")
    behind, under = (iteration(model, name, "25MB", 3.0)[0] for name in ("zero", "zero:overlap_param_gather=yes"))
    reduced = iteration(model, "wfbp", "25MB", 1.5)[0]  # forward, and then all reduce-scatters
    assert behind == pytest.approx(reduced + 1.5)
    assert iteration(model, "dear", "25MB", 3.0)[0] < under < behind, "the wire is idle while the host has not asked"


def test_fsdp_sends_half_as_much_again():
    model = model_of("resnet50")
    seconds, _ = iteration(model, "fsdp", "25MB", 40.0)
    assert seconds == pytest.approx(60.0, rel=0.05), "communication alone"


BUCKETS_OF_DDP = {"resnet50": 5, "densenet201": 4, "inceptionv4": 8, "bert_base": 14, "bert_large": 38}


@pytest.mark.parametrize("name", MODELS)
def test_ddp_has_the_buckets_of_pytorch(name):
    _, found = iteration(model_of(name), "ddp", "own", 3.0)
    assert len(found.buckets) == BUCKETS_OF_DDP[name]
    if name == "resnet50":
        sizes = [bucket.nbytes / 2**20 for bucket in reversed(found.buckets)]
        assert sizes == pytest.approx([7.8, 30, 25, 25.3, 9.3], abs=0.1)


@pytest.mark.parametrize(("alpha_s", "beta", "groups"), [
    (7.044e-3, 9.64e-10, (1, 2, 2, 2, 2)),
    (1e-3, 1 / 0.589e9, (4, 4, 3, 6, 5)),
    (8.06e-4, 5.886e-10, (41, 40, 63, 10, 7)),
])  # fmt: skip
def test_merged_gradients_are_those_of_the_published_code(alpha_s, beta, groups):
    """Its groups for 64 GPUs, with backward times in proportion to FLOPs, at the rates of the paper's testbed."""
    tflops = {"resnet50": 6.8, "densenet201": 3.8, "inceptionv4": 6.7, "bert_base": 9.3, "bert_large": 9.8}
    found = []
    for name in MODELS:
        modules = load_modules(name)
        backward_s = [2 * module.flops / (tflops[name] * 1e12) for module in modules]
        nbytes = [4 * sum(module.counts) for module in modules]
        ready_s = [sum(backward_s[place:]) for place in range(len(modules))]
        found.append(len(mg_wfbp(nbytes, ready_s, lambda size: alpha_s + beta * size)))
    assert found == pytest.approx(groups, abs=1), "it merges tensor by tensor, and this layer by layer"


def test_horovod_sends_what_is_ready_in_buffers_that_have_a_limit():
    mib = 2**20
    assert in_cycles([100 * mib, 100 * mib, 20 * mib], [1.0, 1.0, 0.5], lambda nbytes: 0.1) == [[0], [1], [2]]
    assert in_cycles([60 * mib, 60 * mib, 20 * mib], [1.0, 1.0, 0.5], lambda nbytes: 0.1) == [[0, 1], [2]]
    assert in_cycles([mib, mib, mib], [1.0, 0.9, 0.5], lambda nbytes: 0.7) == [[0, 1], [2]], "while the wire is busy"


@pytest.mark.parametrize(("name", "said"), [
    ("wfbp:credit=2", "schedule 'wfbp:credit=2': wfbp has no options, so not 'credit' either"),
    ("bytescheduler:credti=2", "option 'credti' is unknown: did you mean 'credit'? Allowed: credit"),
    ("bytescheduler:credit=0", "schedule 'bytescheduler:credit=0': credit must be a whole number above zero, not"),
    ("zero:overlap_param_gather=maybe", "overlap_param_gather must be yes or no, not 'maybe'"),
])  # fmt: skip
def test_options_that_a_schedule_does_not_have_are_refused(name, said):
    assert_one_line(invoke("simulate", "--schedules", name), said)


# Ranks of different speed: how long an iteration then is, its parts, and that all schedules meet the same noise.

ONE_LAYER = Model(
    name="one layer",
    layout=Layout.of([[("weight", (64,))]], itemsize=4, ranks=2),
    names=("dense",),
    costs=Costs(forward_s=(1.0,), backward_s=(2.0,)),
)


def in_turn(turn, place):
    """Rank 0 takes twice as long in each other turn, and rank 1 in those between."""
    return np.array([2.0, 1.0] if turn % 2 == 0 else [1.0, 2.0])


def took(name, iterations):
    free = {"prices": lambda buckets: lambda collective, bucket: 0.0}
    return predicted(ONE_LAYER, name, "25MB", **free, iterations=iterations, noise=in_turn)


@pytest.mark.parametrize("iterations", [1, 2, 3, 20])
@pytest.mark.parametrize("name", ["sequential", "wfbp", "dear"])
def test_what_one_rank_is_behind_the_other_counts_once_and_parts_add_up(name, iterations):
    """Every iteration waits for the one that is slow in it, for 6 s. Under DeAR that shows in the next one: clocks are
    6 and 3 behind the first, 9 and 12 behind the second; the longest of each would be 6 and 9."""
    found = took(name, iterations)
    parts = (found.forward_s, found.backward_s, found.exposed_s, found.update_s, found.rest_s)
    assert found.iteration_s == pytest.approx(6.0)
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(6.0)
    if name == "dear" and iterations % 2 == 0:
        assert (found.forward_s + found.backward_s, found.rest_s) == pytest.approx((4.5, 0.0))


# Schedules with priorities, against a wire that always takes the most urgent bucket that is ready.

SETTINGS = 400 if os.environ.get("EVERY") else 120
FUSIONS = ("own", "none", "tensors", "layers:2", "cut:1KB")
STAGES = [each("gradients") for each in (all_reduce, reduce_scatter, all_gather)]


def arrivals(ready_s, sent, loss_s, credit=1):
    """When the last part of each bucket has arrived; ``credit`` parts are out of reach, the running one included."""
    coming = {bucket: (ready_s[bucket], 0) for bucket in ready_s}
    ends, arrived = [0.0, loss_s], {}
    while coming:
        room_s = ends[-credit] if credit <= len(ends) else 0.0
        now_s = max(room_s, min(since_s for since_s, _ in coming.values()))
        first = min(bucket for bucket, (since_s, _) in coming.items() if since_s <= now_s)
        _, part = coming.pop(first)
        ends.append(max(ends[-1], now_s) + sent[first][part])
        if part + 1 < len(sent[first]):
            coming[first] = ends[-1], part + 1
        else:
            arrived[first] = ends[-1]
    return arrived


def gathered_last(ready_s, sent, loss_s, verdict_s):
    """All are reduced; then, perhaps after a verdict on all gradients, the most urgent bucket is gathered first."""
    now_s = verdict_s + max(arrivals(ready_s, {each: sent[each][:1] for each in sent}, loss_s).values())
    return {bucket: (now_s := now_s + sum(sent[bucket][1:])) for bucket in sorted(sent)}


def iteration_s(model, buckets, arrived, loss_s, update_s):
    costs, waiting = model.costs, {bucket.index: bucket for bucket in buckets}
    now_s = max(sum(costs.backward_s), loss_s)
    for use, forward_s in enumerate(costs.forward_s):
        for bucket in [each for each in waiting.values() if use in each.calls]:
            now_s = max(now_s, arrived[bucket.index]) + update_s * waiting.pop(bucket.index).count
        now_s += forward_s
    return now_s + costs.rest_s + (costs.parts - 1) * sum(costs.forward_s + costs.backward_s)


def setting(number, schedule, credit):
    """The prediction of a setting, all of which follows from its number, and the oracle's."""
    rng, name = random.Random(number), f"bytescheduler:credit={credit}" if credit else schedule
    model, fusion, prices = random_model(rng), rng.choice(FUSIONS), random_prices(rng)
    route, judged, loss_s = rng.choice((FULL, SHARDED)), rng.random() < 0.2, rng.choice((0.0, 0.05, 0.5, 5.0))
    costs = {"loss_s": loss_s, "verdict_s": 0.3, "ranks": 2}
    found = predicted(model, name, fusion, prices, route=route, judged=judged, **costs)

    done_s, ready_s, sent = 0.0, {}, {}
    for use, backward_s in reversed([*enumerate(model.costs.backward_s)]):
        done_s += backward_s
        ready_s |= {bucket.index: done_s for bucket in found.buckets if bucket.calls[0] == use}
    for bucket in found.buckets:
        whole, out, back = (prices(found.buckets)(stage, bucket) for stage in STAGES)
        back += model.costs.update_s * bucket.count / 2 * (route is SHARDED)
        halves = schedule == "dear-eager" or (judged and route is SHARDED)
        sent[bucket.index] = [out, back] if halves else [whole if route is FULL else out + back]
    choices = [gathered_last(ready_s, sent, loss_s, 0.3 * judged)] if judged or schedule == "dear-eager" else []
    choices += [] if judged else [arrivals(ready_s, sent, loss_s, credit or 1)]
    update_s = model.costs.update_s * (route is FULL)
    return found.iteration_s, min(iteration_s(model, found.buckets, each, loss_s, update_s) for each in choices)


@pytest.mark.parametrize(("schedule", "credit"), [("bytescheduler", 1), ("bytescheduler", 3), ("dear-eager", None)])
def test_the_wire_always_takes_the_most_urgent_bucket_that_is_ready(schedule, credit):
    settings = [(number, *setting(number, schedule, credit)) for number in range(SETTINGS)]
    assert [each for each in settings if each[1] != pytest.approx(each[2], rel=1e-9)] == []
