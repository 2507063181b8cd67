"""How long threads take to hand work over, from events as a log has them."""

import numpy as np

from dear_mpi.models.synthetic import Module
from dear_mpi.simulate.model import synthetic_model
from dear_mpi.training.events import Event, Record
from dear_mpi.training.events.profiler import starts_s, wakes_s
from dear_mpi.training.fabric.virtual import later
from tests.simulate.predicted import predicted


def record():
    """The loss waits for an engine without work; bucket 0 for the engine, which goes on with its codes."""
    engine = [
        Event("all_gather", 1, 0.0, 1.0),
        Event("loss", 0, 2.5, 3.0, since=2.0),
        Event("reduce_scatter", 0, 3.0, 4.0, since=2.75),
        Event("encode", 0, 4.0, 4.5),
        Event("all_gather", 0, 5.0, 6.0, since=4.5),
    ]
    waits = [("loss", 0, 2.8, 3.25), ("all_gather", 0, 5.5, 6.125), ("all_gather", 1, 6.2, 6.3)]
    within = [Event("wait", number, begin, end, awaited=awaited) for awaited, number, begin, end in waits]
    return Record(0, 1.5, 7.0, within=[Event("backward", 0, 2.0, 2.5), *within], engine=engine)


def test_an_engine_without_work_starts_late():
    """The reduce-scatter was handed over while the engine worked: it is no start."""
    assert list(starts_s(record())) == [0.5, 0.5]


def test_the_main_thread_wakes_up_after_what_it_waited_for():
    """What was over before it waited does not count, nor does the loss for bucket 0."""
    assert list(wakes_s(record())) == [0.25, 0.125]


def test_who_waits_wakes_up_and_who_comes_later_does_not():
    assert [later(each, 2.0, 0.5) for each in (1.0, 2.0, 2.25)] == [2.5, 2.0, 2.25]
    assert later(np.array([1.0, 2.0, 2.25]), 2.0, 0.5).tolist() == [2.5, 2.0, 2.25]


def test_an_iteration_has_them_where_nothing_hides_them():
    """1 s forward, 2 s back, a collective of 6 s, and the sum of the loss, which is over before it is waited for."""
    model = synthetic_model("a", [Module("a", (1024,), 1.0)], ranks=2, forward_s=1.0, backward_s=2.0)
    found = predicted(model, "sequential", "own", lambda _: lambda stage, _: 6.0, ranks=2, start_s=0.25, wake_s=0.125)
    assert found.iteration_s == 1 + 2 + 0.25 + 6 + 0.125
