"""What the command writes and shows: keys of its rows, columns, notes; and that no file of a user is lost."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from dear_mpi.models.synthetic import load_modules
from dear_mpi.simulate.model import synthetic_model
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from dear_mpi.simulate.table import least_s, slow_baselines, verdicts
from dear_mpi.training.routes.codes import Blocks
from dear_mpi.training.schedules import SCHEDULES
from tests.cli_checks import assert_one_line, invoke, succeed
from tests.simulate.test_profile import PROFILE

QUICK = ["--ranks", "4", "--fusion", "25MB"]


def rows_of(tmp_path, *flags):
    file = tmp_path / "rows.json"
    done = succeed("simulate", *QUICK, "--json", file, *flags)
    return json.loads(file.read_text()), " ".join(done.output.split())


def test_rows_say_what_was_chosen_and_what_is_between_hosts(tmp_path):
    flags = ("--straggler", "3:1.5", "--wire", "bf16", "--network", "8gbit,2us/0.8gbit,50us,o=1us,hosts=2")
    (row, _), _ = rows_of(tmp_path, *flags)
    known = {"straggler": "3:1.5", "wire": "bf16", "accumulate": 1, "params": 25_557_032, "hosts": 2, "o_s": 0.0}
    known |= {"alpha_s": 2e-6, "beta_s_per_B": 1e-9, "alpha_between_s": 50e-6, "beta_between_s_per_B": 1e-8}
    assert {name: row[name] for name in known} == pytest.approx(known)
    assert row["o_between_s"] == pytest.approx(1e-6)
    (row, _), _ = rows_of(tmp_path, "--network", "8gbit,2us")
    assert [row[name] for name in ("hosts", "alpha_between_s", "o_between_s")] == [None] * 3


def test_a_wire_without_seconds_is_noted(tmp_path, monkeypatch):
    said = "note: the wire int8 has no encode_s or decode_s: encoding and decoding count as free"
    assert said not in rows_of(tmp_path, "--wire", "int8")[1]
    for name in ("encode_s", "decode_s", "encode_call_s", "decode_call_s"):
        monkeypatch.setattr(Blocks, name, 0.0)
    assert said in rows_of(tmp_path, "--wire", "int8")[1]


def test_an_iteration_is_in_the_columns(tmp_path, monkeypatch):
    """Columns without any time are left out."""
    monkeypatch.setenv("COLUMNS", "200")
    profile = tmp_path / "profile.json"
    PROFILE.write(profile)
    rows, shown = rows_of(tmp_path, "--profile", profile)
    for row in rows:
        parts = ("compute_s", "exposed_comm_s", "update_s", "rest_s")
        assert row["iteration_s"] == pytest.approx(sum(row[name] for name in parts))
        assert (row["update_s"], row["rest_s"]) == pytest.approx((2**20 * 1e-9, 0.002))
    assert "exposed updates rest bound" in shown
    assert "exposed bound" in rows_of(tmp_path)[1]
    assert "exposed updates bound" in rows_of(tmp_path, "--update-time", "1e-3")[1]


def test_several_algorithms_have_a_row_each(tmp_path):
    rows, shown = rows_of(tmp_path, "--algorithm", "ring,rabenseifner")
    found = [(row["algorithm"], row["schedule"]) for row in rows]
    assert found == [(name, schedule) for name in ("ring", "rabenseifner") for schedule in ("wfbp", "dear")]
    assert "Predicted, with ring, rabenseifner on the network" in shown
    for name in ("ring", "rabenseifner"):
        alone, _ = rows_of(tmp_path, "--algorithm", name)
        assert alone == [row for row in rows if row["algorithm"] == name]


def test_rows_of_a_users_fusion_are_those_of_its_cut(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    rows, _ = rows_of(tmp_path, "--fusion", f"{tmp_path / 'mine.py'}:cut")
    same, _ = rows_of(tmp_path, "--fusion", f"at:0,{layout_of_resnet50().begin(60)}")
    assert [row["iteration_s"] for row in rows] == [row["iteration_s"] for row in same]
    assert [row["buckets"] for row in rows] == [2, 2]


MINE = """
def cut(layout, times, network):
    assert len(times.forward_s) == len(times.backward_s) == len(layout.calls) and network(0) < network(1 << 20)
    return [layout.begin(60)]
"""


def layout_of_resnet50():
    return synthetic_model("", load_modules("resnet50"), ranks=4, forward_s=0.1, backward_s=0.2).layout


ENDLESS = """
import time
from dear_mpi.training.schedules import Schedule

class Endless(Schedule):
    collectives = ("all_reduce",)

    def before_forward(self, use):
        while use == 3:
            time.sleep(0.1)
"""
OVER = "would write over the file of"


@pytest.mark.parametrize(("flags", "said"), [
    ("--network none.json", "network 'none.json' is no readable JSON file"),
    ("--schedules wfbp,mine.py:Endless", "did not finish within 0.2 seconds (in before_forward(3) of iteration 0)"),
    ("--wire fp7", "wire 'fp7' is unknown"),
    ("--schedules dear --algorithm double_tree", "double_tree"),
    ("--profile p.json --json p.json", f"--json 'p.json' {OVER} --profile: choose another name"),
    ("--profile p.json.old --json p.json", f"p.json.old' {OVER} --profile"),
    ("--network rows.json --json rows.json", f"--json 'rows.json' {OVER} --network"),
    ("--schedules mine.py:Endless --json mine.py", f"--json 'mine.py' {OVER} --schedules"),
    ("--algorithm mine.py:ring --json mine.py", f"--json 'mine.py' {OVER} --algorithm"),
    ("--fusion 25MB,mine.py:cut --json mine.py", f"--json 'mine.py' {OVER} --fusion"),
    ("--profile p.json --timeline p.json", f"--timeline 'p.json' {OVER} --profile"),
])  # fmt: skip
def test_files_stay_where_something_is_wrong(flags, said, tmp_path, monkeypatch, here):
    monkeypatch.setattr("dear_mpi.collectives.program.user_file.LIMIT_S", 0.2)
    for name in ("p.json", "p.json.old"):
        (tmp_path / name).write_text(json.dumps(asdict(PROFILE)))
    (tmp_path / "rows.json").write_text('{"older": "report"}')
    (tmp_path / "mine.py").write_text(ENDLESS)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    given = flags.split()
    given += [] if "--json" in given else ["--json", "rows.json"]
    assert_one_line(invoke("simulate", *QUICK, *given), said)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_an_older_report_is_moved_when_the_work_begins(tmp_path):
    file = tmp_path / "rows.json"
    file.write_text("older")
    succeed("simulate", *QUICK, "--json", file)
    assert (tmp_path / "rows.json.old").read_text() == "older"
    assert len(json.loads(file.read_text())) == 2


MODEL = {"models": ("synthetic:resnet50",), "ranks": (8,)}


def said(**settings):
    (sentence,) = verdicts(simulate(Settings(**MODEL | {"fusions": ("25MB",)} | settings)))
    return sentence


def test_the_sentence_names_the_possible_gain_and_the_fastest_row():
    """With one bucket nothing overlaps, whatever the bound of the schedule would allow."""
    sentence = said(network="100gbit,5us", schedules=("dear", "dear-eager"), forward_s=0.2)
    takes = "resnet50, 8 ranks: all-reduce takes 14.7 ms, forward 200.0, backward 400.0"
    limit = "none of our schedules gains more than 0.6 % over wfbp"
    assert sentence == f"{takes}: {limit}; the fastest row (dear, fusion 25MB, ring) gains 0.0 %."
    one = said(network="10gbit,5us", schedules=("wfbp", "dear"), fusions=("1GB",), forward_s=0.05)
    assert one.endswith("; the fastest row (wfbp, fusion 1GB, ring) gains 0.0 %.")
    assert float(one.partition("gains more than ")[2].partition(" %")[0]) > 10
    both = {"schedules": ("sequential", "dear", "wfbp"), "fusions": ("25MB", "cut:4MB")}
    gains = said(network="10gbit,5us", forward_s=0.05, **both)
    assert " % over wfbp; the fastest row (dear, fusion cut:4MB, ring) gains " in gains, "rows differ in buckets"


FEW = {"network": "10gbit,50us", "forward_s": 0.06, "ranks": (16,), "schedules": ("wfbp", "dear")}


@pytest.mark.parametrize("fusions", [("cut:4MB",), ("25MB", "cut:4MB")])
def test_a_baseline_with_bad_buckets_is_told(fusions):
    """wfbp takes 221 ms with its own 25 MB: a gain over 251 ms is no gain of the other schedule."""
    (said,) = slow_baselines(simulate(Settings(**MODEL | FEW | {"fusions": fusions})))
    takes = "wfbp takes 251.0 ms with fusion cut:4MB, 221.0 ms with 25MB"
    assert said == f"warning: resnet50, 16 ranks, ring: {takes}: with the former, speed-ups are 13.6% too high."


def test_a_baseline_at_its_best_or_alone_is_fair():
    for more in ({"fusions": ("25MB",)}, {"fusions": ("cut:4MB",), "schedules": ("wfbp",)}):
        assert slow_baselines(simulate(Settings(**MODEL | FEW | more))) == []


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


@pytest.mark.parametrize("seed", range(3))
def test_no_schedule_gains_more(seed):
    rng = np.random.default_rng(seed)
    settings = {
        "forward_s": 10 ** rng.uniform(-3, 0),
        "backward_s": 10 ** rng.uniform(-3, 0),
        "update_s": rng.choice([0.0, 1e-10, 1e-8]),
        "network": f"{10 ** rng.uniform(-0.5, 2):.3f}gbit,{rng.integers(100)}us",
        "algorithms": (str(rng.choice(["ring", "rabenseifner", "recursive_doubling"])),),
        "ranks": (int(rng.choice([2, 4, 8])),),
    }
    schedules = ("sequential", "wfbp", "ddp") if "recursive_doubling" in settings["algorithms"] else tuple(SCHEDULES)
    found = simulate(Settings(**MODEL | settings, schedules=schedules, fusions=("none", "25MB", "cut:2MB")))
    for each in found:
        assert least_s(each) <= each.prediction.iteration_s * (1 + 1e-9), each.row["schedule"]
