"""Notes of runs: what is kept of them, what each call is said to do, and what the notes of several ranks mean."""

import pickle

import numpy as np
import pytest

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.plans.notes import WAITS, Notes, Part
from dear_mpi.collectives.transports.loopback import run_loopback
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
