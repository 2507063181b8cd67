"""Weights: unequal shares of the batch and of the line, and the parameters of one process."""

from functools import partial

import numpy as np
import pytest

from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.kernels.optimizers import Adam
from dear_mpi.models.data import Batches, Examples
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.models.synthetic import ComputeTime
from dear_mpi.ranks.world import World
from dear_mpi.training import Session, trainer
from dear_mpi.training.buckets.owners import check_weights, known, measured, parse_weights
from dear_mpi.training.events import Times
from dear_mpi.training.fabric.live import LiveFabric
from dear_mpi.training.fusion import BY_TIME
from dear_mpi.training.runs.compare import Comparison
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from dear_mpi.training.runs.train import train
from dear_mpi.training.schedules import SCHEDULES
from tests.training.test_sharded import layers
from tests.training_checks import agreed, installed, settings

BATCH = 12
CASES = {3: (3, 1, 1), 2: (0.5, 1), 4: (1, 0, 2, 1), 5: (1, 5, 1, 2, 0.1)}


def examples():
    rng = np.random.default_rng(1)
    return Examples(rng.standard_normal((40, 6)), rng.integers(0, 4, 40), ())


def trained(transport, *, iterations=8, cut=None, **options):
    """The parameters, the sizes of state on this rank, and the weights and examples of each iteration."""
    batches = Batches(examples(), BATCH, rank=transport.rank, size=transport.size, seed=0)
    options = {"optimizer": Adam(0.01), "algorithm": "ring", "fusion": "cut:128B"} | options
    with Session(layers(), SoftmaxCrossEntropy(), transport, **options) as session:
        parts = []
        for iteration in range(iterations):
            if cut and iteration == iterations // 2:
                session.cut(cut)
            x, targets = batches.part(iteration, session.weights)
            parts.append((session.weights, len(x)))
            session.step(x, targets, total=BATCH)
        session.flush()
        values = [parameter.value.copy() for parameter in session.parameters]
        return session.parameters_sha256(), values, [array.size for array in session.group.arena.state], parts


def close(values, others, rtol):
    for one, other in zip(values, others, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("ranks", CASES)
def test_the_parameters_are_those_of_one_process_whoever_updates(ranks):
    (alone,) = run_loopback(1, trained)
    digests = set()
    for update, schedule in [("full", "wfbp"), ("full", "dear"), ("sharded", "dear"), ("sharded", "fsdp")]:
        found = run_loopback(ranks, partial(trained, weights=CASES[ranks], update=update, schedule=schedule))
        digests |= {digest for digest, *_ in found}
        close(found[0][1], alone[1], rtol=1e-6)
    assert len(digests) == 1


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_all_schedules_have_the_same_bits(schedule):
    run = partial(trained, weights=(3, 1, 1), iterations=4)
    (expected,) = {digest for digest, *_ in run_loopback(3, partial(run, schedule="sequential"))}
    for update in ("full", "sharded"):
        found = run_loopback(3, partial(run, schedule=schedule, update=update))
        assert {digest for digest, *_ in found} == {expected}


@pytest.mark.parametrize(
    "options", [{"clip": 0.1}, {"wire": "bf16"}, {"cut": "25MB"}, {"accumulate": 2}, {"algorithm": "auto"}], ids=str
)
def test_and_with_what_else_may_be_chosen(options):
    found = [run_loopback(3, partial(trained, weights=(3, 1, 1), update=u, **options)) for u in ("full", "sharded")]
    assert len({digest for ranks in found for digest, *_ in ranks}) == 1


@pytest.mark.parametrize("wire", installed("int8", "topk:20%", "randomk:20%"))
def test_codes_follow_the_shards(wire):
    config = Config.of(settings(weights=(3, 0, 1), wire=wire))
    found = run_loopback(3, lambda transport: train(config, World(transport)))
    assert len({report["params_sha256"] for report in found}) == 1
    assert found[0]["loss"][-1] < found[0]["loss"][0]


def test_state_is_kept_in_proportion():
    found = run_loopback(4, partial(trained, weights=(1, 0, 2, 1), update="sharded", fusion="buckets:1"))
    sizes = [size for _, _, (size, _), _ in found]
    assert sizes[1] == 0
    assert sizes[2] == 2 * sizes[0] == 2 * sizes[3]


def test_every_example_is_in_one_part():
    for weights in (None, *CASES.values()):
        size = len(weights or (1, 1, 1))
        parts = [Batches(examples(), BATCH, rank=rank, size=size, seed=0) for rank in range(size)]
        (whole,) = [Batches(examples(), BATCH, rank=0, size=1, seed=0)]
        for iteration in range(7):
            xs = [part.part(iteration, weights)[0] for part in parts]
            np.testing.assert_array_equal(np.concatenate(xs), whole.part(iteration)[0])
    sizes = [len(Batches(examples(), BATCH, rank=rank, size=3, seed=0).part(0, (3, 1, 2))[0]) for rank in range(3)]
    assert sizes == [6, 2, 4]


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ((0, 0, 0), "weights must be finite numbers >= 0, not all of them 0, not (0, 0, 0)"),
        ((1, -1, 1), "weights must be finite numbers >= 0, not all of them 0, not (1, -1, 1)"),
        ((1, float("inf"), 1), "weights must be finite numbers >= 0"),
        ((3, 1), "weights must be 3 numbers, one for each rank, not (3, 1)"),
        (("a", 1, 1), "weights must be 3 numbers, one for each rank"),
        (3, "weights must be a number for each rank, or 'measured', not 3"),
        ("fast", "weights must be a number for each rank, or 'measured', not 'fast'"),
    ],
)
def test_wrong_weights_are_refused_by_name_on_all_ranks(weights, said):
    assert said in agreed(lambda transport: trained(transport, weights=weights))
    assert said in agreed(lambda each: train(Config(**settings(optimizer="adam", weights=weights)), World(each)))


@pytest.mark.parametrize("text", ["", "3,x,1", "3;1", "1,,1"])
def test_a_text_that_is_no_weights_is_refused(text):
    with pytest.raises(ValueError, match="weights must be numbers with commas between them, or measured"):
        parse_weights(text)


def test_ranks_that_train_alone_have_no_weights():
    said = agreed(lambda transport: trained(transport, weights=(3, 1, 1), schedule="local:2"))
    assert "weights must be left out: on the route 'local:2' each rank updates by its own gradients" in said


def test_what_is_alike_is_as_if_nothing_was_given():
    assert known((2, 2, 2), 3) is None
    assert known("measured", 3) is None
    check_weights("measured", 3)
    alike, plain = (run_loopback(3, partial(trained, weights=weights))[0][0] for weights in ((2, 2, 2), None))
    assert alike == plain


@pytest.mark.parametrize(
    ("seconds", "counts", "expected"),
    [
        ([1.0, 1.0], [8, 8], None),
        ([3.0, 1.0, 1.0, 1.0], [8, 8, 8, 8], (0.33, 1.0, 1.0, 1.0)),
        ([1.0, 1.0], [4, 8], (0.5, 1.0)),
        ([0.0, 0.0], [8, 8], None),
        ([2.0, 1.0, 0.0], [8, 8, 0], (0.5, 1.0, 1.0)),
        ([1.0, 1e-9], [1, 1], (0.01, 1.0)),
    ],
)
def test_measured_weights(seconds, counts, expected):
    assert measured(seconds, counts) == expected


@pytest.fixture
def slow_rank(monkeypatch):
    """Rank 1 takes three times as long as the others."""

    def timed(record, seconds):
        slow = getattr(seconds, "__self__", None)
        seconds_s = 3.0 if isinstance(slow, LiveFabric) and slow.world.rank == 1 else 1.0
        return Times(seconds_s, seconds_s, seconds_s, 0.0)

    monkeypatch.setattr(trainer, "times_of", timed)


@pytest.mark.parametrize("update", ["full", "sharded"])
def test_measured_weights_are_alike_and_hold_from_then_on(update, slow_rank):
    (alone,) = run_loopback(1, trained)
    seen = run_loopback(3, partial(trained, update=update, weights="measured"))
    assert len({digest for digest, *_ in seen}) == 1
    for (_, values, _, parts), count in zip(seen, (5, 2, 5), strict=True):
        close(values, alone[1], rtol=1e-6)
        assert parts == [(None, 4)] * 3 + [((1.0, 0.33, 1.0), count)] * 5


@pytest.mark.parametrize("choices", [{"fusion": each} for each in (*BY_TIME, "auto", "bo:32KB..256KB")], ids=str)
def test_what_else_is_decided_comes_after_the_weights(choices, slow_rank):
    choices = {"weights": "measured", "iterations": 60, "schedule": "dear-eager", "batch": 30} | choices
    config = Config.of(settings(**choices))
    found = run_loopback(3, lambda transport: train(config, World(transport)))
    assert {tuple(report["weights"]) for report in found} == {(1.0, 0.33, 1.0)}
    assert len({report["params_sha256"] for report in found}) == 1
    assert len({report["fusion"] for report in found}) == 1


def test_a_job_gives_each_rank_its_part(slow_rank):
    def parts(transport):
        with Job(Config.of(settings(weights="measured", batch=30)), World(transport), ["dear"]) as job:
            for iteration in range(4):
                job.iterate("dear", *job.batch(iteration))
            return len(job.batch(4)[0]), job.outcome()["params_sha256"]

    counts, digests = zip(*run_loopback(3, parts), strict=True)
    assert counts == (13, 4, 13)
    assert len(set(digests)) == 1


def test_too_few_iterations_are_refused():
    config = Config.of(settings(weights="measured", iterations=3))
    said = "iterations must be more than 3, not 3: the first 3 decide weights"
    assert said in agreed(lambda transport: train(config, World(transport)), ranks=2)


def test_a_comparison_measures_once(slow_rank):
    config = Config.of(settings(weights="measured", iterations=3, batch=30))
    found = run_loopback(3, lambda each: Comparison(config, World(each), ["wfbp", "dear"]).run())
    assert {tuple(row["weights"]) for rows in found for row in rows} == {(1.0, 0.33, 1.0)}


def test_a_checkpoint_goes_on_with_other_weights(tmp_path):
    file = tmp_path / "run.npz"

    def run(transport, begin, end, **options):
        batches = Batches(examples(), BATCH, rank=transport.rank, size=transport.size, seed=0)
        with Session(layers(), SoftmaxCrossEntropy(), transport, optimizer=Adam(0.01), **options) as session:
            if begin:
                session.resume(file)
            for iteration in range(begin, end):
                session.step(*batches.part(iteration, session.weights), total=BATCH)
            session.save(file)
            return [parameter.value.copy() for parameter in session.parameters]

    (alone,) = run_loopback(1, lambda each: run(each, 0, 8))
    run_loopback(3, lambda each: run(each, 0, 4, update="sharded", weights=(3, 1, 1)))
    found = run_loopback(4, lambda each: run(each, 4, 8, update="sharded", weights=(1, 0, 2, 1)))
    close(found[0], alone, rtol=1e-6)


def test_what_is_not_finite_in_a_small_shard_is_told_to_all():
    def broken(transport):
        with Session(layers(), SoftmaxCrossEntropy(), transport, update="sharded", weights=(9, 1, 0)) as session:
            for iteration in range(3):
                batches = Batches(examples(), BATCH, rank=transport.rank, size=3, seed=0)
                if iteration == 1 and transport.rank == 0:
                    session.loss.backward = lambda scale: np.full((11, 4), np.nan)
                session.step(*batches.part(iteration, session.weights), total=BATCH)

    assert "are infinite or not a number in update 1" in agreed(broken)


def test_a_synthetic_rank_takes_the_time_of_its_share(monkeypatch):
    """Nominal seconds, times how slow it is, times its share."""
    slept = []
    monkeypatch.setattr("dear_mpi.models.synthetic.time.sleep", slept.append)
    monkeypatch.setattr("dear_mpi.models.synthetic.time.perf_counter", lambda: 5.0)
    compute = ComputeTime()
    compute.pace = 3.0 * 0.4
    compute.spend(10.0, since_s=5.0)
    assert slept == pytest.approx([12.0])


def test_a_straggler_is_of_synthetic_models_alone():
    with pytest.raises(ValueError, match="straggler does not apply to the model 'mlp'"):
        Config.of(settings(straggler="0:3"))
    config = Config.of({"model": "synthetic:resnet50", "straggler": "9:3"})
    said = "straggler must be a rank of 0..1, not 9"
    assert said in agreed(lambda transport: train(config, World(transport)), ranks=2)


def test_a_job_of_synthetic_layers_keeps_pace():
    """Weights by which all end together."""

    def paces(transport):
        given = {"model": "synthetic:resnet50", "straggler": "0:3", "weights": (1, 3, 3), "forward_time": 0.0}
        with Job(Config.of(given), World(transport), ["dear"]) as job:
            x, _, _ = job.batch(0)
            return job.workload.compute_time.pace, len(x)

    found = run_loopback(3, paces)
    assert [pace for pace, _ in found] == pytest.approx([9 / 7] * 3)
    assert [count for _, count in found] == [9, 28, 27]
