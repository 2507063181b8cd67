"""Algorithms are proven before anything runs: every algorithm and collective, for all sizes up to 64."""

import math

import pytest

from dear_mpi.collectives import ALGORITHMS, programs, verify
from dear_mpi.collectives.cost import Network, cost
from dear_mpi.collectives.program import COLLECTIVES

PAIRS = [(name, collective) for name, row in ALGORITHMS.items() for collective in row]


@pytest.mark.parametrize(("name", "collective"), PAIRS)
def test_proved_for_all_sizes(name, collective):
    for size in range(1, 65):
        verify(programs(name, collective, size))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_serves_every_collective(name):
    assert tuple(ALGORITHMS[name]) == COLLECTIVES


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


STEPS = {
    "pairwise": lambda size: size - 1,
    "bidirectional": lambda size: size // 2,
    "bruck": lambda size: math.ceil(math.log2(size)),
}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 17, 64])
@pytest.mark.parametrize("name", STEPS)
def test_all_gathers_cost_what_their_closed_forms_say(name, size):
    """Each sends the least bytes that are possible, in so many steps; their mirror images send as many."""
    network, share = Network(alpha=1e-5, beta=1e-9), 4000
    found = cost(programs(name, "all_gather", size), 1000 * size, 4, network)
    assert found.time_s == pytest.approx(STEPS[name](size) * network.alpha + (size - 1) * share * network.beta)
    assert set(found.nbytes) == {(size - 1) * share}
    mirror = cost(programs(name, "reduce_scatter", size), 1000 * size, 4, network)
    assert (mirror.time_s, set(mirror.nbytes)) == (pytest.approx(found.time_s), set(found.nbytes))


def test_naive_crowds_the_link_of_rank_0():
    """Five ranks send n bytes each through one port, and get n bytes each back through it."""
    found = cost(programs("naive", "all_reduce", 6), 1000, 8, Network(beta=1e-9))
    assert found.time_s == pytest.approx(10 * 8000e-9)
    assert found.nbytes == (5 * 8000, *[8000] * 5)


def test_uneven_chunks_are_priced_by_the_largest():
    assert cost(programs("ring", "all_gather", 4), 5, 1, Network(beta=1.0)).time_s == 3 * 2


def test_size_must_be_positive():
    with pytest.raises(ValueError, match="size must be at least 1, not 0"):
        programs("ring", "all_reduce", 0)
