"""How topologies are written, and what SimGrid is told of them."""

import xml.etree.ElementTree as ET

import pytest

from dear_mpi.simulate.topology import parse_topology, platform

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
        ("", r"topology '' is unknown: Allowed: star"),
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
        ("torus:100000x100000", r"'torus:100000x100000' has 10000000000 places and 20000000000 links: more than 65536"),
        ("torus:65537", r"'torus:65537' has 65537 places and 65537 links: more than 65536 and 262144 are too many"),
        ("fattree:8x8,100000", r"'fattree:8x8,100000' has 64 places and 800064 links: more than 65536 and 262144"),
        ("dragonfly:2x1x1024x2", r"'dragonfly:2x1x1024x2' has 4096 places and 1051649 links: more than 65536"),
        (
            "dragonfly:5x2x4x2",
            r"has 5 groups, more than the 4 routers of a chassis: in SimGrid each of them has a link",
        ),
    ],
)
def test_a_topology_that_cannot_be_read_is_told(text, said):
    with pytest.raises(ValueError, match=said):
        parse_topology(text)


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
