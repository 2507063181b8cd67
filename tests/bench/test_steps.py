"""Steps of a collective: times add up, a late rank is seen going round the ring, and recording changes nothing."""

import json
import time
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from dear_mpi.bench.case import Case
from dear_mpi.bench.inside import steps
from dear_mpi.bench.inside.steps import KINDS, Run, Span, Watch, cells_of, steps_of
from dear_mpi.bench.inside.steps_table import lines_of, traced, words_of
from dear_mpi.collectives import make_plan
from dear_mpi.collectives.plans.recorded import Note, Part, RecordedRun
from dear_mpi.collectives.plans.runners.messages import MessagesRun
from dear_mpi.ranks.clock import Offset
from dear_mpi.ranks.world import run_world
from dear_mpi.see.timeline.steps import draw_steps, joined, step_of, timeline_of
from dear_mpi.see.timeline.write import trace
from dear_mpi.training.log.spans import WIRE
from dear_mpi.training.log.spans import Span as Shown

LATE_S = 0.02


def found(ranks, count=4096, algorithm="ring", *, late=None, collective="all_reduce", **options):
    def on_each_rank(world):
        with make_plan(collective, np.zeros(count, "f4"), world.transport, algorithm=algorithm, **options) as plan:
            if world.rank == late:
                plan.before = [lambda: time.sleep(LATE_S)]
            return steps_of(algorithm, Case(collective, 4 * count), plan, world, 0.01)

    return run_world(on_each_rank, threads=ranks)


@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize(
    ("collective", "algorithm"), [("all_reduce", "ring"), ("all_gather", "bruck"), ("all_reduce", "double_tree")]
)
def test_the_parts_of_each_rank_add_up_to_its_time(ranks, collective, algorithm):
    (each,) = found(ranks, 3000, algorithm, collective=collective, segment_bytes=512)
    for rank in range(ranks):
        cells = [cell for cell in each.cells if cell.rank == rank]
        assert sum(cell.total_us for cell in cells) + each.outside_us[rank] == pytest.approx(each.time_us[rank])
        assert each.outside_us[rank] > 0
        assert all(getattr(cell, f"{kind}_us") >= 0 for cell in cells for kind in KINDS)
        assert (sum(cell.combining_us for cell in cells) > 0) == (collective == "all_reduce" and ranks > 1)
        assert all(cell.waits_for != rank for cell in cells)
    *_, (last,) = lines_of(each)
    assert last.total_us == pytest.approx(np.mean(each.time_us))
    assert sum(last.parts_us) + np.mean(each.outside_us) == pytest.approx(last.total_us)


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("segment_bytes", [1 << 16, 1024])
def test_a_late_rank_is_seen_going_round_the_ring(ranks, segment_bytes):
    """Its successor waits for it, and the successor of that for that one. Messages take microseconds."""
    (each,) = found(ranks, late=1, segment_bytes=segment_bytes)
    waited_us = {rank: sum(cell.waiting_us for cell in each.cells if cell.rank == rank) for rank in range(ranks)}
    late_us = LATE_S * 1e6
    assert all(waited_us[rank] > late_us / 2 for rank in range(ranks) if rank != 1)
    assert min(waited_us, key=waited_us.__getitem__) == 1
    assert each.outside_us[1] > late_us / 2
    assert next(cell.waits_for for cell in each.cells if (cell.rank, cell.step) == (2, 0)) == 1
    chain = traced(each.spans)
    assert chain[-1][1].peer == 1
    assert all(span.peer == rank for (_, span), (rank, _) in pairwise(chain))
    assert any("leads back to rank 1" in text for text in words_of(each))


def test_a_wait_is_cut_where_the_peer_has_started_its_end():
    """By rank 0's clock, which shows 100 s less than this rank's."""
    listing = SimpleNamespace(messages=[SimpleNamespace(peer=2)] * 3)
    watch = SimpleNamespace(recorded=SimpleNamespace(listing=listing), offset=100.0)
    notes = [Note(Part("starting", 0, 0), 101.0, 102.0)]
    notes += [Note(Part("ending", step, step), 102.0, 106.0) for step in range(3)]
    notes.append(Note(Part("combining", 0, 0), 106.0, 107.0))
    spans = Watch.spans_of(watch, Run(notes, 101.0, 107.0, 6.0), [3.0, 0.0, 9.0])
    assert spans == [
        Span("transfer", 0, 2, 1.0, 2.0),
        Span("waiting", 0, 2, 2.0, 3.0),
        Span("transfer", 0, 2, 3.0, 6.0),
        Span("waiting", 1, 2, 2.0, 2.0),  # the peer was earlier
        Span("transfer", 1, 2, 2.0, 6.0),
        Span("waiting", 2, 2, 2.0, 6.0),  # its start was noted after the message had come: clocks are not exact
        Span("transfer", 2, 2, 6.0, 6.0),
        Span("combining", 0, 2, 6.0, 7.0),
    ]


def test_cells_are_means_over_runs_and_name_the_peer_that_most_waiting_was_for():
    run = [Span("waiting", 1, 3, 0.0, 2e-6), Span("waiting", 1, 2, 2e-6, 5e-6), Span("combining", 1, 3, 5e-6, 6e-6)]
    (cell,) = cells_of(7, [run, []])
    assert (cell.rank, cell.step, cell.waits_for) == (7, 1, 2)
    assert (cell.waiting_us, cell.transfer_us, cell.combining_us) == pytest.approx((2.5, 0.0, 0.5))


def test_a_wait_is_traced_to_who_was_late_not_to_who_waited_before():
    spans = [
        [Span("waiting", 0, 3, 0.0, 4.0)],  # long ago
        [],
        [Span("waiting", 0, 1, 5.0, 10.0)],
        [Span("waiting", 1, 2, 5.5, 10.5), Span("waiting", 0, 0, 5.0, 5.1)],
        [Span("waiting", 2, 3, 4.0, 11.0)],
    ]
    assert [(rank, span.peer) for rank, span in traced(spans)] == [(4, 3), (3, 2), (2, 1)]
    assert traced([[], []]) == []
    nobody = Span("waiting", 0, 1, 5.0, 5.0)  # each had come when it was waited for
    assert traced([[nobody], []]) == [(0, nobody)]


def test_clocks_are_compared_only_between_hosts(monkeypatch):
    asked = []
    monkeypatch.setattr(steps, "offsets", lambda transport: asked.append(0) or [Offset(0.0, 0.0), Offset(1e-3, 1e-5)])
    assert found(2)[0].clocks_us == 0
    assert not asked
    watch = SimpleNamespace(clocks=True, transport=SimpleNamespace(rank=1), offset=0.0, uncertainty_s=0.0)
    with Watch.common_clock(watch):
        pass
    assert (len(asked), watch.offset, watch.uncertainty_s) == (2, 1e-3, 1e-5)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_recorded_runs_have_the_same_bits_and_leave_the_plan_as_it_is(ranks):
    def on_each_rank(world):
        mine = np.random.default_rng(world.rank).standard_normal(1001).astype("f4")
        x = mine.copy()
        with make_plan("all_reduce", x, world.transport, algorithm="ring", segment_bytes=256) as plan:
            plain, calls = plan.run, list(plan.run.calls)
            wanted = plan().copy()
            x[...], recorded = mine, RecordedRun(plan.run)
            plan.run = recorded
            same = np.array_equal(plan(), wanted)
            kinds = {note.part.kind for note in recorded.notes}
            plan.run = plain
            steps_of("ring", Case("all_reduce", 4004), plan, world, 0.01)
            return same, kinds, plan.run is plain, plain.calls == calls

    same, kinds, *untouched = run_world(on_each_rank, threads=ranks)
    assert same
    assert untouched == [True, True]
    assert kinds == ({"starting", "ending", "combining"} if ranks > 1 else set())


def test_what_was_bound_to_record_is_freed(monkeypatch):
    freed, free = [], MessagesRun.free
    monkeypatch.setattr(MessagesRun, "free", lambda self: freed.append(type(self).__name__) or free(self))
    found(2)
    assert sorted(freed) == ["MessagesRun"] * 2 + ["RecordedRun"] * 2, "of each rank, the plan's own by the plan"


def test_a_plan_that_sends_no_messages_has_no_steps():
    assert found(3, algorithm="shared") == []


def test_a_report_has_all_but_the_spans():
    row = found(3)[0].as_row()
    assert "spans" not in row
    assert json.loads(json.dumps(row))["cells"][0].keys() >= {"rank", "step", "waits_for", *(f"{k}_us" for k in KINDS)}


def test_a_picture_and_a_trace_have_each_rank():
    (each,) = found(3)
    timeline = timeline_of("a title", {"ring": each.spans, "again": each.spans}, "of one host")
    figure = draw_steps(timeline)
    assert [axes.get_title().partition(":")[0] for axes in figure.axes] == ["ring", "again"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["rank 0", "rank 1", "rank 2"]
    content = trace(timeline)
    events = [event for event in content["traceEvents"] if event["ph"] == "X"]
    assert {event["cat"] for event in events} <= set(KINDS)
    assert {event["pid"] for event in events} == set(range(6))
    assert min(event["ts"] for event in events) == 0
    assert content["otherData"]["clocks"] == "of one host"


def test_segments_of_a_step_are_drawn_as_one():
    names = [f"step {step}: transfer, rank 1" for step in (4, 4, 5)]
    spans = [Shown(WIRE, "transfer", name, at, at + 1.0) for at, name in enumerate(names)]
    drawn = list(joined(spans, 0.5))
    assert [(step_of(span), span.begin_s, span.end_s) for span in drawn] == [("4", 0.0, 2.0), ("5", 2.0, 3.0)]
    assert len(list(joined([spans[0], spans[1]._replace(begin_s=1.7)], 0.5))) == 2
