"""What hides behind compute: OMB's definition, what is exposed, and how a collective is carried on meanwhile."""

import itertools
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from dear_mpi.bench import overlap
from dear_mpi.bench.case import Case, Prepared
from dear_mpi.bench.native import Nonblocking
from dear_mpi.bench.overlap import Compute, Driven, Effort, Overlap, Turn, at_once, overlap_of, show_overlap
from dear_mpi.bench.run import bench
from dear_mpi.bench.suite import Suite
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.ranks.world import run_world


def one(**more):
    facts = {"collective": "all_reduce", "algorithm": "ring", "backend": "here", "bytes": 4, "ranks": 2}
    facts |= {"dtype": "fp32", "op": "sum", "placement": "in place"}
    facts |= {"carried_on_by": "tests", "tests": 16, "turns": 5, "tests_us": 1.0}
    return Overlap(**{**facts, **more})


@pytest.mark.parametrize(
    ("overall", "compute", "alone", "percent", "exposed"),
    [
        (200.0, 100.0, 100.0, 0, 100),  # one after the other
        (100.0, 100.0, 100.0, 100, 0),  # all of it is hidden
        (150.0, 100.0, 100.0, 50, 50),
        (190.0, 140.0, 100.0, 50, 90),  # a compute that the collective slows down is exposed, but hides it for OMB
        (260.0, 100.0, 100.0, 0, 160),  # never below 0
    ],
)
def test_overlap_is_that_of_omb_and_exposed_is_what_a_program_pays(overall, compute, alone, percent, exposed):
    found = one(overall_us=overall, compute_us=compute, compute_alone_us=alone, pure_us=100.0)
    assert (found.overlap_percent, found.exposed_us) == pytest.approx((percent, exposed))
    assert found.as_row()["overlap_percent"] == found.overlap_percent


class Logged:
    """A collective that says what is done with it."""

    def __init__(self):
        self.log = []
        self.start, self.advance, self.wait = (partial(self.log.append, name) for name in ("start", "test", "wait"))


@pytest.mark.parametrize(("tests", "passes", "made"), [(16, 64, 16), (16, 3, 3), (1, 64, 1), (0, 64, 0)])
def test_tests_come_between_passes(tests, passes, made, monkeypatch):
    call, transport = Logged(), SimpleNamespace(barrier=lambda: None)
    driven = Driven(Prepared(lambda: None, startable=call), transport, None, tests)
    driven.compute.passes, done = passes, []
    monkeypatch.setattr(driven.compute, "run", lambda passes: call.log.append("compute") or done.append(passes))
    overall, compute, testing = driven.by_tests()
    assert call.log == ["start", *(["compute", "test"] * made or ["compute"]), "wait"]
    assert sum(done) == passes
    assert overall >= compute + testing


def test_passes_are_made_larger_then_more_of_them():
    """By a clock on which a pass takes 1 ns for each number."""
    compute = Compute()
    compute.last(0.01, lambda call: compute.passes * compute.numbers.size * 1e-9)
    assert compute.numbers.size == overlap.NUMBERS[1]
    assert compute.passes * compute.numbers.size * 1e-9 == pytest.approx(0.01, rel=0.02)
    compute = Compute()
    compute.last(1e-5, lambda call: compute.passes * compute.numbers.size * 1e-9)
    assert (compute.numbers.size, compute.passes) == (overlap.NUMBERS[0], 10)


def test_times_are_means_over_turns_and_ranks(monkeypatch):
    by = ({"tests": (3e-6, number * 1e-6, 0.0), "thread": (4e-6, 1e-6, 0.0)} for number in itertools.count())
    turns = (Turn(1e-6 * number, 2e-6, each) for number, each in enumerate(by))
    monkeypatch.setattr(Driven, "turn", lambda self: next(turns))
    monkeypatch.setattr(overlap, "TURNS", (3, 3))
    transport = SimpleNamespace(barrier=lambda: None, gather_values=lambda mine: [mine], size=1, name="here")
    call = Logged()
    found = overlap_of("ring", Case("all_reduce", 8), Prepared(call.wait, startable=call), transport, Effort(4, 0.0))
    assert [each.carried_on_by for each in found] == ["tests", "thread"]
    assert [each.tests for each in found] == [4, 0]
    warm = overlap.WARM_UP
    assert found[0].pure_us == found[0].compute_us == pytest.approx(warm + 1)
    assert (found[0].overall_us, found[1].overall_us, found[1].compute_alone_us) == pytest.approx((3, 4, 2))


def test_a_thread_runs_beside_the_compute():
    class Thread:
        def submit(self, run):
            log.append("submit")
            return SimpleNamespace(result=lambda: log.append("result"))

    log = []
    overall, computed = at_once(Thread(), None, lambda: log.append("compute"))
    assert log == ["submit", "compute", "result"]
    assert overall >= computed


def test_a_request_is_tested_and_awaited():
    log = []
    request = SimpleNamespace(Test=lambda: log.append("test"), Wait=lambda: log.append("wait"))
    call = Nonblocking(lambda: request)
    call.start()
    assert call.advance() is False
    call.wait()
    assert log == ["test", "wait"]


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
def test_plans_of_ours_overlap_at_each_size_and_have_steps_at_the_largest(ranks, collective, monkeypatch):
    monkeypatch.setattr(overlap, "TURNS", (2, 2))
    settings = Suite((64, 4096), (collective,), ("ring", "auto"), budget_s=0.001, overlap=True, steps=True, tests=3)
    report = run_world(lambda world: bench(settings, world), threads=ranks)
    kinds = [(each.bytes, each.carried_on_by) for each in report.overlap]
    assert kinds == [(row.bytes, way) for row in report.rows for way in ("tests", "thread")]
    assert all(np.isfinite(each.overlap_percent) and each.pure_us > 0 for each in report.overlap)
    assert {each.bytes for each in report.steps} == {max(row.bytes for row in report.rows)}
    assert {"ring"} <= {each.algorithm for each in report.steps}
    assert report.closer.keys() == {"steps", "overlap"}


def test_steps_are_those_of_the_first_type_and_operation_at_the_largest_size():
    chosen = {"dtypes": ("fp64", "fp32"), "ops": ("max", "sum"), "placements": ("out", "in")}
    settings = Suite((64, 4096), ("all_reduce", "reduce_scatter"), ("ring",), steps=True, iterations=1, **chosen)
    first, second = run_world(lambda world: bench(settings, world), threads=2).steps
    assert (first.name, second.name) == ("all_reduce, 2 ranks, ring, 4 KiB", "reduce_scatter, 2 ranks, ring, 4 KiB")
    assert {(each.dtype, each.op, each.placement) for each in (first, second)} == {("fp64", "max", "out of place")}


def test_each_type_and_number_of_ranks_has_a_table_of_its_own():
    times_us = dict.fromkeys(("overall_us", "compute_us", "compute_alone_us", "pure_us"), 1.0)
    found = [one(ranks=ranks, dtype=dtype, **times_us) for ranks in (2, 4) for dtype in ("fp32", "bf16")]
    screen = Console(record=True, width=120)
    show_overlap(screen, found * 2)
    titles = [line.strip() for line in screen.export_text().splitlines() if "what hides behind compute" in line]
    assert titles == [f"{each.kind}: what hides behind compute" for each in found]


@pytest.mark.parametrize("name", ["steps", "overlap"])
def test_a_closer_look_needs_the_host(name):
    with pytest.raises(ArgumentError, match=f"{name} needs the device cpu: "):
        run_world(lambda world: bench(Suite((4,), device="cuda", **{name: True}), world), threads=1)
