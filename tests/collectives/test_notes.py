"""Notes of runs: what is kept of them, what each call is said to do, and what the notes of several ranks mean."""

import pickle

import numpy as np
import pytest

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.plans.notes import WAITS, Noted, Notes, Part
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.training.events.spans import spans_of, starts_of
from tests.collective_checks import SERVED

SAID = {"collective": "all_gather", "algorithm": "ring", "bucket": 3}


def test_notes_are_a_ring():
    notes, parts = Notes(most=6), [Part("whole"), Part("copying")]
    for number in range(9):
        notes.begin(SAID, parts).extend((number, number + 0.5, number + 1.0))
    assert [each.number for each in notes.runs] == [7, 8, 9]
    assert [each.number for each in notes.since(8.0)] == [9]
    assert pickle.loads(pickle.dumps(notes.since(0.0))) == notes.since(0.0)


@pytest.mark.parametrize(("collective", "name"), SERVED)
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_each_call_of_a_run_has_its_part(collective, name, ranks):
    """In their order: those that may block are the waits of an instruction; so times do not go to a wrong call."""

    def on_each_rank(transport):
        buffer = np.zeros(ranks * 100, "f4")
        with make_plan(collective, buffer, transport, algorithm=name, segment_bytes=128) as plan:
            plan.notes = notes = Notes()
            plan()
            (noted,) = notes.runs
            blocks = [part.kind in WAITS for part in plan.run.parts]
            due = [test is not None for test in plan.run.tests]
            return blocks == due, len(noted.parts), len(noted.times), len(plan.run.calls)

    for alike, parts, times, calls in run_loopback(ranks, on_each_rank):
        assert alike
        assert parts == calls == times - 1
        assert calls > 0 or ranks == 1


def test_a_wait_is_cut_where_the_peer_has_started_its_end():
    ends = [Part("ending", step, 0, 2, True, 0, 4) for step in range(4)]
    parts = [Part("starting", 0, 0, 2, True, 0, 4), *ends, Part("combining", 0, 0, 2, True, 0, 4)]
    own = Noted(7, {}, parts, [1.0, 2.0, 6.0, 8.0, 10.0, 11.0, 12.0])
    peers = [Part("starting", step, 0, 1, False, 0, 4) for step in (1, 0, 2)]
    starts = starts_of({1: own, 2: Noted(7, {}, peers, [0.0, 3.0, 10.5, 11.0])})
    spans = [span[:-1] for span in spans_of(1, own, starts)]
    assert spans == [
        ("transfer", 0, 2, 1.0, 2.0),
        ("waiting", 0, 2, 2.0, 3.0),
        ("transfer", 0, 2, 3.0, 6.0),
        ("transfer", 1, 2, 6.0, 8.0),  # the peer was earlier
        ("waiting", 2, 2, 8.0, 10.0),  # its start was noted after the message had come: clocks are not exact
        ("transfer", 2, 2, 10.0, 10.0),
        ("either", 3, 2, 10.0, 11.0),  # nothing is known of the peer
        ("combining", 0, 2, 11.0, 12.0),
    ]
