"""A group of our backend of torch.distributed, on ranks that are threads: how it ends, and which there can be."""

import sys
import threading

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.distributed needs torch (our extra 'torch')")

import torch.distributed as dist  # noqa: E402

from dear_mpi.collectives.transports.loopback import run_loopback  # noqa: E402
from dear_mpi.collectives.transports.watchdog import Watchdog  # noqa: E402
from dear_mpi.contrib.process_group import group as torch_group  # noqa: E402
from dear_mpi.contrib.process_group.backend import DearGroup, init_process_group  # noqa: E402
from dear_mpi.contrib.process_group.group import TorchGroup  # noqa: E402


def test_without_communicators_there_is_one_group():
    """A second group of all ranks had the transport of the first one: their threads met on it."""

    def body(transport):
        init_process_group(transport)
        try:
            dist.all_reduce(torch.ones(3))
            for ranks in (None, [0]):
                with pytest.raises(ValueError, match=r"^a second group \(ranks \[0\]\) needs MPI, not "):
                    dist.new_group(ranks)
        finally:
            dist.destroy_process_group()

    run_loopback(1, body)


def test_at_a_prompt_an_old_exception_is_no_failure(monkeypatch):
    for name in ("last_type", "ps1"):
        monkeypatch.delattr(sys, name, raising=False)
    assert not torch_group.failing()
    monkeypatch.setattr(sys, "last_type", ZeroDivisionError, raising=False)
    assert torch_group.failing()
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert not torch_group.failing()
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        assert torch_group.failing()


def test_a_rank_that_ends_with_collectives_under_way_says_so(capsys, monkeypatch):
    monkeypatch.setattr(torch_group, "failing", lambda: False)
    over = threading.Event()

    def never(*_):
        yield None
        over.wait()

    def body(transport):
        group = TorchGroup(transport, "group", 0.0, {})
        group.start("never", never())
        group.shutdown(0.01)
        over.set()
        group.shutdown(None)  # which waits for as long as it takes, and says nothing

    run_loopback(1, body)
    said = "dear-mpi: rank 0 ends with collectives under way, for which it waited 0.01 s\n"
    assert capsys.readouterr().err == said


def held_up(until):
    """A collective that does nothing for a while."""
    yield None
    until.wait(60)


def in_callbacks(call):
    """A call of f(group, total) in the callback of each of three all-reduces, as each of three ranks.

    Rank 0 attaches the callbacks to collectives that are over, so that its own thread runs them. On the others the
    thread of the group does, because something before them holds it up.
    """

    def body(transport):
        group, attached = DearGroup(transport, "group", 0.0, {"algorithm": "ring"}), threading.Event()

        def total(value, op=dist.ReduceOp.SUM):
            options = dist.AllreduceOptions()
            options.reduceOp = op
            return group.allreduce([torch.full((3,), float(value))], options)

        if transport.rank > 0:
            group.start("held up", held_up(attached))
        try:
            return call(group, total, attached, over=transport.rank == 0)
        finally:
            attached.set()
            group.shutdown()

    return run_loopback(3, body)


def chained(group, total, attached, *, over):
    """Each callback is attached before the next collective starts, as DDP does."""
    futures = []
    for value in (1, 2, 3):
        work = total(value)
        if over:
            work.wait()
        first = work.get_future().then(lambda future, value=value: total(10 * value).get_future().wait()[0])
        futures.append(first.then(lambda future, value=value: (future.wait(), total(100 * value).wait(), value)[0]))
    last = total(7)
    attached.set()
    last.wait()
    return [future.wait()[0].item() for future in futures]


def attached_at_the_end(group, total, attached, *, over):
    """All have started; a callback starts others in turn, of which one waits for a later collective of the program."""
    works = [total(value) for value in (1, 2, 3)]
    if over:
        for work in works:
            work.wait()

    def deep(value):
        inner = (
            total(10 * value).get_future().then(lambda future: total(future.wait()[0][0].item()).get_future().wait())
        )
        works[-1].wait()
        return inner.wait()[0]

    futures = [work.get_future().then(lambda _, value=value: deep(value)) for value, work in enumerate(works, 1)]
    attached.set()
    return [future.wait()[0].item() for future in futures]


@pytest.mark.parametrize(("call", "factor"), [(chained, 30), (attached_at_the_end, 90)])
def test_callbacks_may_start_collectives_and_wait_for_them(call, factor):
    """In the same order on ranks where the group's thread runs the callbacks, and where another one does."""
    expected = [factor * value for value in (1, 2, 3)]
    assert in_callbacks(call) == [expected] * 3


def test_a_callback_that_never_returns_is_reported(monkeypatch):
    over, said = threading.Event(), []
    monkeypatch.setattr(Watchdog, "say", lambda dog, text: (said.append(text), over.set()))

    def body(transport):
        group, attached = DearGroup(transport, "group", 0.5, {"algorithm": "ring"}), threading.Event()
        group.start("held up", held_up(attached))

        def callback(_):
            total = group.allreduce([torch.ones(3)], dist.AllreduceOptions())  # after which it is still a callback
            return over.wait(60) and total.wait()

        future = group.allreduce([torch.ones(3)], dist.AllreduceOptions()).get_future().then(callback)
        attached.set()
        assert future.wait()
        group.shutdown()

    run_loopback(1, body)
    assert "has waited 0.5 s for all ranks: a callback of torch.distributed, in callback (test_group.py:" in said[0]
