"""A rank that waits for too long says for what, and who keeps it waiting. The tests wait for words, not for a clock."""

import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from dear_mpi.collectives import TransportError, all_reduce, make_plan
from dear_mpi.collectives.launch.launcher import Launch
from dear_mpi.collectives.launch.neighbours import Neighbour, blame
from dear_mpi.collectives.transports import watchdog
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.loopback import LoopbackRequest, run_loopback
from dear_mpi.collectives.transports.watchdog import Watchdog
from dear_mpi.ranks import world
from tests import lifetime_checks

LIMIT_S = 60  # for what takes a fraction of a second


@pytest.fixture
def said(monkeypatch):
    """What the watchdogs said, as (rank, text)."""
    texts = []
    monkeypatch.setattr(Watchdog, "say", lambda dog, text: texts.append((dog.rank, text)))
    monkeypatch.setattr(watchdog, "GRACE_S", 0.01)
    return texts


def wait_for(said, ranks):
    """Until these ranks have said something."""
    while not set(ranks) <= {rank for rank, _ in said}:
        threading.Event().wait(0.01)


@pytest.mark.parametrize("algorithm", ["ring", "shared"])
def test_a_late_rank_is_named(said, algorithm):
    def body(transport):
        with make_plan("all_reduce", np.ones(10), transport, algorithm=algorithm) as plan, Watchdog(transport, 0.1):
            if transport.rank == 1:
                wait_for(said, [2])
            plan()

    run_loopback(3, body)
    first = next(text for rank, text in said if rank == 2)
    assert first.startswith("has waited 0.1 s for ")
    assert "receiving from rank 1 in all_reduce (" in first
    assert first.endswith("rank 1 (a thread) waits for no other rank: it computes, sleeps or is elsewhere")


def test_a_rank_that_polls_is_watched(said):
    """It waits for the first of two plans; the number is that of this one."""

    def body(transport):
        plans = [make_plan("all_reduce", np.ones(10), transport) for _ in range(2)]
        transport.barrier()
        begun = transport.waits.number
        if transport.rank == 0:
            for plan in plans:
                plan.start()
            with Watchdog(transport, 0.1):
                while not said:
                    plans[0].advance()
            assert f", collective {begun + 1}; " in said[0][1]
        else:
            wait_for(said, [0])
        for plan in plans:
            plan.wait() if transport.rank == 0 else plan()  # the first may be over: said, and advanced once more

    run_loopback(2, body)
    assert "receiving from rank 1 in all_reduce (" in said[0][1]


def test_after_an_error_a_rank_waits_for_nothing():
    def body(transport):
        failing = lifetime_checks.Failing(transport)
        failing.error = TransportError("gone")
        with pytest.raises(TransportError, match="gone"):
            all_reduce(np.ones(10), failing)
        assert transport.waits.now is None

    run_loopback(2, body)


def test_waiting_for_an_agreement_names_where(said):
    def body(transport):
        with Watchdog(transport, 0.1):
            if transport.rank == 1:
                wait_for(said, [0])
            agree(transport, "weather", dict)

    run_loopback(2, body)
    assert "for all ranks: barrier, in body (test_watchdog.py:" in said[0][1]


def test_a_dead_link_is_named_and_the_job_ended(said, monkeypatch):
    """Messages from rank 0 to rank 1 are lost, after which all wait."""
    start = LoopbackRequest.Start

    def lossy(request):
        if request.key[:2] == (0, 1) and request.queue is request.lane.sends:
            return
        start(request)

    monkeypatch.setattr(LoopbackRequest, "Start", lossy)

    def body(transport):
        with Watchdog(transport, 0.2, abort=True):
            all_reduce(np.ones(30), transport)

    with pytest.raises(TransportError, match="ends the job after a stall"):
        run_loopback(3, body)
    assert any("all wait, rank 1 at the earliest point: for step 0, message" in text for _, text in said)
    assert any("receiving from rank 0 in all_reduce" in text for _, text in said)


def test_a_stopped_rank_is_ended_and_outlived(said):
    released = threading.Event()

    class Stopped:
        kill = staticmethod(released.set)

    def body(transport):
        if transport.rank == 2:
            released.wait(LIMIT_S)
            raise ArithmeticError
        transport.waits.monitor.stopped = lambda: [Stopped()]
        with Watchdog(transport, 0.2, abort=True):
            with pytest.raises(TransportError):
                transport.barrier()
            transport.repair()
            return transport.gather_values(transport.members)

    assert run_loopback(3, body, elastic=True) == [[(0, 1), (0, 1)]] * 2
    assert any("which is stopped" in text for _, text in said)


def test_the_rank_that_is_behind_is_blamed_where_all_wait():
    places = [(7, 3), (7, 1), (8, 0)]
    ranks = [Neighbour(rank, progress=place, waits=f"message {rank}") for rank, place in enumerate(places)]
    assert blame(ranks, 4) == (
        "all in sight wait, rank 1 at the earliest point: for message 1; rank 3 cannot be seen from here"
    )


def test_ctrl_c_ends_ranks_that_compute():
    """It reaches the main thread alone; a rank that computes for ever hears of nothing."""
    endless = threading.Event()

    def body(transport):
        if transport.rank == 1:
            raise KeyboardInterrupt
        endless.wait()

    with pytest.raises(KeyboardInterrupt):
        run_loopback(2, body)
    endless.set()


# A launcher that stays after an abort is ended from its own host; a scheduler's is left alone.

SCRIPT = """#!/bin/sh
trap '' TERM
{python} -c '{first}from dear_mpi.collectives.launch import launcher as us; us.end_launcher(.2, .2)' </dev/null
{then}
"""
STAYS = "while :; do sleep 0.1; done"


def returned(path, then, first=""):
    path.write_text(SCRIPT.format(python=sys.executable, first=first, then=then))
    path.chmod(0o755)
    return subprocess.run([path], timeout=120, check=False).returncode


@pytest.mark.parametrize("name", ["mpirun", "prterun", "mpiexec.hydra"])
def test_a_launcher_that_stays_is_ended(name, tmp_path):
    assert returned(tmp_path / name, STAYS) == -9


@pytest.mark.parametrize("name", ["srun", "shell"])
def test_schedulers_and_shells_are_left_alone(name, tmp_path):
    no_child = "import os; del os.fork; "
    assert returned(tmp_path / name, "exit $(($? + 7))", no_child) == 7


def test_a_rank_that_has_started_waits_no_longer(monkeypatch):
    """Its next watchdog posts nothing until it sees a wait, and others would blame the start of MPI."""
    posted = []
    monitor = SimpleNamespace(post=lambda *wait: posted.append(wait), blame=lambda: "nobody")
    for name, value in {
        "own_monitor": lambda: monitor,
        "launch_of": lambda environment: Launch("mpirun", 2, 0),
    }.items():
        monkeypatch.setattr(world, name, value)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    with world.starting(8 * 0.02, abort=False):
        while not posted:
            time.sleep(0.01)
    assert "MPI to start" in posted[0][1]
    assert posted[-1] == ()
