"""Schedules with priorities, against a wire that always takes the most urgent bucket that is ready.

The oracle shares no code with ours. The loss is the least urgent, but is ready before all buckets. Where the engine
updates shards, the wire is idle meanwhile.
"""

import os
import random

import pytest

from dear_mpi.training.routes.find import FULL, SHARDED
from dear_mpi.training.routes.stages import all_gather, all_reduce, reduce_scatter
from tests.simulate.predicted import predicted
from tests.simulate.test_bounds import random_model, random_prices

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
