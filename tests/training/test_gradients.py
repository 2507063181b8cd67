"""Gradients on their way: parts of a batch add up, norms are clipped, an overflow costs an iteration."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.ranks.world import run_world
from dear_mpi.training.fabric.statistic import COUNT, LossScale, root_of, sums_of_squares
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from dear_mpi.training.runs.train import train
from tests.training_checks import KINDS, settings, third

EXTREMES = [0.0, -0.0, 1.0, 5e-324, 1e-160, 1e-30, -3.5e38, 1e150, 2.0**500]


@given(data=st.data(), dtype=st.sampled_from(["fp64", "fp32", "fp16", "bf16"]), rows=st.integers(1, 40))
def test_sums_of_squares_do_not_depend_on_who_adds_them(data, dtype, rows):
    """However an array is split between atoms, the sums have the same bits; the root is the right one."""
    rng, atom = np.random.default_rng(data.draw(st.integers(0, 99))), 128 // DTYPES[dtype].itemsize
    with np.errstate(all="ignore"):
        array = (rng.standard_normal(rows * atom) * 10.0 ** rng.integers(-6, 6, rows * atom)).astype(DTYPES[dtype])
        array[rng.integers(0, array.size, 3)] = np.array(data.draw(st.sampled_from(EXTREMES)))
    border = atom * data.draw(st.integers(0, rows))
    whole, parts = sums_of_squares(array), [sums_of_squares(part) for part in (array[border:], array[:border])]
    assert whole.shape == (COUNT,)
    assert (whole == parts[0] + parts[1]).all()
    wide = array.astype(np.float64)
    if np.isfinite(wide).all():
        assert root_of(whole) == pytest.approx(math.sqrt(math.fsum(wide**2)), rel=1e-15, abs=0)
    else:
        assert root_of(whole) == math.inf


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e200])
def test_a_norm_that_is_not_finite_is_infinite(value):
    array = np.ones(64)
    array[40] = value
    assert root_of(sums_of_squares(array)) == math.inf


def run(threads, **choices):
    return run_world(lambda world: train(Config.of(settings(**choices)), world), threads=threads)


def parameters(threads, iterations=8, **choices):
    """All parameters, in float64, after a few iterations with the first schedule."""

    def body(world):
        with Job(Config.of(settings(dtype="fp64", **choices)), world, ["dear"]) as job:
            for iteration in range(iterations):
                job.group.trainers["dear"].iteration(*job.batch(iteration))
            job.group.trainers["dear"].schedule.flush()
        return np.concatenate([parameter.value.ravel() for parameter in job.parameters])

    return run_world(body, threads=threads)


WAYS = [
    {"accumulate": 3},
    {"clip": 0.5},
    {"accumulate": 2, "clip": 0.1, "optimizer": "sgd", "momentum": 0.9},
    {"loss_scale": "dynamic", "wire": "fp16", "clip": 1.0},
    {"loss_scale": "dynamic", "wire": "bf16", "optimizer": "adamw"},
]


CASES = [*product([1, 3], WAYS), (5, WAYS[2])]


@pytest.mark.parametrize(("number", "threads", "choices"), [(n, *case) for n, case in enumerate(CASES)], ids=str)
def test_same_bits_under_every_schedule_and_cut(number, threads, choices):
    choices = choices | {"algorithm": "ordered"}
    schedules = {run(threads, schedule=schedule, **choices)["params_sha256"] for schedule in third(number)}
    cuts = {run(threads, fusion=cut, **choices)["params_sha256"] for cut in ("25MB", "cut:3kB")}
    assert len(schedules | cuts) == 1


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("parts", [2, 5, 32])
def test_parts_of_a_batch_are_as_good_as_the_whole(threads, parts):
    """Also where some of the parts are empty: 32 examples on 3 ranks, in up to 32 parts."""
    whole, together = parameters(threads), parameters(threads, accumulate=parts)
    assert np.abs(whole - together).max() <= 1e-10 * np.abs(whole).max()
    losses = [run(threads, accumulate=number)["loss"] for number in (1, parts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("threads", [1, 3, 4])
def test_clipping_is_by_the_norm_of_all_gradients(threads):
    """A step of plain SGD has the length lr * clip, or is the one that it is without clipping."""

    def step(clip):
        choices = {"optimizer": "sgd", "lr": 0.25, "clip": clip}
        return parameters(threads, 1, **choices) - parameters(threads, 1, optimizer="sgd", lr=1e-300)

    free, loose, clipped = step(None), step(1e6), step(0.01)
    assert (free == loose).all()
    assert np.linalg.norm(clipped) == pytest.approx(0.25 * 0.01, rel=1e-9)
    assert clipped / np.linalg.norm(clipped) == pytest.approx(free / np.linalg.norm(free), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("schedule", KINDS)
def test_a_scaled_gradient_that_overflows_costs_an_iteration(schedule):
    """2^16 is too much for the first ones: they are skipped on all ranks, and training goes on."""
    scales = []

    def body(world):
        config = Config.of(settings(loss_scale="dynamic", wire="fp16", iterations=40, schedule=schedule))
        with Job(config, world, [schedule]) as job:
            loss_scale = job.group.fabric.verdict.statistics[0].loss_scale
            loss_scale.scale = 2.0**22
            begin, losses = job.parameters_sha256(), []
            for iteration in range(40):
                losses.append(job.iterate(schedule, *job.batch(iteration))[0])
                if iteration == 1:
                    job.flush()
                    assert job.parameters_sha256() == begin, "two are skipped, and change nothing"
            job.flush()
            updates = {bound.updates for bound in job.group.fabric.bound.values()}
            assert updates == {40 - loss_scale.skipped}
            scales.append((loss_scale.scale, loss_scale.skipped))
            outcome = job.outcome()
        assert losses[-1] < losses[0]
        return outcome["params_sha256"]

    assert run_world(body, threads=3)
    assert scales == scales[:1] * 3
    assert scales[0][1] > 3


def test_the_scale_grows_again():
    scale = LossScale(4.0, interval=3)
    assert scale.overflowed()
    for _ in range(3):
        scale.fitted()
    assert (scale.scale, scale.skipped) == (4.0, 1)
    assert scale.overflowed()
    assert scale.overflowed()
    assert not scale.overflowed(), "it cannot become less than 1: then the overflow is an error"


@pytest.mark.parametrize(("choices", "said"), [
    ({"clip": 0.0}, "clip must be a norm above zero, not 0.0"),
    ({"clip": math.nan}, "clip must be a norm above zero, not nan"),
    ({"accumulate": 0}, "accumulate must be at least 1, not 0"),
    ({"loss_scale": "static"}, "loss_scale 'static' is unknown"),
])  # fmt: skip
def test_what_cannot_be_is_refused(choices, said):
    with pytest.raises(ValueError, match=said):
        Config.of(settings(**choices))
