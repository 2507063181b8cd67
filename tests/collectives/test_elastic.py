"""Transports outlive ranks: survivors sum on, from a state that all of them have."""

import random
import re

import numpy as np
import pytest

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.program.errors import AgreedError, RanksLost, TransportError, lost_in
from dear_mpi.collectives.transports.elastic import Elastic, present
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.collectives.transports.transport import StagedTransport, Wrapper
from tests.markdown import ROOT

ITERATIONS, COUNT = 8, 40


class Death(Exception):
    """Plays a kill."""


class Doomed(Wrapper):
    """Raise Death in the ``left``-th call that could meet other ranks, whatever it is."""

    def __init__(self, below, left, names=("Start", "Wait", "Test", "gather_values", "agree", "shrink", "commit")):
        super().__init__(below)
        self.left, self.names = left, names

    def count(self):
        self.left[0] -= 1
        if self.left[0] == 0:
            raise Death("as planned")

    def __getattr__(self, name):
        found = getattr(self.below, name)
        if name in ("send_init", "recv_init"):
            return lambda *given: Doomed(found(*given), self.left, self.names)
        if name == "shrink":
            return lambda: self.noted(lambda: Doomed(found(), self.left, self.names))
        return (lambda *given, **how: self.noted(lambda: found(*given, **how))) if name in self.names else found

    def noted(self, call):
        self.count()
        return call()


def sum_up(transport):
    """Add gradients of all members in each iteration; return the result and the log of members."""
    kept, log, me = {0: np.zeros(COUNT)}, [], transport.members[transport.rank]
    while True:
        try:
            x = np.zeros(COUNT)
            with make_plan("all_reduce", x, transport) as plan:
                while (now := max(kept)) < ITERATIONS:
                    x[...] = np.random.default_rng([me, now]).standard_normal(COUNT)
                    plan()
                    log.append(transport.members)
                    kept = {now: kept[now], now + 1: kept[now] + x}
            transport.commit()
            return kept[ITERATIONS], log
        except CollectiveErrors as error:
            if lost_in(error) is None:
                raise
        mask = transport.repair(sum(1 << each for each in kept))
        low = max(each for each in kept if mask >> each & 1)
        kept, log = {low: kept[low]}, log[:low]


CollectiveErrors = (TransportError, AgreedError)


def replayed(log):
    """The same sums, on a transport without deaths for each of the iterations."""
    found = np.zeros(COUNT)
    for now, members in enumerate(log):

        def one(transport, now=now, members=members):
            x = np.random.default_rng([members[transport.rank], now]).standard_normal(COUNT)
            with make_plan("all_reduce", x, transport) as plan:
                plan()
            return x

        found = found + run_loopback(len(members), one)[0]
    return found


@pytest.mark.parametrize("seed", range(60))
def test_survivors_have_the_sums_of_the_log(seed):
    rng = random.Random(seed)
    ranks, deaths = rng.randint(3, 5), rng.choice((1, 1, 2))
    dead = {rank: [rng.randint(1, 400)] for rank in rng.sample(range(ranks), deaths)}
    if seed % 5 == 0:  # at once
        dead = dict.fromkeys(dead, None) | {rank: [100] for rank in dead}

    def run(transport):
        if transport.rank in dead:
            transport.below = Doomed(transport.below, dead[transport.rank])
        return sum_up(transport)

    found = run_loopback(ranks, run, elastic=True)
    fallen = [rank for rank, left in dead.items() if left[0] <= 0]
    assert len(found) == ranks - len(fallen)
    for total, log in found:
        assert log == found[0][1]
        assert total.tobytes() == replayed(log).tobytes()
        assert not {*fallen} & {*log[-1]} or len(log) == ITERATIONS  # a rank may die after the last sum


def test_a_dead_rank_is_named():
    def run(transport):
        if transport.rank == 1:
            raise Death("as planned")
        with pytest.raises(TransportError) as caught:
            transport.gather_values(0)
        lost = lost_in(caught.value)
        assert lost is not None
        assert transport.repair() == 0
        return transport.members, transport.rank, transport.size, lost.ranks, str(lost)

    first, second = run_loopback(3, run, elastic=True)
    assert first[:3] == ((0, 2), 0, 2)
    assert second[:3] == ((0, 2), 1, 2)
    named = [each for each in (first, second) if each[3]]
    assert named
    assert all(each[3:] == ((1,), "rank 1 died (rank 1: Death: as planned)") for each in named)


def test_other_errors_are_no_deaths():
    """All ranks raise an agreed error; if messages are lost though all live, a repetition would not help."""
    with pytest.raises(AgreedError, match="all ranks are alive"):
        run_loopback(3, lambda transport: transport.repair(), elastic=True)


def test_the_last_error_is_raised_if_all_die():
    def run(transport):
        raise Death(transport.rank)

    with pytest.raises(Death):
        run_loopback(3, run, elastic=True)


def test_a_loss_that_nobody_repairs_ends_the_job():
    def run(transport):
        if transport.rank == 0:
            raise Death("as planned")
        return transport.gather_values(0)

    with pytest.raises(RanksLost):
        run_loopback(3, run, elastic=True)


def test_calls_are_completed_by_survivors():
    def run(transport):
        calls = []

        def call():
            calls.append(transport.size)
            if transport.rank == 1 and transport.size == 3:
                raise Death("as planned")
            return transport.gather_values(transport.members[transport.rank])

        return transport.complete(call), calls

    assert run_loopback(3, run, elastic=True) == [([0, 2], [3, 2])] * 2


def test_elastic_transports_are_found_below_wrappers():
    def run(transport):
        assert present(StagedTransport(transport)) is transport
        return present(transport.below)

    assert run_loopback(1, run, elastic=True) == [None]
    assert isinstance(run_loopback(1, lambda each: each, elastic=True)[0], Elastic)


def test_requests_are_awaited_one_by_one():
    """Over TCP, Open MPI's Waitall without statuses loses the error of a death, and sums are wrong."""
    sources = [path for room in ("transports", "plans") for path in (ROOT / "collectives" / room).rglob("*.py")]
    assert [str(path) for path in sources if re.search(r"\.(Wait|Test)(all|any|some)\(", path.read_text())] == []
