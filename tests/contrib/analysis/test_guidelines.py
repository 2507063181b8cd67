"""Guidelines: breaches that were planted are found, and none where calls only differ by noise."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dear_mpi.bench.case import Case, Samples, row_of
from dear_mpi.contrib.analysis.guidelines import (
    BROKEN,
    CHANCE,
    GUIDELINES,
    KEPT,
    LARGER,
    LEAST,
    OPEN,
    PIECES,
    guideline_lines,
    judged,
)

SIZES = [1 << power for power in range(10, 21, 2)]
COST = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "broadcast": 1.2, "reduce": 1.2, "all_to_all": 1.5}
COST |= {"gather": 1, "scatter": 1}


def row(collective, nbytes, time_us, algorithm="native", *, noise=0.0, ranks=4, count=30, seed=0, **facts):
    """A call of which the samples scatter by this share around a time."""
    scatter = np.exp(np.random.default_rng(seed).normal(0.0, noise, count))
    samples = Samples([(time_us * 1e-6 * scatter).tolist()] * ranks, 0)
    where = {"backend": "here", "hosts": [ranks], "segment_bytes": 1 << 18}
    op = "sum" if "reduce" in collective else "none"
    made = row_of(Case("all_reduce", nbytes), algorithm, samples, **where)
    return replace(made, **{"collective": collective, "op": op} | facts)


def library(noise=0.0, seed=0, **facts):
    """Calls that keep all guidelines: what takes the place of a call takes twice as long, or as long and a half."""
    rows = []
    for number, (collective, factor) in enumerate(COST.items()):
        for size, nbytes in enumerate(SIZES):
            how = {"noise": noise, "seed": 100 * seed + 10 * number + size}
            rows.append(replace(row(collective, nbytes, factor * (20 + nbytes / 1000), **how), **facts))
    return rows


def slowed(rows, collective, nbytes, factor, algorithm="native"):
    times = ("p50_us", "ci_low_us", "ci_high_us", "mean_us", "min_us", "max_us")
    hit = [(each.collective, each.bytes, each.algorithm) == (collective, nbytes, algorithm) for each in rows]
    assert any(hit)
    return [
        replace(each, **{name: factor * getattr(each, name) for name in times}) if it else each
        for each, it in zip(rows, hit, strict=True)
    ]


def broken(rows):
    return [each for each in judged(rows) if each.verdict == BROKEN]


@pytest.mark.parametrize("seed", range(6))
def test_a_library_that_keeps_them_has_no_breach(seed):
    assert not broken(library(noise=0.1, seed=seed))


def test_equal_calls_that_scatter_break_nothing():
    """All calls of all sizes take the same, so every guideline with one call in its place is at its border.

    Each asked by itself, some of them would look broken: the adjustment is there for that.
    """
    by_itself = 0
    for seed in range(20):
        rows = [
            row(collective, nbytes, 50.0, noise=0.5, seed=1000 * seed + 20 * number + size)
            for number, collective in enumerate(COST)
            for size, nbytes in enumerate(SIZES)
        ]
        found = judged(rows)
        assert len(found) > 100
        assert not [each for each in found if each.verdict == BROKEN]
        by_itself += sum(each.by_itself <= CHANCE for each in found)
    assert by_itself


@pytest.mark.parametrize(
    ("collective", "instead", "factor"),
    [(name, each.calls, 6.0) for name, many in GUIDELINES.items() if name != "barrier" for each in many if each.calls],
)
def test_each_guideline_finds_the_call_that_was_planted_against_it(collective, instead, factor):
    nbytes = SIZES[3]
    rows = [each for each in library(noise=0.03) if each.collective in (collective, *instead) and each.bytes == nbytes]
    if instead == ("all_gather",) and collective == "broadcast":
        rows.append(row("all_gather", 4 * nbytes, 150.0))
    found = broken(slowed(rows, collective, nbytes, factor))
    assert set(instead) in [{term.collective for term, _ in each.terms} for each in found]
    assert {each.row.collective for each in found} == {collective}


def test_a_breach_says_what_to_do():
    rows = [row("all_reduce", 1 << 16, 95.0), row("reduce_scatter", 1 << 16, 30.0), row("all_gather", 1 << 16, 31.0)]
    (found,) = [each for each in broken(rows) if len(each.terms) == 2]
    assert found.sentence == (
        "all_reduce by native of 64 KiB takes 1.56 (1.56 to 1.56) times as long as reduce_scatter and all_gather "
        "(95 us, not 61): make these two calls instead"
    )
    report = found.as_report()
    assert json.loads(json.dumps(report)) == report
    assert (report["guideline"], report["verdict"]) == ("all_reduce(S) <= reduce_scatter(S) + all_gather(S)", "broken")
    assert report["ratio"] == pytest.approx(95 / 61)
    lines = list(guideline_lines(judged(rows)))
    assert lines[0] == f"GUIDELINE BROKEN by native, {report['guideline']}: {found.sentence}"
    assert lines[-1].startswith("guidelines: 2 kept, 1 broken, 0 cannot tell")


def test_larger_sizes_and_pieces():
    rows = [row("all_reduce", 1024, 100.0), row("all_reduce", 4096, 50.0), row("all_reduce", 16384, 900.0)]
    found = {each.guideline: each for each in broken(rows)}
    assert set(found) == {LARGER, PIECES}
    assert "all_reduce by native of 1 KiB takes 2 (2 to 2) times as long as one of 4 KiB" in found[LARGER].sentence
    assert "of 16 KiB takes 4.5 (4.5 to 4.5) times as long as 4 calls of 4 KiB" in found[PIECES].sentence
    assert found[LARGER].name == "all_reduce(S) <= all_reduce(larger S)"


SLOW, FAST = row("reduce", 1024, 900.0), row("all_reduce", 1024, 100.0)
OTHERS = [{"dtype": "fp64"}, {"placement": "out of place"}, {"cadence": "streaming"}, {"memory": "shared"}]
OTHERS += [{"ranks": 3}, {"hosts": [2, 2]}, {"backend": "there"}, {"algorithm": "ring"}, {"op": "max"}, {"wrong": 1}]
GATHERED, ODD = row("all_gather", 1024, 900.0), row("all_gather", 1024, 900.0, ranks=3)
JUDGED = [  # two rows, and what is said of them
    (SLOW, FAST, [BROKEN]),
    (row("reduce", 1024, 100 * (1 + LEAST) * 0.99), FAST, [KEPT]),
    (row("reduce", 1024, 100 * (1 + LEAST) * 1.01), FAST, [BROKEN]),
    (row("reduce", 1024, 900.0, count=5), FAST, [OPEN]),  # few samples
    (row("reduce", 1024, 900.0, ci_low_us=1.0), FAST, [OPEN]),  # a wide interval
    *((SLOW, replace(FAST, **facts), []) for facts in OTHERS),
    (row("reduce", 1024, 900.0, "naive"), row("all_reduce", 1024, 100.0, "naive"), [BROKEN]),
    (row("reduce", 1024, 900.0, "naive"), row("all_reduce", 1024, 100.0, "naive", segment_bytes=512), []),
    (SLOW, row("all_reduce", 1024, 100.0, segment_bytes=512), [BROKEN]),  # libraries know no segments
    (row("reduce", 1024, 900.0, ranks=1), row("all_reduce", 1024, 900.0, ranks=1), []),
    (ODD, row("all_to_all", 1020, 100.0, ranks=3), [BROKEN]),  # the size differs by rounding
    (ODD, row("all_to_all", 1012, 100.0, ranks=3), []),
    (GATHERED, FAST, [BROKEN]),  # what combines nothing is held against a sum
    (GATHERED, row("all_reduce", 1024, 100.0, op="max"), []),
]


@pytest.mark.parametrize(("slow", "fast", "verdicts"), JUDGED)
def test_right_rows_of_the_same_conditions_are_compared(slow, fast, verdicts):
    assert [each.verdict for each in judged([slow, fast])] == verdicts


def test_like_is_compared_with_like_and_the_best_with_the_best():
    """The blocking call is slow; the persistent one is not, so the best of the library keeps the guideline."""
    rows = [
        *(row("reduce", 1024, 900.0), row("all_reduce", 1024, 100.0)),
        *(row("reduce", 1024, 90.0, "native-persistent"), row("all_reduce", 1024, 110.0, "native-persistent")),
    ]
    verdicts = {each.row.algorithm: each.verdict for each in judged(rows)}
    assert verdicts == {"native": BROKEN, "native-persistent": KEPT, "native-best": KEPT}
    all_slow = judged(slowed(rows, "reduce", 1024, 10.0, "native-persistent"))
    assert {each.row.algorithm: each.verdict for each in all_slow} == dict.fromkeys(verdicts, BROKEN)
    line, _ = guideline_lines(all_slow)
    assert "also by " in line


def test_a_barrier_is_held_against_the_smallest_all_reduce():
    rows = [row("all_reduce", nbytes, 10.0 + nbytes) for nbytes in (8, 1024)]
    barrier = replace(rows[0], collective="barrier", bytes=0, count=0, op="none")
    (found,) = [each for each in judged([barrier, *rows]) if each.row is barrier]
    assert found.terms == [(rows[0], 1)]


def test_what_disturbs_all_candidates_is_no_breach_of_any():
    """All are slow at 1 KiB, where a reduce_scatter and an all_gather were not; the ring alone is slow at 16 KiB."""
    times = {"native": (90.0, 20.0, 30.0, 60.0), "ring": (80.0, 20.0, 70.0, 60.0)}
    rows = [
        row("all_reduce", nbytes, time_us, name)
        for name, found in times.items()
        for nbytes, time_us in zip((1024, 4096, 16384, 65536), found, strict=True)
    ]
    rows += [row(name, 1024, 10.0, "native") for name in ("reduce_scatter", "all_gather")]
    found = judged(rows)
    assert [(each.row.algorithm, each.row.bytes) for each in found if each.verdict == BROKEN] == [("ring", 16384)]
    assert {each.verdict for each in found if each.row.bytes == 1024 and each.ratio.value > 2} == {OPEN}
    said = [line.startswith("all_reduce of 1 KiB: all took longer") for line in guideline_lines(found)]
    assert sum(said) == 1
    alone = judged([each for each in rows if each.algorithm == "native"])
    assert {(each.row.bytes, len(each.terms)) for each in alone if each.verdict == BROKEN} == {(1024, 1), (1024, 2)}
