"""What changes no bit of a sum: each cell of the last column of docs/algorithms.md."""

import re
from functools import cache

import numpy as np
import pytest

from dear_mpi.collectives import all_gather, all_reduce, programs, reduce_scatter
from dear_mpi.collectives.algorithms.registry import ALGORITHMS
from dear_mpi.collectives.program.verify import sums_alike
from dear_mpi.collectives.transports.loopback import run_loopback
from tests.test_docs import algorithm_rows

CELLS = {row[0]: row[4] for row in algorithm_rows() if len(row) == 5}
RANKS = (2, 3, 4, 5, 8)
COUNT = 960
CONTRIBUTIONS = np.random.default_rng(0).standard_normal((24, COUNT)).astype(np.float32)


@cache
def summed(name, ranks, count=COUNT, cut=0, *, halves=False, again=0, every=None):
    """The first elements of a sum, which is started anew for ``again``; ``every``: contributions of all ranks."""

    def body(transport):
        x = CONTRIBUTIONS[transport.rank] if every is None else added(transport.rank, ranks)
        x = x[:count].copy()
        for part in np.split(x, [cut]):
            if halves:
                reduce_scatter(part, transport, algorithm=name)
                all_gather(part, transport, algorithm=name)
            else:
                all_reduce(part, transport, algorithm=name)
        return x.tobytes()

    (found,) = set(run_loopback(ranks, body))
    return found


def added(rank, ranks):
    own = np.split(CONTRIBUTIONS, ranks)[rank]
    total = own[0].copy()
    for each in own[1:]:
        total += each
    return total


def test_each_algorithm_has_a_cell():
    assert set(CELLS) == set(ALGORITHMS)


@pytest.mark.parametrize("name", CELLS)
def test_run_and_schedule(name):
    """Schedules send both halves at once or apart, if the algorithm has halves."""
    assert re.match("all|run, schedule", CELLS[name])
    for ranks in RANKS:
        assert summed(name, ranks) == summed(name, ranks, again=1)
        if {"reduce_scatter", "all_gather"} <= set(ALGORITHMS[name]):
            assert summed(name, ranks) == summed(name, ranks, halves=True)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("what", ["size", "cut"])
def test_size_and_cut(name, what):
    """If the cell does not name it, some number of ranks above 4 shows a difference."""
    other = {"size": {"count": 400}, "cut": {"cut": 130}}[what]
    differs = set()
    for ranks in RANKS:
        found = summed(name, ranks, **other)
        if found != summed(name, ranks)[: len(found)]:
            differs.add(ranks)
    if CELLS[name] == "all":
        assert not differs
    elif CELLS[name].endswith("all where P is a power of two"):
        assert {5} <= differs <= {3, 5}
    else:
        assert {5, 8} <= differs


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("ranks", range(2, 10))
def test_programs_tell_it(name, ranks):
    """``explain`` and ``bench`` report it from the programs."""
    power = CELLS[name].endswith("power of two") and ranks & (ranks - 1) == 0
    for collective in {"all_reduce", "reduce_scatter", "reduce"} & set(ALGORITHMS[name]):
        alike = sums_alike(programs(name, collective, ranks, hosts=[0] * ranks))
        assert alike if CELLS[name] == "all" or power else not alike or ranks < 4


@pytest.mark.parametrize("name", CELLS)
def test_ranks(name):
    """The same contributions, shared out to other numbers of ranks that add up their own first."""
    assert len({summed(name, ranks, every=24) for ranks in (1, 2, 3, 4)}) > 1
