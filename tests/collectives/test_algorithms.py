"""Algorithms are proven before anything runs: every algorithm and collective, for many sizes up to 256.

With EVERY_SIZE=1 (``make proofs``) for all sizes up to 64, and all collectives for 256.
"""

import math
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dear_mpi.collectives import ALGORITHMS, programs, verify
from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.plans.runners import check_algorithm
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.collectives.program.hosts import BETWEEN, INSIDE, NEXT, served, servers
from dear_mpi.collectives.program.verify import keeps_rank_order, run
from dear_mpi.collectives.transports.loopback import run_loopback

HIERARCHICAL = ALGORITHMS["hierarchical"]
EVERY_SIZE = bool(os.environ.get("EVERY_SIZE"))
# What runs in shared memory is proved by test_phases.py.
PAIRS = [(name, collective) for name, row in ALGORITHMS.items() for collective in row if runner_of(name) == "messages"]


@pytest.mark.parametrize(("name", "collective"), PAIRS)
def test_proved(name, collective):
    for size in range(1, 65) if EVERY_SIZE else [*range(1, 10), 12, 16, 17, 33, 64]:
        verify(programs(name, collective, size))


@settings(max_examples=60)
@given(hosts=st.lists(st.integers(0, 4), min_size=1, max_size=16), collective=st.sampled_from(list(HIERARCHICAL)))
def test_hierarchical_rings_are_proved_for_any_ranks_on_any_hosts(hosts, collective):
    verify(programs("hierarchical", collective, len(hosts), hosts=hosts))


@settings(max_examples=40)
@given(hosts=st.lists(st.integers(0, 4), min_size=1, max_size=10))
def test_a_level_brings_together_what_its_name_says(hosts):
    """Inside hosts each rank gets its host's sums of what it serves; between hosts all of them go to their owners. One
    level after the other is a whole all_gather, which is proved."""
    size, bit = len(hosts), [1 << rank for rank in range(len(hosts))]
    sums = run(programs(INSIDE, "reduce_scatter", size, hosts=hosts))
    swapped = run(programs(BETWEEN, "all_to_all", size, hosts=hosts))
    for rank in range(size):
        home = sum(bit[other] for other in range(size) if hosts[other] == hosts[rank])
        assert all(sums[rank][chunk] == home for chunk in served(rank, hosts))
        assert all(swapped[rank][server] == bit[server] | bit[rank] << size for server in servers(rank, hosts))
        assert len({hosts[server] for server in servers(rank, hosts)}) == len(servers(rank, hosts)) == len({*hosts})
    phases = (programs(level, "all_gather", size, hosts=hosts) for level in (BETWEEN, INSIDE))
    steps = [first.steps + then.steps for first, then in zip(*phases, strict=True)]
    assert steps == [program.steps for program in programs("hierarchical", "all_gather", size, hosts=hosts)]


def test_a_level_is_no_algorithm():
    for name in (INSIDE, BETWEEN, NEXT):
        with pytest.raises(ValueError, match="is for stages of routes, and leaves partial results"):
            run_loopback(2, lambda transport, name=name: check_algorithm(name, transport, "all_gather"))


@pytest.mark.parametrize("name", ["naive", "ordered", "binomial", "recursive_doubling"])
def test_these_combine_in_rank_order(name):
    """What a bitwise result that depends on nothing but the numbers, or an op that does not commute, needs."""
    for collective in ALGORITHMS[name]:
        for size in (1, 2, 3, 5, 8, 13):
            assert keeps_rank_order(programs(name, collective, size))
    assert not keeps_rank_order(programs("ring", "reduce_scatter", 3))


FEW = [("ring", "all_reduce"), ("rabenseifner", "all_gather"), ("hierarchical", "reduce_scatter")]


@pytest.mark.parametrize(("name", "collective"), PAIRS if EVERY_SIZE else FEW)
def test_256_ranks_are_proved(name, collective):
    verify(programs(name, collective, 256))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 17, 64])
def test_ring_costs_what_the_closed_form_says(size):
    network = Network(alpha=1e-5, beta=1e-9, gamma=2e-10)
    nbytes = 4000 * size
    share = nbytes / size
    reduce_s = (size - 1) * (network.alpha + share * (network.beta + network.gamma))
    gather_s = (size - 1) * (network.alpha + share * network.beta)
    predicted = {"reduce_scatter": reduce_s, "all_gather": gather_s, "all_reduce": reduce_s + gather_s}
    for collective, expected in predicted.items():
        found = cost(programs("ring", collective, size), nbytes // 4, 4, network)
        assert found.time_s == pytest.approx(expected)
        steps = (size - 1) * (2 if collective == "all_reduce" else 1)
        assert set(found.messages) == {steps}
        assert set(found.nbytes) == {steps * nbytes // size}


def lg(size):
    return math.ceil(math.log2(size))


# Steps of the all-gathers that send the least bytes that are possible.
STEPS = {
    "ring": lambda size: size - 1,
    "pairwise": lambda size: size - 1,
    "bidirectional": lambda size: size // 2,
    "bruck": lg,
    "hierarchical": lambda size: size - 1,  # on one host
    "ordered": lambda size: min(1, size - 1),
}
POWERS_OF_TWO = STEPS | {"rabenseifner": lg}
SIZES = [1, 2, 3, 4, 5, 8, 17, 64]
STEPPED = [(name, size) for name in POWERS_OF_TWO for size in SIZES if name in STEPS or size & size - 1 == 0]


@pytest.mark.parametrize(("name", "size"), STEPPED)
def test_all_gathers_cost_what_their_closed_forms_say(name, size):
    """Their mirror images send as many messages and bytes, and combine (P-1)/P n."""
    network, share = Network(alpha=1e-5, beta=1e-9, gamma=1e-10), 4000
    expected_s = POWERS_OF_TWO[name](size) * network.alpha + (size - 1) * share * network.beta
    found = cost(programs(name, "all_gather", size), 1000 * size, 4, network)
    assert found.time_s == pytest.approx(expected_s)
    assert set(found.nbytes) == {(size - 1) * share}
    mirror = cost(programs(name, "reduce_scatter", size), 1000 * size, 4, network)
    assert set(mirror.nbytes) == set(found.nbytes)
    assert mirror.time_s == pytest.approx(expected_s + (size - 1) * share * network.gamma)


@pytest.mark.parametrize("size", SIZES)
def test_all_to_alls_cost_what_their_closed_forms_say(size):
    """Two swaps in a step of the pairwise one share a port; in the naive one all messages but its own miss a rank's."""
    network, share = Network(alpha=1e-5, beta=1e-9), 4000
    steps = {"pairwise": size // 2, "naive": size - 1}
    shares = {"pairwise": size - 1, "naive": size * (size - 1) / 2}
    for name, alphas in steps.items():
        found = cost(programs(name, "all_to_all", size), 1000 * size, 4, network)
        assert found.time_s == pytest.approx(alphas * network.alpha + shares[name] * share * network.beta)
        assert set(found.nbytes) == {(size - 1) * share}


@pytest.mark.parametrize("size", [1, 2, 4, 16, 64])
def test_trees_and_doubling_cost_what_their_closed_forms_say(size):
    network, nbytes, steps = Network(alpha=1e-5, beta=1e-9, gamma=1e-10), 4000 * size, lg(size)
    forth_s = steps * (network.alpha + nbytes * network.beta)
    sums_s = steps * nbytes * network.gamma
    expected = {
        ("recursive_doubling", "all_reduce"): forth_s + sums_s,
        ("binomial", "broadcast"): forth_s,
        ("binomial", "reduce"): forth_s + sums_s,
        ("binomial", "all_reduce"): 2 * forth_s + sums_s,
    }
    for (name, collective), seconds in expected.items():
        assert cost(programs(name, collective, size), 1000 * size, 4, network).time_s == pytest.approx(seconds)


def crossing(name, hosts, network=None):
    """Bytes between hosts in an all_gather, and its time."""
    written = programs(name, "all_gather", len(hosts), hosts=hosts)
    found = cost(written, 100 * len(hosts), 1, network or Network())
    return sum(n for (rank, peer), n in found.link_nbytes.items() if hosts[rank] != hosts[peer]), found.time_s


def test_hierarchical_rings_cost_what_the_closed_form_says():
    """Two link classes: each chunk crosses between two hosts once, and Q ranks of a host share its port."""
    for count, ranks in ((2, 3), (4, 2), (3, 4)):
        hosts = tuple(rank // ranks for rank in range(count * ranks))
        inside_s = (ranks - 1) * (1e-6 + 100 * count * 1e-9)  # R chunks in a step
        for beta in (0.0, 1e-8):
            between = Network(alpha=1e-4, beta=beta)
            nbytes, seconds = crossing("hierarchical", hosts, Network(1e-6, 1e-9, hosts=hosts, between=between))
            assert nbytes == (count - 1) * 100 * len(hosts)
            outside_s = (count - 1) * (between.alpha + ranks * 100 * between.beta)  # Q chunks in a step
            assert seconds == pytest.approx(outside_s + inside_s)
