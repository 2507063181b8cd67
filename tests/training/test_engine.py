"""The engine runs plans in order, on its own thread, and tells the main thread what went wrong."""

import threading

import pytest

from dear_mpi.collectives.program.errors import CollectiveError
from dear_mpi.ranks.streams import host_streams
from dear_mpi.training.fabric.live import Engine
from tests.training_checks import fabric_on

PLAN = "plan", 0


def test_plans_run_in_order_on_another_thread():
    log = []
    with Engine(host_streams()) as engine:
        fabric = fabric_on(engine)
        handles = [
            fabric.launch_act(("plan", n), lambda n=n: log.append((n, threading.current_thread().name)), f"{n}")
            for n in range(5)
        ]
        handles[-1].wait()
    assert log == [(n, "engine") for n in range(5)]


def test_leaving_finishes_what_was_started_and_ends_the_thread():
    log, gate = [], threading.Event()
    with Engine(host_streams()) as engine:
        fabric = fabric_on(engine)
        fabric.launch_act(PLAN, gate.wait, "gate")
        fabric.launch_act(PLAN, lambda: log.append("done"), "last")
        gate.set()
    assert log == ["done"]
    assert not engine.thread.is_alive()


def test_a_failure_is_raised_where_it_is_awaited_and_stops_what_follows():
    def fail():
        raise ZeroDivisionError("no such chunk")

    log = []
    with Engine(host_streams()) as engine:
        fabric = fabric_on(engine)
        fabric.launch_act(PLAN, lambda: log.append("before"), "before").wait()
        failed = fabric.launch_act(PLAN, fail, "reduce_scatter of bucket 3")
        after = fabric.launch_act(PLAN, lambda: log.append("after"), "all_gather of bucket 3")
        with pytest.raises(CollectiveError, match="reduce_scatter of bucket 3 failed: no such chunk"):
            failed.wait()
        said = "all_gather of bucket 3 was not run, because before it reduce_scatter of"
        with pytest.raises(CollectiveError, match=said):
            after.wait()
    assert log == ["before"]
