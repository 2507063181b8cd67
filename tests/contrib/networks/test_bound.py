"""The cut bound equals brute force, and ForestColl's published bandwidths."""

import os
from fractions import Fraction

import pytest

from dear_mpi.contrib.networks.bound import Cut, cut_bound, in_units, least_steps, leaving
from dear_mpi.contrib.networks.graph import Graph, Port, read_graph
from dear_mpi.contrib.networks.greedy import search
from tests.contrib.networks.graphs import hosts_graph, random_graph, worst_cut, worst_of_all

COUNT = 1000 if os.environ.get("EVERY") else 60


def test_flows_find_the_worst_cut():
    for seed in range(COUNT):
        graph = random_graph(3 + seed % 6, seed, caps=(1, 2, 3, 8))
        cut = cut_bound(graph)
        assert cut.time == worst_cut(graph)
        assert cut.rate == leaving(graph, cut.ranks)


def test_flows_find_the_worst_cut_with_ports_of_single_ranks():
    for seed in range(COUNT // 4):
        graph = random_graph(3 + seed % 3, seed, caps=(1, 2, 3), port=1 + seed % 3)
        assert cut_bound(graph).time == worst_of_all(graph)


def test_a_port_that_two_ranks_need_is_found():
    """Rank 1 receives from rank 2 alone, and rank 0 mostly: the cut bound is 1/2."""
    links = {(0, 2): 4, (1, 0): 1, (1, 2): 4, (2, 0): 4, (2, 1): 4}
    graph = Graph(3, links, tuple(Port((rank,), 4, 4) for rank in range(3)))
    assert cut_bound(graph) == Cut((0, 1), Fraction(5), need=4)
    assert least_steps(graph, 5, cut_bound(graph)) == search(graph, 5, 0).steps == 4


def test_a_port_of_all_ranks_limits_nothing():
    graph = Graph(3, {(0, 1): 1, (1, 2): 1, (2, 0): 1}, (Port((0, 1, 2), 1, 1),))
    assert least_steps(graph, 1, cut_bound(graph)) == search(graph, 1, 0).steps == 2


def test_ranks_of_a_host_share_its_port():
    graph = hosts_graph(2, 4)
    cut = cut_bound(graph)
    assert cut in (Cut((0, 1, 2, 3), Fraction(2)), Cut((4, 5, 6, 7), Fraction(2)))
    assert leaving(graph, [0]) == 3 * 4 + 2
    assert leaving(graph, [0, 4]) == 2 * 3 * 4 + 2 * 2
    larger = hosts_graph(4, 4)
    assert cut_bound(larger).time == Fraction(12, 2)  # into a host


@pytest.mark.parametrize(("text", "time"), [
    ("mesh:5x5", Fraction(24, 2)), ("torus:4x4", Fraction(15, 4)), ("torus:3x3x3", Fraction(26, 6)),
    ("star:8", Fraction(7)), ("fattree:4x4,2", Fraction(15)), ("fattree:4x4,1", Fraction(15)),
])  # fmt: skip
def test_shapes(text, time):
    assert cut_bound(in_units(read_graph(text))[0]).time == time


# Links of one MI250 host, in units of 50 GB/s: https://github.com/liangyuRain/ForestColl (Apache 2.0).
MI250 = [
    "0400200010000000",
    "4000010001100000",
    "0004001001100000",
    "0040000200010000",
    "2000041000000000",
    "0100401100000000",
    "0010110400000000",
    "0002014000000000",
    "1000000004002000",
    "0110000040000100",
    "0110000000040010",
    "0001000000400002",
    "0000000020000410",
    "0000000001004011",
    "0000000000101104",
    "0000000000020140",
]


def mi250(hosts):
    """Each GPU's 16 GB/s to other hosts, divided evenly over the GPUs there."""
    links, size = {}, 16 * hosts
    for one in range(size):
        for other in range(size):
            if one // 16 != other // 16:
                links[one, other] = Fraction(16, 16 * (hosts - 1))
            elif units := int(MI250[one % 16][other % 16]):
                links[one, other] = links[other, one] = 50 * units
    return Graph(size, links)


def a100(hosts):
    """NVLink's 300 GB/s of each GPU, and 25 GB/s of its card to other hosts."""
    links, size = {}, 8 * hosts
    for one in range(size):
        for other in range(size):
            if one != other:
                links[one, other] = 300 if one // 8 == other // 8 else Fraction(25, 8 * (hosts - 1))
    both = 300 + 25 * (hosts > 1)
    return Graph(size, links, tuple(Port((rank,), both, both) for rank in range(size)))


@pytest.mark.parametrize(("graph", "GBps"), [
    (a100(1), 342.86), (a100(2), 346.67), (mi250(1), 342.86), (mi250(2), 354.13),
])  # fmt: skip
def test_published_bandwidths(graph, GBps):
    """Of ForestColl's paper, table 3: the bytes of the whole buffer per second."""
    assert float(graph.size / cut_bound(graph).time) == pytest.approx(GBps, abs=0.005)
