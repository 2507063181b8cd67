"""Exact sums of integers: the same bits on any number of ranks, by any algorithm, with a bound of their error.

EVERY=1 trains all cells of the product; otherwise each 59th.
"""

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.contrib.wires.fixed import BLOCK, MOST, UNITS, WRONG, DecodeSum, FindScales, Fixed, Quantise
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.models.layers import Dense, Gelu
from dear_mpi.ranks.world import run_world
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from dear_mpi.training.routes.find import find_route
from dear_mpi.training.routes.invariant import shares, with_tree
from dear_mpi.training.routes.proof import RouteError, prove
from dear_mpi.training.routes.stages import Collective
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import Saving, train
from tests.training.test_invariant import session_run
from tests.training_checks import EVERY, check_bits_of_one_rank, on_all, on_one_rank, run_invariant, settings

# Sums, stage by stage.


class Bucket(SimpleNamespace):
    """A rank's buffers, without a fabric."""

    def buffer(self, name):
        return self.buffers[name]

    def place(self, shard):
        return slice(*np.array([shard, shard + 1]) * (self.count // BLOCK) // self.ranks * BLOCK)

    def shard(self, name, shard):
        return self.buffer(name)[self.place(shard)]


def added(numbers, ranks, micro_batches=0):
    """The sum of numbers as a route computes it: rows are those of ranks, or of micro-batches."""
    count, wire = numbers.shape[1], Fixed(micro_batches)
    parts = shares(micro_batches, ranks) if micro_batches else [range(rank, rank + 1) for rank in range(ranks)]
    scales, integers = (np.empty((ranks, n), t) for n, t in ((count // BLOCK, np.uint8), (count, np.int32)))
    buckets = []
    for rank, part in enumerate(parts):
        buffers = {"scales": scales[rank], "integers": integers[rank]}
        buffers |= {name: numbers[each].copy() for name, each in zip(wire.sources(part), part, strict=True)}
        buckets.append(Bucket(rank=rank, ranks=ranks, count=count, buffers=buffers))
    found = np.empty(count, numbers.dtype)
    with np.errstate(all="ignore"):
        for stage, buffer, reduce in ((FindScales, scales, np.max), (Quantise, integers, np.sum)):
            for bucket in buckets:
                stage(wire=wire).bind(bucket)(1.0)
            order = np.random.default_rng(ranks).permutation(ranks)
            buffer[...] = reduce(buffer[order], axis=0, dtype=buffer.dtype) if reduce is np.sum else buffer.max(axis=0)
        for bucket in buckets:
            DecodeSum(wire=wire).bind(bucket)(1.0)
            found[bucket.place(bucket.rank)] = bucket.shard("gradients", bucket.rank)
    return found


KINDS = {
    "normal": lambda draw, shape: draw.standard_normal(shape),
    "equal": lambda draw, shape: np.full(shape, draw.standard_normal()),
    "sparse": lambda draw, shape: draw.standard_normal(shape) * (draw.random(shape) < 0.01),
    "denormal": lambda draw, shape: draw.standard_normal(shape) * 1e-41,
    "huge": lambda draw, shape: draw.uniform(-1, 1, shape) * 1e36,
    "wide": lambda draw, shape: draw.standard_normal(shape) * 10.0 ** draw.integers(-36, 30, shape),
    "cancelling": lambda draw, shape: draw.standard_normal(shape) * np.array([[1], [-1]])[np.arange(shape[0]) % 2],
}


@given(
    kind=st.sampled_from(list(KINDS)),
    micro_batches=st.sampled_from([1, 2, 8, 32, MOST]),
    blocks=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_the_error_is_bounded_and_ranks_change_no_bit(kind, micro_batches, blocks, seed):
    numbers = KINDS[kind](np.random.default_rng(seed), (micro_batches, blocks * BLOCK)).astype(np.float32)
    found = added(numbers, 1, micro_batches)
    exact = numbers.sum(axis=0, dtype=np.float64)
    largest = abs(numbers).reshape(micro_batches, blocks, BLOCK).max(axis=(0, 2)).repeat(BLOCK).astype(np.float64)
    bound = micro_batches * 2.0**-24 * np.maximum(largest, 2.0**-101) + 2.0**-24 * abs(found.astype(np.float64))
    assert (abs(found - exact) <= bound * (1 + 2**-20)).all()  # fp64 rounds, too
    for ranks in (2, 3, 5):
        if ranks <= micro_batches:
            assert np.array_equal(added(numbers, ranks, micro_batches), found)
    if micro_batches <= 8:  # so many ranks have the numbers of micro-batches
        assert np.array_equal(added(numbers, micro_batches), found)


def test_the_largest_numbers_do_not_overflow():
    """All 24 bits of 128 numbers: one more, and the sum of their integers would be above 2^31 - 1."""
    largest = np.float32(1) - np.float32(2**-24)
    found = added(np.full((MOST, BLOCK), largest, np.float32), 1, MOST)
    assert (found == np.float32(MOST * float(largest))).all()
    assert MOST * (2**24 - 1) < 2**31 <= (MOST + 1) * (2**24 - 1)


@given(
    place=st.integers(0, 3 * BLOCK - 1), ranks=st.integers(1, 4), wrong=st.sampled_from([math.nan, math.inf, -math.inf])
)
def test_what_is_not_finite_makes_its_block_nan(place, ranks, wrong):
    numbers = np.ones((4, 3 * BLOCK), np.float32)
    numbers[place % 4, place] = wrong
    assert np.array_equal(np.flatnonzero(np.isnan(added(numbers, ranks, 4))) // BLOCK, [place // BLOCK] * BLOCK)


# Routes.


@pytest.mark.parametrize("update", ["full", "sharded"])
@pytest.mark.parametrize("micro_batches", [None, 8, MOST])
def test_routes_are_proved(update, micro_batches):
    plain, found = prove(find_route(update)), find_route(update, wire="fixed32")
    assert prove(found) == replace(plain, exact=False)
    found = with_tree(found, micro_batches) if micro_batches else found
    assert prove(found).exact == bool(micro_batches)
    for number in range(len(found.out)):
        with pytest.raises(RouteError):
            prove(replace(found, out=found.out[:number] + found.out[number + 1 :]))


@pytest.mark.parametrize("ranks", [1, 2, 4, 5, 7])
def test_routes_are_proved_on_other_numbers_of_ranks(ranks, monkeypatch):
    monkeypatch.setattr("dear_mpi.training.routes.proof.HOSTS", (0,) * ranks)
    assert prove(with_tree(find_route("full", wire="fixed32"), 8)).exact


def test_what_could_overflow_is_refused():
    route = find_route("full", wire="fixed32")
    route.check((0,) * MOST)
    said = "fixed32 adds at most 128 numbers without an overflow, not those of 129 ranks"
    with pytest.raises(ValueError, match=said):
        route.check((0,) * (MOST + 1))
    with_tree(route, MOST).check((0,) * MOST)
    with pytest.raises(ValueError, match="at most 128 numbers without an overflow, not 256 micro-batches"):
        with_tree(route, 2 * MOST).check((0,))
    with pytest.raises(ValueError, match="invariant must be at least 16, so that each rank has a micro-batch, not 8"):
        with_tree(route, 8).check((0,) * 9)
    assert "without an overflow, not 256 micro-batches" in run_invariant(2, wire="fixed32", invariant=256, batch=256)


@pytest.mark.parametrize("options", [{}, {"invariant": None}])
def test_other_types_are_refused(options):
    said = on_all(lambda transport: session_run(transport, wire="fixed32", **options), 2)
    assert "wire 'fixed32' carries gradients of fp32, fp16, bf16, not of fp64" in said[0]


# Training.

SCHEDULES = ("sequential", "wfbp", "dear", "dear-eager", "fsdp")
STEP = 1 if EVERY else 59
GROUPS = 6  # tests, which run side by side
run = partial(run_invariant, wire="fixed32")


@pytest.mark.parametrize("group", range(GROUPS))
def test_bits_of_one_rank(group):
    check_bits_of_one_rank(SCHEDULES, slice(STEP * group, None, STEP * GROUPS), wire="fixed32")


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_bits_of_one_rank_in_narrow_types(dtype):
    def made():
        rng = np.random.default_rng(0)
        first, last = (rng.standard_normal(shape).astype(DTYPES[dtype]) for shape in ((6, 20), (20, 4)))
        return [Dense("first", first), Gelu(), Dense("last", last)]

    found = [each for n in (1, 3, 4) for each in on_all(lambda t: session_run(t, made, wire="fixed32"), n)]
    assert isinstance(found[0], tuple), found[0]
    assert found == found[:1] * 8


def test_the_sum_is_close_to_that_of_a_tree():
    """The bits differ, otherwise the tests above would show nothing."""
    (exact, losses), (tree, others) = on_one_rank(0, "sgd", 0, "fixed32"), run_invariant(1, optimizer="sgd")
    assert exact != tree
    assert losses == pytest.approx(others, rel=1e-6)


def test_a_checkpoint_goes_on_with_the_same_bits_on_other_ranks(tmp_path):
    choices, file = {"optimizer": "muon", "update": "sharded"}, tmp_path / "run.npz"
    run(3, Saving(file), iterations=3, **choices)
    assert run(5, Saving(file, resume=True), iterations=6, **choices) == run(2, iterations=6, **choices)


def test_without_micro_batches_no_algorithm_cut_or_schedule_changes_bits():
    def found(**choices):
        config = Config.of(settings(**{"wire": "fixed32", "iterations": 3} | choices))
        return run_world(lambda world: train(config, world), threads=3)["params_sha256"]

    names = [found(algorithm=each) for each in ("ring", "ordered", "naive", "auto")]
    names += [found(fusion=each, schedule="wfbp", algorithm="ring") for each in ("none", "25MB", "cut:20kB")]
    assert len(set(names)) == 1
    assert found(wire="fp32") != names[0]


def test_predictions_have_these_bytes():
    """As many as fp32's, and a byte for each block, once around for the maximum; others compute for nothing."""

    def row(**options):
        options = {"models": ("synthetic:resnet50",), "schedules": ("sequential",), "fusions": ("25MB",)} | options
        (found,) = (each.row for each in simulate(Settings(ranks=(4,), network="100mbit,0us", **options)))
        return found

    plain, codes, invariant = row(), row(wires=("fixed32",)), row(wires=("fixed32",), invariant=8)
    scales = 1 + 1 / (4 * BLOCK)
    assert codes["exposed_comm_s"] == pytest.approx(scales * plain["exposed_comm_s"], rel=0.03)
    assert invariant["exposed_comm_s"] == pytest.approx(scales * plain["exposed_comm_s"], rel=0.03)
    with pytest.raises(ValueError, match="not those of 256 ranks"):
        list(simulate(Settings(models=("synthetic:resnet50",), wires=("fixed32",), ranks=(256,))))


def test_the_scales_are_a_maximum_over_ranks():
    (stage,) = (each for each in find_route("full", wire="fixed32").out if getattr(each, "op", "") == "max")
    assert (stage.name, stage.buffer) == ("all_reduce", "scales")
    assert isinstance(stage, Collective)
    assert np.isnan(UNITS[WRONG])
