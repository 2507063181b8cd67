"""What hides behind compute: OMB's definition, what is exposed, and how a collective is carried on meanwhile."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from dear_mpi.bench.case import Case, Prepared
from dear_mpi.bench.run import agreed, bench
from dear_mpi.bench.suite import Suite
from dear_mpi.contrib.analysis import overlap
from dear_mpi.contrib.analysis.overlap import Driven, overlap_of
from dear_mpi.ranks.world import run_world


class Logged:
    """A collective that says what is done with it."""

    def __init__(self):
        self.log = []
        self.start, self.advance, self.wait = (partial(self.log.append, name) for name in ("start", "test", "wait"))


def rows_of(monkeypatch, *turns_us):
    """What is made of these turns, in us: (overall, compute, tests), by tests and apart."""
    made = iter(
        [{"apart": apart, "tests": by, "thread": by} for apart, by in [turns_us[0]] * overlap.WARM_UP + [*turns_us]]
    )
    in_s = ({way: tuple(1e-6 * each for each in found) for way, found in turn.items()} for turn in made)
    monkeypatch.setattr(Driven, "turn", lambda self: next(in_s))
    monkeypatch.setattr(overlap, "TURNS", (len(turns_us),) * 2)
    transport = SimpleNamespace(barrier=lambda: None, gather_values=lambda mine: [mine], size=1, name="here")
    call = Logged()
    return overlap_of(Case("all_reduce", 8), Prepared(call.wait, startable=call), transport, 4, 0.0)


@pytest.mark.parametrize(("overall", "compute", "alone", "percent", "exposed"), [
    (200.0, 100.0, 100.0, 0, 100),  # one after the other
    (100.0, 100.0, 100.0, 100, 0),  # all of it is hidden
    (150.0, 100.0, 100.0, 50, 50),
    (190.0, 140.0, 100.0, 50, 90),  # a compute that the collective slows down is exposed, but hides it for OMB
    (260.0, 100.0, 100.0, 0, 160),  # never below 0
])  # fmt: skip
def test_overlap_is_that_of_omb_and_exposed_is_what_a_program_pays(
    monkeypatch, overall, compute, alone, percent, exposed
):
    for row in rows_of(monkeypatch, ((100.0, alone, 0.0), (overall, compute, 0.0))):
        assert (row["overlap_percent"], row["exposed_us"]) == pytest.approx((percent, exposed), abs=1e-9)


def test_times_are_means_over_turns(monkeypatch):
    rows = rows_of(monkeypatch, ((1.0, 2.0, 0.0), (3.0, 1.0, 0.5)), ((3.0, 2.0, 0.0), (5.0, 2.0, 0.5)))
    assert [(row["carried_on_by"], row["tests"], row["turns"]) for row in rows] == [("tests", 4, 2), ("thread", 0, 2)]
    names = ("pure_us", "compute_alone_us", "overall_us", "compute_us", "tests_us")
    assert [rows[0][name] for name in names] == pytest.approx([2, 2, 4, 1.5, 0.5])


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
def test_plans_of_ours_overlap_at_each_size(ranks, collective, monkeypatch):
    monkeypatch.setattr(overlap, "TURNS", (2, 2))
    suite = Suite((64, 4096), (collective,), ("ring", "auto"), budget_s=0.001)
    look = overlap.overlap({"tests": "3"})

    def run(world):
        ready = agreed(suite, world)
        report = bench(ready, world)
        return report, look(world, ready, report).data["overlap"]

    report, found = run_world(run, threads=ranks)
    kinds = [(each["bytes"], each["carried_on_by"]) for each in found]
    assert kinds == [(row.bytes, way) for row in report.rows for way in ("tests", "thread")]
    assert all(np.isfinite(each["overlap_percent"]) and each["pure_us"] > 0 for each in found)
