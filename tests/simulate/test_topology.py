"""How topologies are written, which way messages go, and what SimGrid is told of them."""

import xml.etree.ElementTree as ET

import pytest

from dear_mpi.simulate.topology import Topology, parse_topology
from tests.simulate.simgrid import platform

LINK = {"alpha": 5e-6, "beta": 1e-9}


@pytest.mark.parametrize(
    "text", ["star", "fattree:8x4,2", "torus:5", "torus:2x3x4", "torus:256x256", "dragonfly:4x2x4x2"]
)
def test_a_topology_is_written_as_it_was_read(text):
    assert str(parse_topology(text)) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stra", r"topology 'stra' is unknown: did you mean 'star'\? Allowed: star, fattree, torus, dragonfly"),
        ("", r"topology '' is unknown. Allowed: star"),
        ("star:8", r"topology 'star:8' cannot be read: write it like star$"),
        ("star:", r"topology 'star:' cannot be read: write it like star$"),
        ("torus", r"topology 'torus' cannot be read: write it like torus:8x8"),
        ("torus:8y8", r"'torus:8y8' cannot be read: write it like torus:8x8"),
        ("torus:8x8,2", r"'torus:8x8,2' cannot be read: write it like torus:8x8"),
        ("torus:0x8", r"'torus:0x8' has a 0 in it: sizes and links must be at least 1, as in torus:8x8"),
        ("fattree:8x8", r"'fattree:8x8' cannot be read: write it like fattree:8x8,2"),
        ("fattree:8x8,0", r"'fattree:8x8,0' has a 0 in it: sizes and links must be at least 1"),
        ("fattree:8,2", r"'fattree:8,2' cannot be read: write it like fattree:8x8,2"),
        ("dragonfly:4x2", r"'dragonfly:4x2' cannot be read: write it like dragonfly:4x2x4x2"),
        ("dragonfly:5x2x4x2", r"has 5 groups, more than the 4 routers of a chassis: each of them has a link"),
    ],
)
def test_a_topology_that_cannot_be_read_is_told(text, said):
    with pytest.raises(ValueError, match=said):
        parse_topology(text)


@pytest.mark.parametrize(
    ("text", "source", "links"),
    [
        ("star", 5, {6: 2, 60: 2}),
        ("fattree:8x8,2", 0, {1: 2, 7: 2, 8: 4, 63: 4}),
        ("torus:4x16", 0, {1: 1, 15: 1, 16: 1, 48: 1, 17: 2, 8: 8, 40: 10}),
        ("torus:3x4x5", 0, {1: 1, 4: 1, 5: 1, 15: 1, 20: 1, 40: 1, 32: 5}),
        ("dragonfly:4x2x4x2", 0, {1: 2, 2: 3, 8: 3, 16: 4, 18: 5, 63: 6}),
    ],
)
def test_a_way_has_so_many_links(text, source, links):
    topology = parse_topology(text)
    assert {target: len(topology.way(source, target)) for target in links} == links


@pytest.mark.parametrize("text", ["torus:4x6", "fattree:4x6,3", "dragonfly:3x2x4x2"])
def test_each_direction_of_a_link_is_its_own(text):
    """So that a message never meets the one that comes the other way, nor itself."""
    topology = parse_topology(text)
    for source in range(24):
        for target in set(range(24)) - {source}:
            way, back = topology.way(source, target), topology.way(target, source)
            assert len({*way, *back}) == len(way) + len(back)


def test_ways_of_an_oversubscribed_leaf_meet():
    """Two of its eight ranks' messages to ranks of the same parity go up the same link."""
    topology = Topology("fattree", (8, 8), 2)
    assert set(topology.way(0, 8)) & set(topology.way(1, 10)) == {("up", 0, 0), ("down", 1, 0)}
    assert not set(topology.way(0, 8)) & set(topology.way(1, 9))


@pytest.mark.parametrize(
    ("text", "hosts", "parameters"),
    [
        ("star", "0-16", (None, None)),
        ("fattree:8x4,2", "0-31", ("FAT_TREE", "2;4,8;1,2;1,1")),
        ("torus:3x8", "0-23", ("TORUS", "8,3")),
        ("dragonfly:3x2x4x2", "0-47", ("DRAGONFLY", "3,1;2,1;4,1;2")),
    ],
)
def test_a_platform_has_a_host_for_each_place(text, hosts, parameters):
    cluster = ET.fromstring(platform(parse_topology(text), 17, **LINK)).find("cluster")
    assert (cluster.get("topology"), cluster.get("topo_parameters")) == parameters
    found = [cluster.get(name) for name in ("radical", "bw", "lat", "sharing_policy")]
    assert found == [hosts, f"{1 / LINK['beta']!r}Bps", "2.5e-06s", "SPLITDUPLEX"]


@pytest.mark.parametrize(
    ("text", "ranks", "first"),  # the first rank of each neighbourhood
    [("fattree:3x4,2", 10, [0, 4, 8]), ("torus:2x2x3", 12, [0, 3, 6, 9]), ("dragonfly:2x2x3x2", 14, [0, 6, 12])],
)
def test_a_leaf_a_row_and_a_chassis_are_neighbourhoods(text, ranks, first):
    found = parse_topology(text).neighbourhoods(ranks)
    assert len(found) == ranks
    assert [found.index(number) for number in sorted(set(found))] == first
    assert list(found) == sorted(found)
    assert parse_topology("star").neighbourhoods(4) is None


def test_ranks_that_do_not_fit_are_refused():
    said = r"topology 'torus:4x4' has places for 16 ranks, not for 17"
    with pytest.raises(ValueError, match=said):
        platform(parse_topology("torus:4x4"), 17, **LINK)


@pytest.mark.parametrize(("alpha", "beta"), [(-1e-6, 1e-9), (1e-6, 0.0), (float("nan"), 1e-9), (1e-6, float("inf"))])
def test_links_that_simgrid_does_not_have_are_refused(alpha, beta):
    with pytest.raises(ValueError, match="SimGrid needs links of alpha >= 0 and beta > 0 seconds"):
        platform(parse_topology("star"), 2, alpha=alpha, beta=beta)
