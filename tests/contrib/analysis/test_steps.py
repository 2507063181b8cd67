"""Steps of a collective: times add up, a late rank is seen going round the ring, and recording changes nothing."""

import json
import time
from itertools import pairwise

import numpy as np
import pytest
from rich.console import Console

from dear_mpi.bench.case import Case
from dear_mpi.collectives import make_plan
from dear_mpi.collectives.plans.notes import KINDS, Notes, Part
from dear_mpi.contrib.analysis.steps import show, steps_of, total_us, traced, words_of
from dear_mpi.contrib.look import StepSpan, spans_of, steps_in, timeline_of
from dear_mpi.ranks.world import run_world
from dear_mpi.training.events.spans import starts_of

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
        cells = [cell for cell in each.row["cells"] if cell["rank"] == rank]
        outside_us = each.row["outside_us"][rank]
        assert sum(map(total_us, cells)) + outside_us == pytest.approx(each.row["time_us"][rank])
        assert outside_us > 0
        assert all(cell[f"{kind}_us"] >= 0 for cell in cells for kind in KINDS)
        assert (sum(cell["combining_us"] for cell in cells) > 0) == (collective == "all_reduce" and ranks > 1)
        assert all(cell["waits_for"] != rank for cell in cells)


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize("segment_bytes", [1 << 16, 1024])
def test_a_late_rank_is_seen_going_round_the_ring(ranks, segment_bytes):
    """Its successor waits for it, and the successor of that for that one. Messages take microseconds."""
    (each,) = found(ranks, late=1, segment_bytes=segment_bytes)
    cells = each.row["cells"]
    waited_us = {rank: sum(cell["waiting_us"] for cell in cells if cell["rank"] == rank) for rank in range(ranks)}
    late_us = LATE_S * 1e6
    assert all(waited_us[rank] > late_us / 2 for rank in range(ranks) if rank != 1)
    assert min(waited_us, key=waited_us.__getitem__) == 1
    assert each.row["outside_us"][1] > late_us / 2
    assert next(cell["waits_for"] for cell in cells if (cell["rank"], cell["step"]) == (2, 0)) == 1
    starts = starts_of(each.noted)
    chain = traced([list(spans_of(rank, noted, starts)) for rank, noted in each.noted.items()])
    assert chain[-1][1].peer == 1
    assert all(span.peer == rank for (_, span), (rank, _) in pairwise(chain))
    assert any("leads back to rank 1" in text for text in words_of(each))


def span(kind, step, peer, begin_s, end_s):
    return StepSpan(kind, step, peer, begin_s, end_s, Part(kind))


def test_a_wait_is_traced_to_who_was_late_not_to_who_waited_before():
    spans = [
        [span("waiting", 0, 3, 0.0, 4.0)],  # long ago
        [],
        [span("waiting", 0, 1, 5.0, 10.0)],
        [span("waiting", 1, 2, 5.5, 10.5), span("waiting", 0, 0, 5.0, 5.1)],
        [span("waiting", 2, 3, 4.0, 11.0)],
    ]
    assert [(rank, span.peer) for rank, span in traced(spans)] == [(4, 3), (3, 2), (2, 1)]
    assert traced([[], []]) == []
    nobody = span("waiting", 0, 1, 5.0, 5.0)  # each had come when it was waited for
    assert traced([[nobody], []]) == [(0, nobody)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_recorded_runs_have_the_same_bits_and_leave_the_plan_as_it_is(ranks):
    def on_each_rank(world):
        mine = np.random.default_rng(world.rank).standard_normal(1001).astype("f4")
        x = mine.copy()
        with make_plan("all_reduce", x, world.transport, algorithm="ring", segment_bytes=256) as plan:
            wanted = plan().copy()
            x[...], plan.notes = mine, (notes := Notes())
            same = np.array_equal(plan(), wanted)
            (noted,) = notes.runs
            assert len(noted.times) == len(plan.run.calls) + 1 == len(noted.parts) + 1
            plan.notes = None
            steps_of("ring", Case("all_reduce", 4004), plan, world, 0.01)
            return same, {part.kind for part in noted.parts}, plan.notes

    same, kinds, notes = run_world(on_each_rank, threads=ranks)
    assert same
    assert notes is None
    assert kinds == ({"starting", "ending", "combining"} if ranks > 1 else set())


@pytest.mark.parametrize("count", [8192, 1 << 19], ids=["mailboxes", "many blocks"])
def test_a_plan_in_shared_memory_has_phases(count):
    (each,) = found(3, count, "shared")
    cells = each.row["cells"]
    assert {cell["rank"] for cell in cells} == {0, 1, 2}
    assert all(sum(cell[f"{kind}_us"] for cell in cells) > 0 for kind in ("transfer", "combining"))


def test_steps_are_reported_and_shown():
    made = found(3)
    cells = json.loads(json.dumps(made[0].row))["cells"]
    assert cells[0].keys() == {"rank", "step", "waits_for", *(f"{kind}_us" for kind in KINDS)}
    screen = Console(record=True, width=120)
    show(screen, made)
    text = " ".join(screen.export_text().split())
    for words in ("where the time goes: ring, 16 KiB, all_reduce, 3 ranks, fp32, sum", "outside", "Slowest: step "):
        assert words in text


def test_a_timeline_has_each_rank():
    (each,) = found(3)
    timeline = timeline_of("a title", {"ring": each.noted, "again": each.noted}, 2e-6)
    for run in timeline.runs:
        assert {span.kind for spans in steps_in(run).values() for span in spans} <= set(KINDS)
        assert [rank.number for rank in run.ranks] == list(steps_in(run)) == [0, 1, 2]
        assert run.uncertainty_s == 2e-6
        assert len(run.flows) == 3 * 4, "a ring sends once in each of four steps, on three ranks"
