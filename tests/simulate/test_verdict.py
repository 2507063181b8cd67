"""What simulate says a schedule can gain: it names what bounds it, and no schedule gains more."""

import numpy as np
import pytest

from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from dear_mpi.simulate.table import least_s, slow_baselines, verdicts
from dear_mpi.training.schedules import SCHEDULES

MODEL = {"models": ("synthetic:resnet50",), "ranks": (8,)}


def said(**settings):
    (sentence,) = verdicts(simulate(Settings(**MODEL | {"fusions": ("25MB",)} | settings)))
    return sentence


def test_where_backward_hides_the_network_nothing_is_to_be_gained():
    sentence = said(network="100gbit,5us", schedules=("dear", "dear-eager"), forward_s=0.2)
    takes = "resnet50, 8 ranks: all-reduce takes 14.7 ms, forward 200.0, backward 400.0"
    limit = "none of our schedules gains more than 0.6 % over wfbp with these buckets"
    assert sentence == f"{takes}: {limit}; the fastest row (dear, fusion 25MB, ring) gains 0.0 %."


def test_a_bound_is_no_gain():
    """With one bucket nothing overlaps, whatever the bound of the schedule would allow."""
    sentence = said(network="10gbit,5us", schedules=("wfbp", "dear"), fusions=("1GB",), forward_s=0.05)
    assert sentence.endswith("; the fastest row (wfbp, fusion 1GB, ring) gains 0.0 %.")
    assert float(sentence.partition("gains more than ")[2].partition(" %")[0]) > 10


def test_a_schedule_that_gains_is_named():
    sentence = said(
        network="10gbit,5us", schedules=("sequential", "dear", "wfbp"), fusions=("25MB", "cut:4MB"), forward_s=0.05
    )
    assert "none of our schedules gains more than" in sentence
    assert " % over wfbp; the fastest row (dear, fusion cut:4MB, ring) gains " in sentence, "rows differ in buckets"


def test_where_nothing_travels_no_schedule_is_faster():
    assert "none of our schedules gains more than 0.0 % over" in said(ranks=(1,), network="1gbit", schedules=("dear",))


FEW = {"network": "10gbit,50us", "forward_s": 0.06, "ranks": (16,), "schedules": ("wfbp", "dear")}


@pytest.mark.parametrize("fusions", [("cut:4MB",), ("25MB", "cut:4MB")])
def test_a_baseline_with_bad_buckets_is_told(fusions):
    """wfbp takes 221 ms with its own 25 MB: a gain over 251 ms is no gain of the other schedule."""
    (said,) = slow_baselines(simulate(Settings(**MODEL | FEW | {"fusions": fusions})))
    takes = "wfbp takes 251.0 ms with fusion cut:4MB, 221.0 ms with 25MB"
    assert said == f"warning: resnet50, 16 ranks, ring: {takes}: with the former, speed-ups are 13.6% too high."


def test_a_baseline_at_its_best_is_fair():
    assert slow_baselines(simulate(Settings(**MODEL | FEW | {"fusions": ("25MB",)}))) == []
    alone = FEW | {"fusions": ("cut:4MB",), "schedules": ("wfbp",)}
    assert slow_baselines(simulate(Settings(**MODEL | alone))) == [], "nothing is compared with it"


LAZY = """
from dear_mpi.training.schedules import Wfbp


class Half(Wfbp):
    bound = staticmethod(lambda ff, bp, network: (ff + bp) / 2 + network["all_reduce"] / 2)
"""


def test_the_bound_of_a_schedule_of_the_user_counts(tmp_path):
    """Only those of ours did: a row of the user's could be faster than the sentence allowed."""
    (tmp_path / "half.py").write_text(LAZY)
    given = MODEL | {"network": "1gbit,5us", "fusions": ("25MB",), "forward_s": 0.05}
    ours, theirs = simulate(Settings(**given, schedules=("wfbp", f"{tmp_path}/half.py:Half")))
    assert least_s(theirs) == pytest.approx(theirs.prediction.bound_s)
    assert least_s(theirs) < 0.9 * least_s(ours)


@pytest.mark.parametrize("seed", range(20))
def test_no_schedule_gains_more(seed):
    rng = np.random.default_rng(seed)
    settings = {
        "forward_s": 10 ** rng.uniform(-3, 0),
        "backward_s": 10 ** rng.uniform(-3, 0),
        "update_s": rng.choice([0.0, 1e-10, 1e-8]),
        "network": f"{10 ** rng.uniform(-0.5, 2):.3f}gbit,{rng.integers(100)}us",
        "algorithms": (str(rng.choice(["ring", "swing", "double_tree"])),),
        "ranks": (int(rng.choice([2, 4, 8])),),
    }
    schedules = ("sequential", "wfbp", "ddp") if "double_tree" in settings["algorithms"] else tuple(SCHEDULES)
    found = simulate(Settings(**MODEL | settings, schedules=schedules, fusions=("none", "25MB", "cut:2MB")))
    for each in found:
        assert least_s(each) <= each.prediction.iteration_s * (1 + 1e-9), each.row["schedule"]
