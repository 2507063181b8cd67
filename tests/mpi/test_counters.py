"""Ranks of one host that wait for each other by counters in shared memory."""

import platform
import time
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from dear_mpi.collectives import all_gather, all_reduce, barrier, broadcast, make_plan, reduce, reduce_scatter
from dear_mpi.collectives.plans.notes import Notes
from dear_mpi.collectives.program.errors import MismatchError
from dear_mpi.collectives.transports.watchdog import Watchdog
from dear_mpi.training.events.spans import starts_of
from tests.counter_checks import check_calls, spinning

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="stores are not in order here"),
]


@pytest.mark.parametrize("seed", range(2))
def test_results_are_right_whoever_is_late(seed):
    size = MPI.COMM_WORLD.Get_size()
    assert check_calls(MPI.COMM_WORLD, 200, seed) == (40 if size > 1 else 0)


def test_ranks_vote_by_counters():
    transport = spinning(MPI.COMM_WORLD)
    if transport.size > 1:
        assert transport.voting is not None
    for number in range(5):
        assert transport.same(number)
        assert not transport.same(transport.rank) or transport.size == 1
    transport.free()


def test_a_counter_barrier_names_the_ranks_that_are_late():
    transport = spinning(MPI.COMM_WORLD)
    if transport.size > 1:
        barrier = transport.voting
        barrier.enter()
        transport.native.Barrier()
        assert barrier.late == []
        if transport.rank == 0:
            barrier.enter()
            assert barrier.late == list(range(1, transport.size))
        transport.native.Barrier()
    transport.native.Barrier()
    transport.free()


def test_a_late_rank_is_named(monkeypatch, tmp_path):
    """It comes after all others have said for whom they wait."""
    comm = MPI.COMM_WORLD
    folder, said = Path(comm.bcast(str(tmp_path))), []
    transport = spinning(comm)

    def say(dog, text):
        said.append(text)
        (folder / f"{len(said)} {transport.rank}").touch()

    monkeypatch.setattr(Watchdog, "say", say)
    with make_plan("all_reduce", np.ones(10), transport, algorithm="auto") as plan:
        for late in range(transport.size):
            said.clear()
            comm.Barrier()
            with Watchdog(transport, 0.1):
                while transport.rank == late and len(list(folder.glob("1 *"))) < transport.size - 1:
                    time.sleep(0.01)
                plan()
            comm.Barrier()
            for each in folder.glob(f"* {transport.rank}"):
                each.unlink()
            comm.Barrier()
            if transport.rank != late:
                assert f"barrier, receiving from rank {late} in all_reduce (shared)" in said[0]
    transport.free()


def test_notes_show_who_waited_for_whom():
    transport = spinning(MPI.COMM_WORLD)
    with make_plan("all_reduce", np.ones(10), transport, algorithm="auto") as plan:
        plan.notes = Notes()
        plan()
        ranks = dict(enumerate(transport.gather_values(plan.notes.runs[-1])))
    look = pytest.importorskip("dear_mpi.contrib.look")
    found = list(look.spans_of(transport.rank, ranks[transport.rank], starts_of(ranks)))
    others = set(ranks) - {transport.rank}
    assert {span.peer for span in found if span.kind in ("waiting", "transfer")} >= others
    assert not [span for span in found if span.kind == "either"]
    transport.free()


def test_messages_progress_while_ranks_meet():
    """Rank 0 has begun a large message and waits at a barrier, which the others reach after the message."""
    transport, comm = spinning(MPI.COMM_WORLD), MPI.COMM_WORLD
    large = np.full(1 << 21, transport.rank, np.int32)
    barrier(transport)
    requests = []
    if transport.rank == 0:
        requests = [comm.Isend(large, peer) for peer in range(1, transport.size)]
    else:
        comm.Recv(large, 0)
    barrier(transport)
    MPI.Request.Waitall(requests)
    assert (large == 0).all()
    with make_plan("all_reduce", large, transport, algorithm="ring") as first:
        first.start()
        assert (all_reduce(np.ones(3), transport, algorithm="auto") == transport.size).all()
        first.wait()
    transport.free()


@pytest.mark.mpi(min_size=2)
def test_votes_that_fail_leave_the_data_of_later_calls_right():
    """A vote is the barrier of a small call: ranks that mean different calls have stored data for it."""
    transport = spinning(MPI.COMM_WORLD)
    rank, size = transport.rank, transport.size

    def total(number, count=3):
        x = np.full(count, rank + number, np.float32)
        assert (all_reduce(x, transport, algorithm="auto") == size * (size - 1) / 2 + size * number).all(), number

    for number in range(40):
        total(number)
        total(number + 100, 4)
        if number % 3 == 0:
            with pytest.raises(MismatchError, match="count must be the same on all ranks"):
                total(0, 3 + (rank == number % size))
        for _ in range(number % 2):
            barrier(transport)
    transport.free()


@pytest.mark.parametrize("algorithm", ["auto", "shared"])
@pytest.mark.parametrize("op", ["sum", "average", "max"])
def test_the_same_small_call_again_and_again(op, algorithm):
    """The second call finds its plan, and its vote may be the barrier."""
    transport = spinning(MPI.COMM_WORLD)
    rank, size = transport.rank, transport.size
    combined = {"sum": np.sum, "average": np.mean, "max": np.max}[op]
    how = {"op": op, "algorithm": algorithm}
    for number in range(5):
        every = [np.arange(3.0 * size) + 10 * each + number for each in range(size)]
        total, own = combined(every, axis=0), slice(3 * rank, 3 * rank + 3)
        x, out = every[rank].copy(), np.full(3 * size, np.nan)
        assert_close(all_reduce(x, transport, **how), total)
        assert_close(all_reduce(every[rank], transport, out=out, **how), total)
        assert_close(reduce_scatter(every[rank].copy(), transport, **how), total[own])
        assert_close(reduce_scatter(every[rank], transport, out=out[own], **how), total[own])
        mine = np.where(np.arange(3 * size) // 3 == rank, every[rank], np.nan)
        parts = np.concatenate([each[3 * at : 3 * at + 3] for at, each in enumerate(every)])
        assert_close(all_gather(mine, transport, algorithm=algorithm), parts)
        assert_close(all_gather(every[rank][own].copy(), transport, out=out, algorithm=algorithm), parts)
        assert_close(broadcast(every[rank].copy(), transport, root=size - 1, algorithm=algorithm), every[-1])
        found = reduce(every[rank].copy(), transport, root=size - 1, **how)
        assert rank < size - 1 or np.allclose(found, total, rtol=1e-14)
    transport.free()


def assert_close(found, right):
    np.testing.assert_allclose(found, right, rtol=1e-14)
