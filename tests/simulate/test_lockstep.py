"""Programs whose messages never meet take the times of ``dear_mpi/simulate/prices/lockstep.py``; others go there."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dear_mpi.collectives import ALGORITHMS
from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.program.network import Network
from dear_mpi.collectives.program.program import Program, Receive, Send, Step
from dear_mpi.simulate.prices.lockstep import Columns, StandIns, find_lockstep, find_stand_ins

PAIRS = [(name, collective) for name, row in ALGORITHMS.items() for collective in row if runner_of(name) == "messages"]
SHARES = np.array([0, 1, 3, 12_345])  # elements of a shard
LINKS = st.builds(
    Network,
    alpha=st.floats(1e-7, 1e-4),
    beta=st.floats(1e-11, 1e-8),
    gamma=st.sampled_from([0.0, 2.3e-10]),
    o=st.sampled_from([0.0, 1.7e-6]),
)


def hosted(inside, between, size, ranks):
    """A network of so many ranks on each host; without hosts if that is None."""
    if ranks is None:
        return inside
    hosts = tuple(rank // ranks for rank in range(size))
    return Network(inside.alpha, inside.beta, inside.gamma, inside.o, hosts, between)


@pytest.mark.parametrize(("name", "collective"), PAIRS)
@settings(max_examples=8)
@given(inside=LINKS, between=LINKS, size=st.sampled_from([1, 2, 3, 5, 8, 12]), ranks=st.sampled_from([None, 2, 4]))
def test_it_gives_the_times_of_columns(name, collective, inside, between, size, ranks):
    network = hosted(inside, between, size, ranks)
    programs = find_stand_ins(ALGORITHMS[name][collective], size, network.hosts, 2)
    lockstep = find_lockstep(programs, network)
    if lockstep is not None:
        found, expected = (
            lockstep.seconds(network, size * SHARES, 4),
            Columns(programs).seconds(network, size * SHARES, 4),
        )
        assert found == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("ring", (1, 2, 3, 7, 64)),
        ("recursive_doubling", (1, 2, 3, 7, 64)),
        ("binomial", (1, 2, 3, 7, 64)),
        ("rabenseifner", (1, 2, 8, 64)),
    ],
)
def test_rings_exchanges_and_trees_are_in_lockstep(name, sizes):
    for size in sizes:
        for function in ALGORITHMS[name].values():
            assert find_lockstep(find_stand_ins(function, size), Network()), size


def test_a_ring_through_blocks_of_ranks_is_in_lockstep():
    """One rank of each host sends to another host, and one receives from there; of an exchange, all do."""
    network = hosted(Network(), Network(), 16, 4)
    ranks = [find_stand_ins(ALGORITHMS[name]["all_reduce"], 16, network.hosts) for name in ("ring", "rabenseifner")]
    assert [find_lockstep(each, network) is None for each in ranks] == [False, True]


def test_equal_rounds_are_one():
    """Of a ring on thousands of ranks there are two: with sums, and without."""
    ranks = find_stand_ins(ALGORITHMS["ring"]["all_reduce"], 512)
    assert [each.times for each in find_lockstep(ranks, Network()).rounds] == [511, 511]


def send(to, *chunks):
    return Send(to, range(chunks[0], chunks[-1] + 1))


def receive(source, chunk, combine=False):
    return Receive(source, range(chunk, chunk + 1), combine)


@pytest.mark.parametrize(
    "steps",
    [
        ([Step((send(1, 0), send(2, 0)))], [Step((), (receive(0, 0),))], [Step((), (receive(0, 0),))]),
        ([Step((send(2, 0),))], [Step((send(2, 1),))], [Step((), (receive(0, 0), receive(1, 1)))]),
        ([Step((send(1, 0),)), Step()], [Step(), Step((), (receive(0, 0),))], [Step(), Step()]),
        ([Step((send(1, 0),))], [Step(), Step((), (receive(0, 0),))], []),
        ([Step((send(1, 0),))], [Step((), (receive(2, 0),))], [Step()]),
    ],
    ids=["two sends", "two receives", "ends in two steps", "unequal lengths", "no sender"],
)
def test_what_could_meet_or_never_ends_is_not_in_lockstep(steps):
    programs = tuple(Program("all_gather", rank, 3, tuple(each)) for rank, each in enumerate(steps))
    assert find_lockstep(StandIns(programs, 3), Network()) is None
