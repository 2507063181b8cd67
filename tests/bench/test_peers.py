"""How sure a row's time over its peer's is: the interval, and the star."""

from dataclasses import replace

import numpy as np
import pytest

from dear_mpi.bench.case import Case, Samples, row_of
from dear_mpi.bench.run import against_peers, ratio_mark, shown

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


def test_a_clear_difference_has_a_star():
    found = judged(row("native", around(100, 1)), row("ring", around(90, 2)), row("naive", around(120, 3)))
    assert {name: ratio_mark(each) for name, each in found.items()} == {"native": "", "ring": "*", "naive": "*"}
    assert 0.85 < found["ring"].over_peer_low < 0.9 < found["ring"].over_peer_high < 0.95


def test_who_cannot_be_told_apart_is_not():
    ring = judged(row("native", around(100, 1, 0.3)), row("ring", around(100, 2, 0.3)))["ring"]
    assert ring.over_peer_low < 1 < ring.over_peer_high
    assert ratio_mark(ring) == ""


@pytest.mark.parametrize("turns", [3, 5])
def test_few_samples_have_no_interval(turns):
    found = judged(row("native", around(100, 1, turns=turns)), row("ring", around(50, 2, turns=turns)))
    ring = found["ring"]
    assert (ring.over_peer_low, ring.over_peer_high, ratio_mark(ring)) == (None, None, "")


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
