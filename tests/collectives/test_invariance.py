"""What changes no bit of a sum: each cell of the last column of docs/algorithms.md."""

from functools import cache

import numpy as np
import pytest

from dear_mpi.collectives import all_gather, all_reduce, programs, reduce_scatter
from dear_mpi.collectives.algorithms.registry import ALGORITHMS
from dear_mpi.collectives.program.verify import sums_alike
from dear_mpi.collectives.transports.loopback import run_loopback
from tests.test_docs import algorithm_rows

CELLS = {row[0]: row[4] for row in algorithm_rows() if len(row) == 5}
RANKS = (1, 2, 3, 4, 5, 8)
COUNT, EVERY = 960, 60  # elements, and contributions: a multiple of 1 to 5
CONTRIBUTIONS = np.random.default_rng(0).standard_normal((EVERY, COUNT)).astype(np.float32)
OTHERWISE = {"run": {"again": 1}, "schedule": {"halves": True}, "size": {"count": 400}, "cut": {"cut": 130}}
ALL, FEW, POWERS = "all", "run, schedule", "run, schedule; all where P is a power of two"


@cache
def summed(name, ranks, count=COUNT, cut=0, *, halves=False, again=0, every=False):
    """The first elements of a sum, which is started anew for ``again``; ``every``: contributions of all ranks."""
    halves = halves and {"reduce_scatter", "all_gather"} <= set(ALGORITHMS[name])  # or it is always started whole

    def body(transport):
        x = added(transport.rank, ranks) if every else CONTRIBUTIONS[transport.rank]
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


def promised(name, what):
    """The numbers of ranks on which the page promises equal bits."""
    if CELLS[name] == ALL or what in FEW:
        return {*RANKS}
    return {ranks for ranks in RANKS if ranks & (ranks - 1) == 0} if CELLS[name] == POWERS else set()


def test_each_algorithm_has_a_cell():
    assert set(CELLS) == set(ALGORITHMS)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("what", OTHERWISE)
def test_the_bits_of_a_cell(name, what):
    """Equal where the cell has the word; where not, 5 ranks show a difference, and 8 unless it has powers of two."""
    kept = {ranks for ranks in RANKS if summed(name, ranks).startswith(summed(name, ranks, **OTHERWISE[what]))}
    assert promised(name, what) <= kept
    assert not {5, 8} & kept - promised(name, what)


@pytest.mark.parametrize("name", CELLS)
def test_no_cell_has_the_number_of_ranks(name):
    """The same contributions, shared out to other numbers of ranks that add up their own first."""
    assert len({summed(name, ranks, every=True) for ranks in range(1, 6)}) > 1


@pytest.mark.parametrize("name", CELLS)
def test_programs_tell_the_cell(name):
    """``explain`` and ``bench`` report it from them: one source, of which the page is a copy."""
    for collective in {"all_reduce", "reduce_scatter", "reduce"} & set(ALGORITHMS[name]):
        alike = {size for size in range(4, 10) if sums_alike(programs(name, collective, size, hosts=[0] * size))}
        assert CELLS[name] == {6: ALL, 2: POWERS, 0: FEW}[len(alike)]
        assert len(alike) != 2 or alike == {4, 8}
