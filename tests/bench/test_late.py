"""A rank that is late now and then is named, if it can be told; nobody is on a quiet run."""

import json
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest

from dear_mpi.bench.case import Case, Samples
from dear_mpi.bench.contest import Contest
from dear_mpi.bench.found import recorded_calls as module
from dear_mpi.bench.found.about import IN_NAME, About
from dear_mpi.bench.found.findings import Findings, late_of
from dear_mpi.bench.found.late import Blame, Late, Slow, blamed_rank, by_times, named, slow_calls
from dear_mpi.bench.found.recorded_calls import blamed
from dear_mpi.bench.run import bench
from dear_mpi.collectives.plans.notes import Part
from dear_mpi.collectives.plans.steps import StepSpan
from dear_mpi.ranks.world import run_world
from tests.bench.sleepers import LATE_S, PLACES, recorded

CASE, KEY = Case("all_reduce", 4096), ("ring", 1 << 18)


def quiet_s(rng, ranks, calls, outliers=0.08):
    """Times of ranks that wait for each other, with noise of their own; now and then all take long, by any of them."""
    job_s = 1e-4 * np.exp(0.1 * rng.standard_normal(calls)) * np.where(rng.random(calls) < outliers, 4.0, 1.0)
    return job_s * np.exp(0.02 * rng.standard_normal((ranks, calls)))


def samples(times_s):
    return Samples(times_s.tolist(), 0, chosen="ring")


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_quiet_run_names_nobody(ranks):
    """Neither its samples, nor recorded calls in which each rank is late as often as others."""
    spoken = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        found = late_of(CASE, KEY, samples(quiet_s(rng, ranks, 100)), ranks)
        assert found is None or found.rank is None
        spoken += found is not None
        late_s = rng.exponential(1e-3, rng.integers(1, 60))
        assert not named([Slow(each, Blame(int(rng.integers(ranks)), each)) for each in late_s], ranks)
    assert spoken > 100  # a share of 8 % is said
    for seed in range(50):
        quiet = samples(quiet_s(np.random.default_rng(seed), ranks, 200, outliers=0.005))
        assert late_of(CASE, KEY, quiet, ranks) is None


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_rank_that_is_late_in_a_tenth_of_calls_is_named_among_noise(ranks):
    for seed in range(100):
        rng = np.random.default_rng(seed)
        noise = rng.exponential(3e-4, 20)
        slow = [Slow(each, Blame(int(rng.integers(ranks)), each) if rng.random() < 0.7 else None) for each in noise]
        slow += [Slow(5e-3, Blame(1, 5e-3 + 1e-5 * rng.random())) for _ in range(18)]
        found = blamed_rank(slow, ranks, 180, "recorded")
        assert found["rank"] == 1
        assert 18 <= found["late_calls"] <= found["slow_calls"] <= 24
        assert found["late_us"] == pytest.approx(5000, rel=0.01)


def test_too_few_slow_calls_name_nobody():
    assert not named([], 4)
    assert not named([Slow(1.0, Blame(1, 1.0))] * 3, 4)
    assert named([Slow(1.0, Blame(1, 1.0))] * 9, 4)
    assert not named([Slow(1.0, Blame(0, 1.0))] * 40, 1)
    assert not named([Slow(1.0, None)] * 40, 4)
    assert not named([Slow(1.0, Blame(1, 1.0)), Slow(1.0, Blame(2, 1.0))] * 20, 8)  # both are late


def test_times_alone_name_only_a_rank_for_which_nobody_waited():
    """If all ranks take long, it may have been any of them; of two ranks, the other one may have begun late."""
    calls = np.full((3, 100), 1e-4)
    calls[:, ::10] = 5e-3
    assert late_of(CASE, KEY, samples(calls), 3).rank is None
    calls[:2, ::10] = 1e-4
    found = late_of(CASE, KEY, samples(calls), 3)
    assert (found.rank, found.how, found.late_calls, found.calls) == (2, "times", 10, 100)
    assert found.spikes == pytest.approx(0.1)
    said = "rank 2 was late in 10 % of 100 samples, by a median of 4.9 ms: in 10 of the 10 slowest it alone"
    assert said in found.text()
    assert late_of(Case("broadcast", 4096), KEY, samples(calls), 3).rank is None  # it waits for the root alone
    assert late_of(Case("all_reduce", 4096, cadence="streaming"), KEY, samples(calls), 3).rank is None
    assert late_of(CASE, KEY, samples(calls[1:]), 2).rank is None
    assert [slow.blame.rank for slow in by_times(calls)] == [2] * 10
    calls[1:, ::10] = 5e-3
    assert late_of(CASE, KEY, samples(calls), 3).rank is None


def test_who_was_late_in_a_recorded_call():
    part = Part("ending")
    waits = [[], [StepSpan("waiting", 0, 0, 0.0, 4.9, part)], [StepSpan("waiting", 1, 1, 0.1, 5.0, part)]]
    slow = np.array([5.0, 5.0, 5.0])
    assert blamed(slow, np.array([0.1, 4.8, 0.2]), waits) == Slow(5.0, Blame(1, 4.8))  # outside of waits: for sure
    assert blamed(slow, np.array([4.9, 4.8, 0.2]), waits) == Slow(5.0, None)  # the host stood still
    assert blamed(slow, np.zeros(3), waits) == Slow(5.0, Blame(0, 4.9))  # in a wait that was over, or before the call
    assert blamed(np.array([0.1, 0.1, 5.0]), np.zeros(3), [[], [], []]) == Slow(5.0, Blame(2, 5.0))
    assert blamed(slow, np.zeros(3), [[], [], []]) == Slow(5.0, None)


def test_only_calls_that_took_twice_as_long_are_slow():
    assert slow_calls(np.array([[1.0, 1.0, 1.9, 2.1, 1.0], [1.0, 1.0, 1.0, 1.0, 1.0]])).tolist() == [3]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("ranks", "algorithm"), [(2, "ring"), (3, "recursive_doubling"), (4, "binomial")])
def test_a_rank_that_sleeps_is_named(ranks, algorithm, place, monkeypatch):
    monkeypatch.setattr(module, "MOST", 100)
    found, calls = run_world(lambda world: recorded(world, algorithm, 1, place), threads=ranks)
    told = blamed_rank(found, ranks, calls, "recorded")
    assert (told["rank"], calls) == (1, 100)
    assert told["late_us"] >= 0.9e6 * LATE_S


def test_findings_are_said_beside_their_rows():
    about = {"collective": "all_reduce", "algorithm": "auto", "chosen": "ring", "segment_bytes": 4096}
    about |= {"ranks": 4, "dtype": "fp32", "op": "sum", "placement": "in place"}
    late = Late(
        **about, bytes=8, spikes=0.1, rank=2, how="recorded", calls=180, slow_calls=21, late_calls=20, late_us=80
    )
    findings = Findings([], [late, Late(**about, bytes=64, spikes=0.2), Late(**about, bytes=16, spikes=0.06)])
    rows = [SimpleNamespace(**about | {"bytes": nbytes}, is_balanced=True) for nbytes in (8, 16, 64)]
    what = "samples over 1.5 medians, and it cannot be told which rank was late"
    assert list(findings.texts(rows)) == [
        "auto (ring), 8 B: rank 2 was late in 11 % of 180 more calls, by a median of 80 us: 20 of the 21 slowest "
        "lead back to it",
        f"{what}: auto (ring), 64 B (20%); auto (ring), 16 B (6%)",
    ]
    assert list(findings.texts(rows[1:2])) == [f"{what}: auto (ring), 16 B (6%)"]
    (first, second, _) = json.loads(json.dumps(findings.as_report()))["late_ranks"]
    assert (first["rank"], first["calls"], second["rank"], second["spikes"]) == (2, 180, None, 0.2)


ABOUT = [each.name for each in fields(About)]


@pytest.mark.parametrize(
    ("varied", "said"),
    [
        ({"collectives": ("all_reduce", "all_gather")}, ("all_reduce, sum", "all_gather")),
        ({"ranks": (2, 3)}, ("2 ranks", "3 ranks")),
        ({"dtypes": ("fp32", "int8")}, ("fp32", "int8")),
        ({"ops": ("sum", "max")}, ("sum", "max")),
        ({"placements": ("in", "out")}, ("in place", "out of place")),
        ({"segments": (32, 64)}, ("segments of 32 B", "segments of 64 B")),
    ],
)
def test_a_finding_belongs_to_one_row_and_is_named_like_it(varied, said):
    report = run_world(
        lambda world: bench(Contest((96,), algorithms=("ring",), iterations=1, warmup=0, **varied), world), threads=3
    )
    about = [{name: getattr(row, name) for name in ABOUT} for row in report.rows]
    findings = Findings([], [Late(**facts, spikes=0.1) for facts in about])
    assert len(report.rows) == 2
    for row, word in zip(report.rows, said, strict=True):
        (alone,) = findings.texts([row])
        assert alone.endswith(": ring, 96 B (10%)")
        assert list(findings.texts([replace(row, arrival="ramp")])) == []  # whose calls are looked at no more closely
        assert f"ring, 96 B, {word} (10%)" in next(findings.texts(report.rows))


def test_a_finding_of_a_library_has_no_segments():
    """They make no difference to its calls."""
    made = {"collective": "all_reduce", "ranks": 2, "dtype": "fp32", "op": "sum", "placement": "in place", "bytes": 8}
    names = [About(algorithm=name, chosen=name, segment_bytes=4, **made).name(IN_NAME) for name in ("native", "ring")]
    assert names[1] == f"{names[0].replace('native', 'ring')}, segments of 4 B"
