"""Two runs of the benchmark side by side: equal ones are seldom told apart, and what is slower is found."""

import os
from dataclasses import replace

import numpy as np
import pytest

from dear_mpi.bench.saved import Run
from dear_mpi.contrib.analysis.diff import compare_runs, detectable, holm, summary
from dear_mpi.reporting.stats import quantile, tail
from tests.bench.runs import SIZES, run_of

REPEATS = 100 if os.environ.get("EVERY") else 40


def without_samples(run):
    return replace(run, rows=[replace(row, times_us=None) for row in run.rows])


def found_slower(*asked, repeats=REPEATS, **how):
    """The part of comparisons of equal runs that end with exit code 1, for each ``at_least`` and whether samples are in
    the files; all about the same runs."""
    rng, found = np.random.default_rng(7), []
    for _ in range(repeats):
        pair = [run_of(rng, **how) for _ in range(2)]
        kept = {True: pair, False: list(map(without_samples, pair))}
        found.append([bool(compare_runs(kept[raw][:1], kept[raw][1:], at_least).slower) for at_least, raw in asked])
    return np.mean(found, axis=0)


@pytest.mark.parametrize("samples", [11, 40, 100])
def test_equal_runs_are_seldom_told_apart(samples):
    """22 points are asked at once: with 5 % at each, two of three comparisons would find one."""
    raw, without = found_slower((0.0, True), (0.0, False), samples=samples)
    assert raw <= 0.06
    assert without <= 0.06


def test_neighbours_that_are_alike_are_worth_less_if_samples_are_there():
    raw, without, below = found_slower((0.0, True), (0.0, False), (0.05, False), samples=100, likeness=0.5, repeats=100)
    assert raw <= 0.08
    assert without > 0.2, "that is why there is --raw, and --at-least"
    assert below <= 0.05


@pytest.mark.parametrize(("samples", "least"), [(20, 0.7), (40, 1.0)])
def test_a_fifth_slower_is_found(samples, least):
    rng = np.random.default_rng(8)
    pairs = [(run_of(rng, samples=samples), run_of(rng, samples=samples, slow=1.2)) for _ in range(20)]
    assert np.mean([bool(compare_runs([a], [b], 0.05).slower) for a, b in pairs]) >= least
    assert not any(compare_runs([b], [a], 0.05).slower for a, b in pairs), "B is faster: that is no error"


def test_a_slow_down_below_the_threshold_never_counts():
    rng = np.random.default_rng(9)
    pairs = [(run_of(rng, samples=400), run_of(rng, samples=400, slow=1.04)) for _ in range(5)]
    assert not any(compare_runs([a], [b], 0.05).slower for a, b in pairs)
    assert all(compare_runs([a], [b], 0.01).slower for a, b in pairs)
    verdicts = {each.verdict for a, b in pairs for each in compare_runs([a], [b], 0.1).points}
    assert verdicts == {"within 10%"}


@pytest.mark.parametrize("launches_of_a", [1, 4])
def test_the_least_slow_down_that_would_be_found_is_found(launches_of_a):
    """At each point that cannot be told: one that is a little larger is, and one that is a little smaller is not."""
    rng = np.random.default_rng(13)
    a = launches(rng, launches_of_a) if launches_of_a > 1 else [run_of(rng, samples=12, sizes=SIZES[:4])]
    b = [Run("b", a[0].rows)]
    before = compare_runs(a, b, 0.05)
    assert before.unsure
    for point in before.unsure:
        for more in (0.98, 1.02):
            middle_us = np.exp(np.mean([np.log(row.p50_us) for row in point.a]))
            by = more * point.detectable * middle_us / point.b[0].p50_us
            rows = [scaled_all(row, by) if row is point.b[0] else row for row in b[0].rows]
            after = compare_runs(a, [Run("b", rows)], 0.05)
            assert len(after.slower) == (more > 1)


def scaled_all(row, by):
    times = None if row.times_us is None else (np.array(row.times_us) * by).tolist()
    ends = {name: getattr(row, name) * by for name in ("p50_us", "ci_low_us", "ci_high_us")}
    return replace(row, **ends, times_us=times)


def test_exit_codes_and_what_could_have_been_found():
    rng = np.random.default_rng(14)
    noisy, sure = run_of(rng, samples=12, sizes=(4, 16)), run_of(sizes=(64,))
    same = compare_runs([noisy], [replace(noisy, name="b")], 0.05)
    assert same.exit_code == 3
    sentence, last = detectable(same)
    assert sentence.startswith("Smallest detectable slow-down where it cannot tell: ")
    assert last == "It cannot tell at any point: exit code 3."
    both = Run("both", [*noisy.rows, *sure.rows])
    mixed = compare_runs([both], [replace(both, name="b")], 0.05)
    assert (mixed.exit_code, len(list(detectable(mixed)))) == (0, 1)
    slow = Run("slow", [*noisy.rows, *run_of(sizes=(64,), slow=2.0).rows])
    assert compare_runs([both], [slow], 0.05).exit_code == 1
    few = compare_runs([run_of(rng, samples=5)], [run_of(rng, samples=5)], 0.05)
    assert "none (too few samples) (native, 4 B)" in next(detectable(few))
    assert [each["detectable"] for each in few.as_report()["points"]] == [None] * len(few.points)
    assert list(detectable(compare_runs([sure], [sure], 0.05))) == []


LAUNCH = run_of(sizes=SIZES[::2])


def launches(rng, count, slow=1.0, scatter=0.04):
    """Each launch has another time at each point, though its samples are sure."""
    found = []
    for number in range(count):
        scale = iter(slow * np.exp(scatter * rng.standard_normal(len(LAUNCH.rows))))
        found.append(Run(f"{slow:g}-{number}", [scaled(row, next(scale)) for row in LAUNCH.rows]))
    return found


def scaled(row, by):
    middle = row.p50_us * by
    return replace(row, p50_us=middle, ci_low_us=0.99 * middle, ci_high_us=1.01 * middle, times_us=None)


def told_apart(rng, before, after, repeats=100, at_least=0.0, **how):
    found = [compare_runs(launches(rng, before), launches(rng, after, **how), at_least) for _ in range(repeats)]
    return np.mean([bool(each.slower) for each in found])


def test_what_differs_from_launch_to_launch_is_seen_by_several_launches_alone():
    rng = np.random.default_rng(10)
    assert not compare_runs(launches(rng, 1), launches(rng, 1), 0.0).sees_launches
    assert told_apart(rng, 1, 1) > 0.5
    assert told_apart(rng, 5, 5) <= 0.06
    assert told_apart(rng, 5, 5, slow=1.2, at_least=0.05, repeats=50) == 1


def test_one_new_launch_is_held_against_several_old_ones():
    rng = np.random.default_rng(11)
    assert told_apart(rng, 6, 1) <= 0.06
    assert told_apart(rng, 6, 1, slow=1.6, at_least=0.05, repeats=50) >= 0.95


def test_too_few_samples_tell_nothing():
    rng = np.random.default_rng(12)
    found = compare_runs([run_of(rng, samples=5)], [run_of(rng, samples=5, slow=9.0)], 0.05)
    assert {each.verdict for each in found.points} == {"cannot tell"}
    assert not found.slower


def test_times_without_any_spread_are_compared_as_they_are():
    same, slower = (compare_runs([run_of()], [run_of(slow=slow)], 0.05) for slow in (1.0, 1.06))
    assert {each.verdict for each in same.points} == {"within 5%"}
    assert len(slower.slower) == len(slower.points)


def test_points_are_matched_by_all_that_is_chosen_and_others_are_listed():
    a, b = run_of(sizes=(4, 16), algorithms=("ring", "native")), run_of(sizes=(16, 64), algorithms=("ring",))
    found = compare_runs([a], [b], 0.05)
    assert [(each.a[0].algorithm, each.a[0].bytes) for each in found.points] == [("ring", 16)]
    alone = [[(row.algorithm, row.bytes) for row in rows] for rows in found.alone]
    assert alone == [[("ring", 4), ("native", 4), ("native", 16)], [("ring", 64)]]
    assert summary(found).startswith("1 point: 1 within 5%. slower: B takes over 5% longer than A")
    report = found.as_report()
    assert report["slower"] == 0
    assert report["points"][0]["bytes"] == 16
    assert [len(report["only_in"][side]) for side in "ab"] == [3, 1]


def test_points_that_start_otherwise_are_left_out():
    a, b = run_of(), run_of()
    b = replace(b, rows=[replace(row, start="clock") if row.bytes > 16 else row for row in b.rows])
    found = compare_runs([a], [b], 0.05)
    assert {each.a[0].bytes for each in found.points} == {4, 16}


@pytest.mark.parametrize(("other", "said"), [
    (
        {"start": "clock"},
        "no point is in both runs: start is barrier in old.json, and clock in new.json; bench --start barrier "
        "makes them alike",
    ),
    ({"ranks": 8}, "no point is in both runs: ranks is 4 in old.json, and 8 in new.json"),
    ({"dtype": "fp64"}, "no point is in both runs: dtype is fp32 in old.json, and fp64 in new.json"),
    ({"sizes": (64,)}, "no point is in both runs: bytes is 4, 16 in old.json, and 64 in new.json"),
    ({"backend": "EMULATED link"}, "links are emulated in new.json and real in old.json: they cannot be compared"),
])  # fmt: skip
def test_runs_that_cannot_be_compared(other, said):
    old, new = run_of(name="old.json", sizes=(4, 16)), run_of(name="new.json", **{"sizes": (4, 16)} | other)
    with pytest.raises(ValueError, match=f"^{said}$"):
        compare_runs([old], [new], 0.05)


def test_what_differs_between_the_heads_is_told():
    head = {"host": "a", "versions": {"numpy": "1", "python": "3"}}
    a, b = (Run(name, run_of().rows, {**head, "host": name}) for name in "ab")
    assert compare_runs([a], [b], 0.05).differs == {"host": ("a", "b")}
    assert compare_runs([a], [replace(b, head={})], 0.05).differs == {}, "of an older file nothing is known"
    other = replace(b, head={"host": "c"})
    assert compare_runs([a], [b, other], 0.05).differs["host"] == ("a", "b; c")


def test_student_is_as_in_tables():
    for freedom, critical in ((1, 12.706), (2, 4.303), (5, 2.571), (30, 2.042), (60, 2.000)):
        assert quantile(0.025, freedom) == pytest.approx(critical, abs=1e-3)
        assert tail(critical, freedom) == pytest.approx(0.025, abs=2e-5)
        assert tail(critical, freedom) + tail(-critical, freedom) == pytest.approx(1)
    assert tail(40.0, 7) == pytest.approx(0.79e-9, rel=0.02)


def test_holm_refuses_as_he_does():
    assert holm([]) == []
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
