"""A bound is a theorem: no iteration on the virtual fabric takes less, whichever layers have trained parameters."""

import os
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.models.synthetic import Module
from dear_mpi.simulate.model import Model, synthetic_model
from dear_mpi.training.buckets.layout import Layout
from dear_mpi.training.fabric.virtual import Costs, unscaled
from dear_mpi.training.schedules import SCHEDULES, find_schedule
from tests.simulate.predicted import predicted

NAMES = (*SCHEDULES, "zero:overlap_param_gather=yes", "bytescheduler:credit=1")
SETTINGS = 1_500 if os.environ.get("EVERY") else 400
FUSIONS = ("own", "none", "tensors", "layers:2", "buckets:1", "cut:1KB", "2KB", "25MB", "mgwfbp")
ROUNDING = 1e-9


def random_model(rng):
    """A few layers: untrained ones in front, between and behind, tied ones, and some that take no time."""
    count, trained = rng.randint(1, 6), rng.choice((0.3, 0.7, 1.0))
    uses, tensors = [], []
    for number in range(count):
        own = [((number, each), (rng.choice((1, 30, 400, 3000)),)) for each in range(rng.randint(1, 2))]
        uses.append(own * (rng.random() < trained))
        if tensors and rng.random() < 0.15:
            uses[-1] = [*uses[-1], rng.choice(tensors)]
        tensors += uses[-1]
    if not tensors:
        uses[-1] = [("only", (400,))]

    def seconds(scale):
        return tuple(scale * rng.choice((0.0, 1.0, rng.expovariate(1.0))) for _ in range(count))

    costs = Costs(
        forward_s=seconds(1.0), backward_s=seconds(rng.choice((0.0, 0.1, 1.0, 2.0))), parts=rng.choice((1, 1, 3)),
        update_s=rng.choice((0.0, 1e-5)), rest_s=rng.choice((0.0, 0.2)),
    )  # fmt: skip
    layout, names = Layout.of(uses, itemsize=4, ranks=2), tuple(map(str, range(count)))
    return Model(name="random", layout=layout, names=names, costs=costs)


def random_prices(rng):
    """Seconds of each collective: some start-up, and so much for a byte that compute hides all, some or nothing."""
    scale = rng.choice((0.0, 0.1, 1.0, 1.0, 10.0))
    lines = {
        name: (rng.choice((0.0, rng.expovariate(20.0))), scale * rng.expovariate(1.0) / 8192)
        for name in ("all_reduce", "reduce_scatter", "all_gather", "negotiation")
    }
    return lambda buckets: lambda stage, bucket: sum_of(lines["negotiation" if stage.few else stage.name], bucket)


def sum_of(line, bucket):
    return line[0] + line[1] * bucket.nbytes


def random_setting(number):
    """The prediction of one setting, all of which follows from its number."""
    rng, name = random.Random(number), NAMES[number % len(NAMES)]
    return predicted(
        random_model(rng), name, rng.choice(FUSIONS), random_prices(rng), iterations=2, loss_s=rng.choice((0.0, 0.05)),
        compute=rng.choice((unscaled, unscaled, unscaled, lambda seconds: seconds * np.array([1.0, 1.7]))),
    )  # fmt: skip


def test_no_iteration_is_shorter_than_its_bound():
    for number in range(SETTINGS):
        found = random_setting(number)
        assert found.iteration_s >= found.bound_s * (1 - ROUNDING), f"setting {number}: {found}"


HIDING = ("dear", "zero:overlap_param_gather=yes", "dear-eager", "bytescheduler")


@pytest.mark.parametrize("schedule", [*HIDING, "fsdp"])
def test_layers_without_parameters_hide_what_backward_does_not(schedule):
    """Of one bucket all can be hidden, under the forward pass of such layers; it was far below its bound of 600 ms."""
    modules = [Module("a", (), 9.0), Module("b", (1_000_000,), 1.0)]
    model = synthetic_model("a", modules, ranks=2, forward_s=0.4, backward_s=0.05)
    seconds = {"all_reduce": 0.4, "reduce_scatter": 0.2, "all_gather": 0.2, "second all_gather": 0.2}
    found = predicted(model, schedule, "own", lambda _: lambda stage, _: seconds[stage.label])
    assert len(found.buckets) == 1
    if schedule == "fsdp":
        assert (found.iteration_s, found.bound_s) == pytest.approx((0.85, 0.6)), "its gathers wait for the hooks"
    else:
        assert (found.iteration_s, found.bound_s, found.exposed_s) == pytest.approx((0.45, 0.45, 0.0))


PUBLISHED = {  # which say more where the first layer has trained parameters, as it has in most models
    "dear": lambda ff, bp, rs, ag: max(ff, ag) + max(bp, rs),
    "zero:overlap_param_gather=yes": lambda ff, bp, rs, ag: max(ff, ag) + max(bp, rs),
    "fsdp": lambda ff, bp, rs, ag: max(ff, ag) + max(bp, ag + rs),
}
TIMES = st.floats(0, 100)


@pytest.mark.parametrize("schedule", PUBLISHED)
@given(ff=TIMES, more=TIMES, half=TIMES)
def test_bounds_are_the_published_ones_where_backward_takes_twice_as_long_as_forward(schedule, ff, more, half):
    """Or longer, and the halves of an all-reduce alike."""
    bp = 2 * ff + more
    found = find_schedule(schedule).bound(ff, bp, {"reduce_scatter": half, "all_gather": half})
    assert found == pytest.approx(PUBLISHED[schedule](ff, bp, half, half))
