"""Prices for many sizes at once are those that ``cost`` finds one by one."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dear_mpi.collectives import ALGORITHMS, programs
from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.program import cost as cost_model
from dear_mpi.collectives.program.cost import cost
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.network import Network
from dear_mpi.collectives.program.program import Program, Receive, Send, Step
from dear_mpi.simulate.prices import lockstep as module
from dear_mpi.simulate.prices.lockstep import Columns, ManySizes, StandIns, find_stand_ins, outline
from dear_mpi.simulate.prices.prices import Prices

PAIRS = [(name, collective) for name, row in ALGORITHMS.items() for collective in row if runner_of(name) == "messages"]
SIZES = [1, 2, 3, 4, 5, 8, 12, 17]
SEGMENT = 40_000
SHARES = np.array([0, 1, 1_000, 1_001, 12_345])  # elements of a shard: the third one leads, and parts it evenly
EXACT = 1e-12


def figures(most):
    return st.one_of(st.just(0.0), st.floats(most / 1000, most))


LINKS = st.builds(Network, alpha=figures(1e-4), beta=figures(1e-8), gamma=figures(1e-9), o=figures(1e-5))


def on_hosts(network, between, size, ranks):
    """The network with so many ranks on each host."""
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


def same_as_cost(name, collective, network, size, shares=SHARES):
    found = Prices(network, size, SEGMENT).seconds(name, collective, 4 * size * shares)
    expected = list(one_by_one(name, collective, network, size, shares))
    assert found == pytest.approx(expected, rel=EXACT, abs=0), (name, collective, size)


@pytest.mark.parametrize(("name", "collective"), PAIRS)
@settings(max_examples=3)
@given(network=LINKS, size=st.sampled_from(SIZES))
def test_prices_are_what_cost_says(name, collective, network, size):
    same_as_cost(name, collective, network, size)


@pytest.mark.parametrize(("name", "collective"), PAIRS)
@settings(max_examples=3)
@given(network=LINKS, between=LINKS, size=st.sampled_from(SIZES), ranks=st.integers(1, 5))
def test_prices_are_what_cost_says_where_ranks_share_the_ports_of_hosts(
    name, collective, network, between, size, ranks
):
    same_as_cost(name, collective, on_hosts(network, between, size, ranks), size)


@pytest.mark.parametrize(("name", "collective"), PAIRS)
@settings(max_examples=3)
@given(network=LINKS, between=LINKS, size=st.sampled_from(SIZES), ranks=st.integers(1, 5))
def test_columns_are_what_cost_says_with_and_without_stand_ins(name, collective, network, between, size, ranks):
    function, network = ALGORITHMS[name][collective], on_hosts(network, between, size, ranks)
    written = tuple(programs(name, collective, size, hosts=network.hosts, rates=network.rates))
    expected = [cost(written, int(share) * size, 4, network).time_s for share in SHARES]
    for replayed in (StandIns(written, size), find_stand_ins(function, size, network.hosts)):
        found = Columns(replayed).seconds(network, SHARES * size, 4)
        assert found == pytest.approx(expected, rel=EXACT, abs=0), (name, collective, size)


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


@pytest.mark.parametrize("seed", range(6))
def test_columns_are_what_cost_says_for_any_programs(seed):
    rng = Random(seed)
    for _ in range(60):
        written = any_programs(rng)
        size = len(written)
        network, shares = any_network(rng, size), np.array([0, 1, *(int(10 ** rng.uniform(0, 6)) for _ in range(6))])
        expected = [cost(written, int(share) * size, 4, network).time_s for share in shares]
        found = Columns(StandIns(tuple(written), size)).seconds(network, shares * size, 4)
        assert found == pytest.approx(expected, rel=EXACT, abs=0)


# Rank 0 sends to rank 1 twice, and takes 10 s for each. Where the first is over before that, its flow pauses: then
# another one begins, or has the port for itself. Ranks 2 and 3 are on one host, and need no time of their processors.
FIRST, SECOND, LONG = range(1), range(1, 2), range(5)
LATE = [Step((Send(3, range(2)),)), Step((Send(1, SECOND),))], [Step((), (Receive(2, range(2)),))]
EARLY = [Step((Send(1, LONG),))], []


@pytest.mark.parametrize(("others", "chunks", "shares"), [(LATE, SECOND, [1, 150]), (EARLY, LONG, [40, 100])])
def test_a_flow_may_pause_at_some_sizes_alone(others, chunks, shares):
    sends = [Step((Send(1, FIRST), Send(1, SECOND)))]
    receives = [Step((), (Receive(0, FIRST), Receive(0, SECOND), Receive(2, chunks)))]
    steps = [sends, receives, *others, []]
    written = tuple(Program("all_reduce", rank, 5, tuple(each)) for rank, each in enumerate(steps))
    network = Network(beta=0.1, hosts=(0, 1, 2, 2, 3), between=Network(beta=0.1, o=10.0))
    expected = [cost(written, 5 * share, 1, network).time_s for share in shares]
    assert Columns(StandIns(written, 5)).seconds(network, 5 * np.array(shares), 1) == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize(("name", "collective"), PAIRS)
@pytest.mark.parametrize("per_host", [None, 2, 3])
def test_ranks_that_stand_for_others_do_the_same(name, collective, per_host):
    """A look at a few ranks gives the answer of a look at all of them."""
    for size in [*SIZES, 6, 9, 16, 18]:
        hosts = per_host and [rank // per_host for rank in range(size)]
        few = len(find_stand_ins(ALGORITHMS[name][collective], size, hosts, 3, thorough=0).programs)
        written = programs(name, collective, size, hosts=hosts, pieces=3)
        assert all(outline(written[rank]) == outline(written[rank % few]) for rank in range(size)), size
        assert not per_host or few == size or few % per_host == 0


@pytest.mark.parametrize(
    ("name", "few"), [("ring", 1), ("bidirectional", 1), ("pairwise", 1), ("ordered", 1), ("torus", 4), ("bruck", 12)]
)
def test_stand_ins_cost_what_all_ranks_do(name, few):
    network = Network(alpha=3.1e-6, beta=1.7e-9, gamma=2.3e-10, o=0.9e-6)
    for collective, function in ALGORITHMS[name].items():
        ranks = find_stand_ins(function, 12, thorough=0)
        assert len(ranks.programs) == few
        found = Columns(ranks).seconds(network, 12 * SHARES[2:], 4)
        assert found == pytest.approx(list(one_by_one(name, collective, network, 12, SHARES[2:])), rel=EXACT)


@pytest.mark.parametrize("name", ["ring", "pairwise", "hierarchical"])
def test_a_host_stands_for_all_hosts(name):
    between = Network(alpha=2.9e-5, beta=1.1e-8, o=1.3e-6)
    network = on_hosts(Network(alpha=3.1e-6, beta=1.7e-9, gamma=2.3e-10, o=0.9e-6), between, 12, 3)
    for collective, function in ALGORITHMS[name].items():
        ranks = find_stand_ins(function, 12, network.hosts, thorough=0)
        assert len(ranks.programs) == 3
        found = Columns(ranks).seconds(network, 12 * SHARES, 4)
        assert found == pytest.approx(list(one_by_one(name, collective, network, 12, SHARES)), rel=EXACT)


def test_few_programs_are_written_for_4096_ranks(monkeypatch):
    """Of a ring, whose time has a closed form; 33 million messages are not replayed."""
    written, write = [], module.write_program
    monkeypatch.setattr(module, "write_program", lambda *args, **how: written.append(args) or write(*args, **how))
    size, shares, network = 4096, np.arange(1, 401) * 100, Network(alpha=1e-6, beta=1e-9, gamma=1e-10, o=1e-7)
    prices = Prices(network, size, SEGMENT)
    found = prices.seconds("ring", "reduce_scatter", 4 * size * shares)
    step_s = 2 * network.o + network.alpha + 4 * shares * (network.beta + network.gamma)
    assert found == pytest.approx((size - 1) * step_s)
    (replay,) = prices.replays.values()
    assert len(replay.ranks.programs) == 1
    assert len(written) <= 8
    assert len(ManySizes(replay.ranks, network, size * shares, 4).ranks) == 1


def test_one_order_of_events_does_for_sizes_that_have_it(monkeypatch):
    """One replay for all sizes of a symmetric program; and each size goes through ``cost`` in no replay."""
    made = []
    init = ManySizes.__init__
    monkeypatch.setattr(ManySizes, "__init__", lambda *args: made.append(init(*args)))
    monkeypatch.delattr(cost_model, "Simulation")
    ranks = find_stand_ins(ALGORITHMS["rabenseifner"]["all_reduce"], 16)
    Columns(ranks).seconds(Network(alpha=1e-6, beta=1e-9), 16 * np.arange(1, 99), 4)
    assert len(made) == 1


def test_prices_are_kept(monkeypatch):
    prices = Prices(Network(alpha=1e-6, beta=1e-9), 4, SEGMENT)
    first = prices.seconds("ring", "all_reduce", [16, 1600, 16])
    assert first[0] == first[2]
    monkeypatch.delattr(Prices, "replayed")
    assert prices.seconds("ring", "all_reduce", [1600, 16]).tolist() == first[[1, 0]].tolist()
    assert prices.seconds("ring", "all_reduce", []).shape == (0,)


def test_trees_send_as_many_pieces_as_the_buffer_has_segments():
    prices = Prices(Network(beta=1e-9), 4, segment_bytes=1600)
    prices.seconds("double_tree", "all_reduce", [1600, 1616, 16000])
    assert [pieces for _, _, pieces in prices.replays] == [1, 10]  # with two, each tree has one, as with one


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("ring", "all_reduce", [17]), "divisible by 4 ranks x 4 bytes, not 17"),
        (("rang", "all_reduce", [16]), "rang"),
        (("shared", "all_reduce", [16]), "'shared' sends no messages"),
        (("swing", "broadcast", [16]), "serves"),
    ],
)
def test_what_has_no_price_is_refused(asked, expected):
    prices = Prices(Network(), ranks=4, segment_bytes=SEGMENT)
    with pytest.raises(ValueError, match=expected):
        prices.seconds(*asked)


def test_too_much_is_refused(monkeypatch):
    monkeypatch.setattr(module, "MOST_TRANSFERS", 1000)
    with pytest.raises(ValueError, match="the first 7 of 70 ranks have more than 1000 steps and messages"):
        find_stand_ins(ALGORITHMS["naive"]["all_reduce"], 70)


def test_programs_that_block_each_other_are_refused():
    waits = Program("all_gather", 0, 1, (Step((), (Receive(0, range(1)),)),))
    with pytest.raises(ProgramError, match="the programs deadlock"):
        Columns(StandIns((waits,), 1)).seconds(Network(), np.array([1]), 4)
