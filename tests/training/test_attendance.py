"""A rank that leaves a session, or makes another call, is named by those that wait for it. They wait for a slow rank.

tests/test_launch.py has the same under mpirun.
"""

import re
import threading

import numpy as np
import pytest

from dear_mpi.collectives.program.errors import CollectiveError
from dear_mpi.collectives.transports import watchdog
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.models.layers import Dense, SoftmaxCrossEntropy
from dear_mpi.training import Session, attendance, session
from dear_mpi.training.schedules import SCHEDULES

HANGS = {  # what rank 1 does in place of the last steps, and what the others say of it
    "leaves": (lambda session: None, "rank 1 has come to the end of the session after 3 calls of step"),
    "saves": (lambda session: session.state(), "rank 1 has come to state after 3 calls of step"),
    "fails": (lambda session: 1 / 0, "rank 1 has left the session in or after call 3 of step (ZeroDivisionError"),
}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(session, "REPORT_S", 0.4)
    monkeypatch.setattr(attendance, "BEHIND_S", 0.1)
    monkeypatch.setattr(attendance, "LEFT_S", 0.2)
    monkeypatch.setattr(watchdog, "GRACE_S", 0.01)


def trained(transport, instead=None, schedule="dear"):
    rng = np.random.default_rng(0)
    layers = [Dense("a", rng.standard_normal((6, 5))), Dense("b", rng.standard_normal((5, 4)))]
    with Session(layers, SoftmaxCrossEntropy(), transport, schedule=schedule) as session:
        for step in range(5):
            if step == 3 and instead is not None:
                return instead(session)
            session.step(rng.standard_normal((4, 6)), np.arange(4))
    return None


@pytest.mark.parametrize("schedule", [*SCHEDULES])
def test_a_rank_that_makes_fewer_steps_is_named(schedule, capsys):
    ends_early = HANGS["leaves"][0]
    with pytest.raises(CollectiveError):
        run_loopback(3, lambda transport: trained(transport, ends_early if transport.rank == 1 else None, schedule))
    assert re.search(r"rank [02] waits for .* of the loss|rank [02] waits for .* bucket", capsys.readouterr().err)


@pytest.mark.parametrize("kind", HANGS)
def test_what_a_rank_does_instead_of_a_step_is_named(kind, capsys):
    instead, said = HANGS[kind]

    def body(transport):
        try:
            trained(transport, instead if transport.rank == 1 else None)
        except ZeroDivisionError:
            return  # its program goes on

    with pytest.raises(CollectiveError):
        run_loopback(3, body)
    assert f"in or after call 4 of step, but {said}" in capsys.readouterr().err


def test_ranks_that_end_a_session_in_different_ways_are_told():
    def body(transport):
        trained(transport, (lambda session: session.state()) if transport.rank else lambda session: None)

    with pytest.raises(CollectiveError, match="call must be the same on all ranks, not the end of the session on rank"):
        run_loopback(2, body)


def test_a_slow_rank_is_waited_for(monkeypatch, capsys):
    """Until the others have waited for longer than it takes to give a rank up that has left."""
    given_up = threading.Event()

    def doomed(self, waited_s):
        if waited_s >= attendance.LEFT_S:
            given_up.set()
        return original(self, waited_s)

    def body(transport):
        def validates(session):
            assert transport.rank or given_up.wait(60)
            session.step(np.ones((4, 6)), np.arange(4))
            return "trained"

        return trained(transport, validates)

    original = attendance.Attendance.doomed
    monkeypatch.setattr(attendance.Attendance, "doomed", doomed)
    assert run_loopback(3, body) == ["trained"] * 3
    assert " but rank " not in capsys.readouterr().err


@pytest.mark.parametrize("again", [False, True])
def test_a_session_does_not_hear_of_another(again):
    """All ranks leave the first one early, by an error that they share or not; they go on with a second one."""

    def body(transport):
        for instead in (lambda session: 1 / 0, None) if again else (lambda session: None, None):
            try:
                trained(transport, instead)
            except ZeroDivisionError:
                continue
        return "trained"

    assert run_loopback(3, body) == ["trained"] * 3
