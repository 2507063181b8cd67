"""How sure a row's time over its peer's is, and in which words: the interval, the star, the verdict."""

import re
from dataclasses import replace

import numpy as np
import pytest

from dear_mpi.bench.case import Case, Samples, row_of
from dear_mpi.bench.peers import against_peers, ratio_mark, shown, verdict, verdicts

TURNS = 200


def row(algorithm, times_us, **facts):
    """Of two ranks, of which the second one is the slower one."""
    by_rank = [[time_us * 0.5e-6 for time_us in times_us], [time_us * 1e-6 for time_us in times_us]]
    made = row_of(
        Case("all_reduce", 1 << 18), algorithm, Samples(by_rank, 0), backend="here", hosts=[2], segment_bytes=1 << 18
    )
    return replace(made, **facts)


def around(middle_us, seed, spread=0.03, turns=TURNS):
    return middle_us * np.exp(spread * np.random.default_rng(seed).standard_normal(turns))


def judged(*rows):
    return {each.algorithm: each for each in against_peers(rows)}


def test_a_clear_difference_has_a_star_and_a_verdict():
    found = judged(row("native", around(100, 1)), row("ring", around(90, 2)), row("naive", around(120, 3)))
    assert {name: ratio_mark(each) for name, each in found.items()} == {"native": "", "ring": "*", "naive": "*"}
    faster, slower = verdicts(list(found.values()))
    assert faster.startswith("ring is faster by 1")
    assert faster.endswith(" %) than native at 256 KiB")
    assert slower.startswith("naive is slower by ")
    ring = found["ring"]
    assert f"{100 / ring.over_peer - 100:.1f} % ({100 / ring.over_peer_high - 100:.1f} to " in faster


def test_the_peer_has_the_ratio_1_and_no_verdict():
    found = judged(row("ring", around(90, 1)), row("naive", around(90, 2)))
    assert (found["ring"].peer, found["ring"].over_peer_low, found["ring"].over_peer_high) == ("ring", 1, 1)
    assert len(list(verdicts(list(found.values())))) == 1


def test_segments_have_names_of_their_own():
    rows = [row("ring", around(100 - 10 * k, k), segment_bytes=1 << (14 + k)) for k in range(2)]
    (line,) = verdicts(against_peers(rows))
    assert re.match("ring, 32 KiB is faster by .* than ring, 16 KiB at 256 KiB", line)


def test_who_cannot_be_told_apart_is_not():
    """With enough samples, equals are called equal."""
    ring = judged(row("native", around(100, 1, 0.3)), row("ring", around(100, 2, 0.3)))["ring"]
    assert ratio_mark(ring) == ""
    told = verdict(ring, "ring", "native")
    low, high = ring.over_peer_low, ring.over_peer_high
    assert told == f"ring or native at 256 KiB: cannot tell: the interval is {low:.3f} to {high:.3f}"
    needed = TURNS * (np.log(high / low) / np.log(1.03)) ** 2
    pairs = [row(name, around(100, seed, 0.3, int(1.3 * needed))) for name, seed in (("native", 3), ("ring", 4))]
    assert "takes as long as native at 256 KiB, within 3%: the interval is " in verdict(
        judged(*pairs)["ring"], "ring", "native"
    )


@pytest.mark.parametrize("turns", [3, 5])
def test_few_samples_have_no_interval(turns):
    found = judged(row("native", around(100, 1, turns=turns)), row("ring", around(50, 2, turns=turns)))
    ring = found["ring"]
    assert (ring.over_peer_low, ring.over_peer_high, ratio_mark(ring)) == (None, None, "")
    assert verdict(ring, "ring", "native").endswith(f"cannot tell: too few samples for an interval, {turns}")
    assert len(list(verdicts(list(found.values())))) == 1


def test_a_row_that_tells_nothing_has_no_star():
    noisy = np.tile([1.0, 50.0], 100)
    ring = judged(row("native", around(0.01, 1)), row("ring", noisy))["ring"]
    assert ring.over_peer_low > 1
    assert ratio_mark(ring) == ""
    assert "cannot tell: the interval of ring is wider than its median" in verdict(ring, "ring", "native")
    assert "cannot tell: the results of ring are wrong" in verdict(replace(ring, wrong=1), "ring", "native")


@pytest.mark.parametrize(("wrong", "peer"), [((1, 0), "native-persistent"), ((1, 1), "native")])
def test_a_call_with_wrong_results_is_no_peer(wrong, peer):
    """But where all of them are wrong."""
    pair = [row(name, around(us, us), wrong=each) for name, us, each in zip(CALLS, (80, 100), wrong, strict=False)]
    found = judged(*pair, row("ring", around(90, 3)))
    assert {each.peer for each in found.values()} == {peer}
    assert (found["ring"].over_peer < 1) == (peer == "native-persistent")
    assert {shown(list(found.values()), ["native-best"])[0].algorithm} == {peer}


def test_rows_of_older_files_have_no_interval():
    rows = [replace(row("native", around(100, 1)), times_us=None), row("ring", around(90, 2))]
    assert [(each.over_peer_low, ratio_mark(each)) for each in against_peers(rows)] == [(1.0, ""), (None, "")]


CALLS = ("native", "native-persistent", "native-nonblocking", "native-beside")


def wrongly(slower, runs=200, turns=60):
    """The share of runs in which ring, as fast as all calls of the library, is called slower (or faster)."""
    rng, found = np.random.default_rng(8), []
    for _ in range(runs):
        rows = [row(name, 100 * np.exp(0.05 * rng.standard_normal(turns))) for name in (*CALLS, "ring")]
        ring = judged(*rows)["ring"]
        assert ring.over_peer_low <= ring.over_peer <= ring.over_peer_high
        found.append(ring.over_peer_low > 1 if slower else ring.over_peer_high < 1)
    return np.mean(found)


@pytest.mark.parametrize("slower", [False, True])
def test_the_luck_of_the_fastest_call_is_no_difference(slower):
    """Of four calls that are as fast, one has the least median by chance."""
    assert wrongly(slower) <= 0.05


def test_who_is_faster_than_the_peer_alone_is_not_called_faster():
    """The peer may be another one: a call that is bimodal and may be much faster."""
    modes = np.where(np.random.default_rng(9).random(TURNS) < 0.5, 80.0, 110.0)
    found = judged(
        row("native", around(95, 1, 0.01)), row("native-persistent", modes), row("ring", around(92, 2, 0.01))
    )
    assert found["ring"].over_peer_high > 1
    assert ratio_mark(found["ring"]) == ""
