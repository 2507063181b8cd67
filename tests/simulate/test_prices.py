"""Prices are those that ``cost`` finds: in lockstep, with ranks that stand for others, and for many sizes."""

from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dear_mpi.collectives import ALGORITHMS, programs
from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.program import Program, Receive, Send, Step
from dear_mpi.simulate import prices as module
from dear_mpi.simulate.prices import Prices, StandIns, find_lockstep, find_stand_ins, outline

PAIRS = [(name, collective) for name, row in ALGORITHMS.items() for collective in row if runner_of(name) == "messages"]
SIZES = [1, 2, 3, 4, 5, 8, 12]
SEGMENT = 40_000
SHARES = np.array([0, 1, 1_001])  # elements of a shard
EXACT = 1e-12


def figures(most):
    return st.one_of(st.just(0.0), st.floats(most / 1000, most))


LINKS = st.builds(Network, alpha=figures(1e-4), beta=figures(1e-8), gamma=figures(1e-9), o=figures(1e-5))


def on_hosts(network, between, size, ranks):
    """The network with so many ranks on each host; without hosts if that is None."""
    if ranks is None:
        return network
    hosts = tuple(rank // ranks for rank in range(size))
    return Network(network.alpha, network.beta, network.gamma, network.o, hosts, between)


def one_by_one(name, collective, network, size, shares):
    """What ``cost`` says, each time for programs of as many pieces as the buffer has segments."""
    for share in shares:
        count = int(share) * size
        written = programs(
            name, collective, size, hosts=network.hosts, rates=network.rates, pieces=-(-4 * count // SEGMENT)
        )
        yield cost(written, count, 4, network).time_s


@pytest.mark.parametrize(("name", "collective"), PAIRS)
@settings(max_examples=3)
@given(network=LINKS, between=LINKS, size=st.sampled_from([*SIZES, 6]), ranks=st.sampled_from([None, 1, 2, 3, 4, 5]))
def test_prices_and_replays_are_what_cost_says(name, collective, network, between, size, ranks):
    """Of all ranks, and of those that stand for all, event by event and in lockstep."""
    network, function = on_hosts(network, between, size, ranks), ALGORITHMS[name][collective]
    found = Prices(network, size, SEGMENT).seconds(name, collective, 4 * size * SHARES)
    assert found == pytest.approx(list(one_by_one(name, collective, network, size, SHARES)), rel=EXACT, abs=0), size
    written = tuple(programs(name, collective, size, hosts=network.hosts, rates=network.rates, pieces=2))
    few = find_stand_ins(function, size, network.hosts, 2, rates=network.rates)
    expected = [cost(written, int(share) * size, 4, network).time_s for share in SHARES]
    for replayed in (StandIns(written, size), few, find_lockstep(few, network)):
        if replayed is not None:
            assert replayed.seconds(network, SHARES * size, 4) == pytest.approx(expected, rel=EXACT, abs=0), size


def any_programs(rng):
    """Of 2 to 5 ranks, in whose steps any of them send any chunks to any others, also several times."""
    size = rng.randint(2, 5)
    steps = [[Step() for _ in range(size)] for _ in range(rng.randint(1, 7))]
    for row in [row for row in steps for _ in range(rng.randint(1, 12))]:
        source, target = rng.sample(range(size), 2)
        chunks = range(rng.randrange(size), size)[: rng.randint(1, size)]
        row[source] = Step((*row[source].sends, Send(target, chunks)), row[source].receives)
        receive = Receive(source, chunks, combine=rng.random() < 0.5)
        row[target] = Step(row[target].sends, (*row[target].receives, receive))
    return [Program("all_reduce", rank, size, tuple(row[rank] for row in steps)) for rank in range(size)]


def any_network(rng, size):
    """Without or with hosts of up to three ranks, and often with costs of nothing."""
    most, ranks = (1e-4, 1e-8, 1e-9, 1e-5), rng.choice([1, 2, 3])
    inside, between = (Network(*(rng.choice([0.0, rng.uniform(each / 1000, each)]) for each in most)) for _ in "12")
    return rng.choice([inside, on_hosts(inside, between, size, ranks)])


def test_replays_agree_for_any_programs():
    rng = Random(0)
    for _ in range(80):
        written = any_programs(rng)
        size = len(written)
        network, shares = any_network(rng, size), np.array([0, 1, *(int(10 ** rng.uniform(0, 6)) for _ in range(3))])
        expected = [cost(written, int(share) * size, 4, network).time_s for share in shares]
        ranks = StandIns(tuple(written), size)
        for replayed in (ranks, find_lockstep(ranks, network)):
            assert replayed is None or replayed.seconds(network, shares * size, 4) == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize(("name", "collective"), PAIRS)
@pytest.mark.parametrize("per_host", [None, 2, 3])
def test_ranks_that_stand_for_others_do_the_same(name, collective, per_host):
    """A look at a few ranks gives the answer of a look at all of them."""
    for size in (1, 3, 4, 6, 12, 18):
        hosts = per_host and [rank // per_host for rank in range(size)]
        few = len(find_stand_ins(ALGORITHMS[name][collective], size, hosts, 3, thorough=0).programs)
        written = programs(name, collective, size, hosts=hosts, pieces=3)
        assert all(outline(written[rank]) == outline(written[rank % few]) for rank in range(size)), size
        assert not per_host or few == size or few % per_host == 0


def test_rings_exchanges_and_trees_are_in_lockstep():
    """Through blocks of ranks only a ring: one rank of each host sends to another host, and one receives from there."""
    for name, size in product(("ring", "recursive_doubling", "binomial"), (1, 2, 3, 7, 64)):
        for function in ALGORITHMS[name].values():
            assert find_lockstep(find_stand_ins(function, size), Network()), (name, size)
    network = on_hosts(Network(), Network(), 16, 4)
    ranks = [find_stand_ins(ALGORITHMS[name]["all_reduce"], 16, network.hosts) for name in ("ring", "rabenseifner")]
    assert [find_lockstep(each, network) is None for each in ranks] == [False, True]


def send(to, *chunks):
    return Send(to, range(chunks[0], chunks[-1] + 1))


def receive(source, chunk):
    return Receive(source, range(chunk, chunk + 1), combine=False)


@pytest.mark.parametrize("steps", [
    ([Step((send(1, 0), send(2, 0)))], [Step((), (receive(0, 0),))], [Step((), (receive(0, 0),))]),
    ([Step((send(2, 0),))], [Step((send(2, 1),))], [Step((), (receive(0, 0), receive(1, 1)))]),
    ([Step((send(1, 0),)), Step()], [Step(), Step((), (receive(0, 0),))], [Step(), Step()]),
    ([Step((send(1, 0),))], [Step(), Step((), (receive(0, 0),))], []),
    ([Step((send(1, 0),))], [Step((), (receive(2, 0),))], [Step()]),
], ids=["two sends", "two receives", "ends in two steps", "unequal lengths", "no sender"])  # fmt: skip
def test_what_could_meet_or_never_ends_is_not_in_lockstep(steps):
    written = tuple(Program("all_gather", rank, 3, tuple(each)) for rank, each in enumerate(steps))
    assert find_lockstep(StandIns(written, 3), Network()) is None


@pytest.mark.parametrize(("asked", "expected"), [
    (("ring", "all_reduce", [17]), "divisible by 4 ranks x 4 bytes, not 17"),
    (("rang", "all_reduce", [16]), "rang"),
    (("shared", "all_reduce", [16]), "'shared' sends no messages"),
    (("bruck", "broadcast", [16]), "serves"),
])  # fmt: skip
def test_what_has_no_price_is_refused(asked, expected):
    prices = Prices(Network(), ranks=4, segment_bytes=SEGMENT)
    with pytest.raises(ValueError, match=expected):
        prices.seconds(*asked)


def test_too_much_and_deadlocks_are_refused(monkeypatch):
    monkeypatch.setattr(module, "MOST_TRANSFERS", 1000)
    with pytest.raises(ValueError, match="the first 7 of 70 ranks have more than 1000 steps and messages"):
        find_stand_ins(ALGORITHMS["naive"]["all_reduce"], 70)
    waits = Program("all_gather", 0, 2, (Step((), (Receive(1, range(1)),)),))
    with pytest.raises(ProgramError, match="the programs deadlock"):
        StandIns((waits,), 2).seconds(Network(), np.array([2]), 4)
