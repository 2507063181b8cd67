"""How topologies are written, which way messages go, what SimGrid is told of them, and what collectives cost there."""

import json
import shutil

import pytest

from dear_mpi.collectives.algorithms.registry import ALGORITHMS, programs, runner_of
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.collectives.program.program import Program, Receive, Send, Step
from dear_mpi.contrib.topologies.topology import ShapedNetwork, Topology, parse_topology
from dear_mpi.simulate.network import read_network
from dear_mpi.simulate.prices import Lockstep, Prices
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from tests.cli_checks import succeed
from tests.contrib.topologies.shaped import replay, shape_of

needs_simgrid = pytest.mark.skipif(
    shutil.which("smpirun") is None, reason="SimGrid is not installed (Debian: libsimgrid-dev): nothing can be replayed"
)
LINK = {"alpha": 5e-6, "beta": 1e-9}  # 5 us, 1 GB/s
MIB, COUNT = 1 << 20, 25 * 2**18
SERVED = [(name, collective) for name, row in ALGORITHMS.items() if runner_of(name) == "messages" for collective in row]


@pytest.mark.parametrize(
    "text", ["star", "fattree:8x4,2", "torus:5", "torus:2x3x4", "torus:256x256", "dragonfly:4x2x4x2"]
)
def test_a_topology_is_written_as_it_was_read(text):
    assert str(parse_topology(text)) == text


@pytest.mark.parametrize(("text", "said"), [
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
])  # fmt: skip
def test_a_topology_that_cannot_be_read_is_told(text, said):
    with pytest.raises(ValueError, match=said):
        parse_topology(text)


@pytest.mark.parametrize(("text", "source", "links"), [
    ("star", 5, {6: 2, 60: 2}),
    ("fattree:8x8,2", 0, {1: 2, 7: 2, 8: 4, 63: 4}),
    ("torus:4x16", 0, {1: 1, 15: 1, 16: 1, 48: 1, 17: 2, 8: 8, 40: 10}),
    ("torus:3x4x5", 0, {1: 1, 4: 1, 5: 1, 15: 1, 20: 1, 40: 1, 32: 5}),
    ("dragonfly:4x2x4x2", 0, {1: 2, 2: 3, 8: 3, 16: 4, 18: 5, 63: 6}),
])  # fmt: skip
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


@pytest.mark.parametrize(("text", "parameters"), [
    ("star", ("FLAT", "")),
    ("fattree:8x4,2", ("FAT_TREE", "2;4,8;1,2;1,1")),
    ("torus:3x8", ("TORUS", "8,3")),
    ("dragonfly:3x2x4x2", ("DRAGONFLY", "3,1;2,1;4,1;2")),
])  # fmt: skip
def test_simgrid_counts_from_below(text, parameters):
    assert shape_of(parse_topology(text)) == parameters


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


def prices_on(text, ranks, **link):
    topology = parse_topology(text)
    return Prices(ShapedNetwork(**LINK | link, topology=topology), ranks, 60 * 1024)


@pytest.mark.parametrize(("text", "topology"), [
    ("star,8gbit,5us", None),
    ("fattree:8x8,2,8gbit,5us", Topology("fattree", (8, 8), 2)),
    ("torus:4x16,8gbit,5us", Topology("torus", (4, 16))),
    ("dragonfly:4x2x4x2,8gbit,5us", Topology("dragonfly", (4, 2, 4, 2))),
])  # fmt: skip
def test_a_network_is_a_topology_and_a_link(text, topology):
    machine = read_network(text, 64)
    plain = read_network("8gbit,5us", 64).network
    shaped = ShapedNetwork(plain.alpha, plain.beta, topology=topology) if topology else plain
    assert (machine.network, machine.text, machine.origin) == (shaped, text, "given")


def test_a_latency_may_be_left_out():
    assert read_network("torus:8,8gbit", 8).network == ShapedNetwork(beta=1e-9, topology=Topology("torus", (8,)))
    assert read_network("star,8gbit", 8).network == Network(beta=1e-9)


@pytest.mark.parametrize(("text", "said"), [
    ("fatree:8x8,2,8gbit,5us", r"network 'fatree' is unknown: did you mean 'fattree'\? Allowed: paper-10gbe, "),
    ("fattree:8x8,8gbit,5us", "topology 'fattree:8x8' cannot be read: write it like fattree:8x8,2"),
    ("torus:8x8,2,8gbit,5us", "topology 'torus:8x8,2' cannot be read: write it like torus:8x8"),
    ("torus:8x8", "network 'torus:8x8' must be a topology and a link, as torus:8x8,10gbit,50us"),
    ("fattree:8x8,2", "network 'fattree:8x8,2' must be a topology and a link, as fattree:8x8,2,10gbit,50us"),
    ("star,8gbit,5us,7us", "network 'star,8gbit,5us,7us' must be a topology and a link, as star,10gbit,50us"),
    ("star,8gb,5us", "bandwidth '8gb' cannot be read: write it like 10gbit,50us"),
    ("star,8gbit,5us/1gbit,9us", "network 'star,8gbit,5us/1gbit,9us' must be a topology and a link"),
    ("star,8gbit,5us,o=1us", "network 'star,8gbit,5us,o=1us': a topology takes no o=1us: "),
    ("star,8gbit,gamma=1ns", "a topology takes no gamma=1ns"),
    ("star,8gbit,hosts=4", "a topology takes no hosts=4"),
    ("torus:3x21,8gbit,5us", "topology 'torus:3x21' has places for 63 ranks, not for 64"),
])  # fmt: skip
def test_a_network_that_cannot_be_read_is_told(text, said):
    with pytest.raises(ValueError, match=said):
        read_network(text, 64)


@pytest.mark.parametrize(
    ("name", "text", "ms"),  # of docs/benchmarks/topology.md
    [
        ("ring", "fattree:8x8,2", 52.9),
        ("ring", "torus:8x8", 52.2),
        ("ring", "dragonfly:4x2x4x2", 104.25),
        ("swing", "fattree:8x8,2", 67.8),
        ("swing", "torus:8x8", 68.2),
        ("swing", "dragonfly:4x2x4x2", 92.7),
        ("rabenseifner", "fattree:8x8,2", 189.3),
        ("rabenseifner", "dragonfly:4x2x4x2", 622),
        ("bruck", "torus:8x8", 155),
        ("hierarchical", "fattree:8x8,2", 69),
        ("hierarchical", "torus:8x8", 51.7),
        ("hierarchical", "dragonfly:4x2x4x2", 90.8),
        ("torus", "torus:8x8", 25.87),
    ],
)
def test_prices_are_the_figures_of_the_page(name, text, ms):
    (seconds,) = prices_on(text, 64).seconds(name, "all_reduce", [25 * MIB])
    assert seconds * 1e3 == pytest.approx(ms, rel=1.5e-3)


CASES = [  # and whether no two messages meet
    ("ring", "all_reduce", "star", True),
    ("ring", "all_reduce", "fattree:4x4,1", True),
    ("torus", "all_gather", "torus:4x4", False),
    ("rabenseifner", "reduce_scatter", "fattree:4x4,1", False),
    ("swing", "all_reduce", "fattree:4x4,1", False),
    ("ring", "all_reduce", "dragonfly:2x2x2x2", False),
    ("naive", "all_reduce", "torus:2x2x4", False),
]
SIZES = [64 << power for power in range(0, 21, 2)]


@pytest.mark.parametrize(("name", "collective", "text", "apart"), CASES)
def test_many_sizes_cost_what_each_of_them_costs(name, collective, text, apart):
    prices, written = prices_on(text, 16), programs(name, collective, 16)
    assert prices.seconds(name, collective, SIZES) == pytest.approx(
        [cost(written, size // 4, 4, prices.network).time_s for size in SIZES]
    )
    assert all(isinstance(each, Lockstep) == apart for each in prices.replays.values())


@needs_simgrid
@pytest.mark.parametrize(("name", "collective", "text", "apart"), CASES)
def test_prices_are_those_of_simgrid(name, collective, text, apart):
    link, written, sizes = {"alpha": 50e-6, "beta": 1e-9}, programs(name, collective, 16), [MIB, 8 * MIB, 128 * MIB]
    found = prices_on(text, 16, **link).seconds(name, collective, sizes)
    replayed = [replay(written, size // 4, 4, parse_topology(text), **link) for size in sizes]
    assert found == pytest.approx(replayed, rel=5e-3)


def past_a_crowd():
    """Ranks 0 and 4 send 0.1 s worth of bytes to rank 1, through 2 and 4 links; rank 0 sends 0.5 s to rank 2 after it.

    Rank 0 has two thirds of the link into rank 1, as its way there is half as long.
    """
    steps = [
        (Step((Send(1, range(1)),)), Step((Send(2, range(5)),))),
        (Step((), (Receive(0, range(1)), Receive(4, range(1)))),), (Step((), (Receive(0, range(5)),)),), (),
        (Step((Send(1, range(1)),)),), *[()] * 3,
    ]  # fmt: skip
    return [Program("broadcast", rank, 8, mine) for rank, mine in enumerate(steps)]


def test_nearer_ranks_have_more_of_a_link():
    network = read_network("fattree:2x4,1,8gbit,1us", 8).network
    assert cost(past_a_crowd(), 8 * 10**8, 1, network).time_s == pytest.approx(0.65, rel=1e-4)


@needs_simgrid
def test_nearer_ranks_have_more_of_a_link_in_simgrid_too():
    written, tree = past_a_crowd(), parse_topology("fattree:2x4,1")
    assert replay(written, 8 * 10**8, 1, tree, alpha=1e-6, beta=1e-9) == pytest.approx(0.65, rel=1e-4)


def test_half_the_latency_and_twice_the_bandwidth_are_priced():
    settings = Settings(
        models=("synthetic:resnet50",), ranks=(16,), network="fattree:4x4,1,8gbit,50us", schedules=("wfbp",),
        fusions=("25MB",), forward_s=0.05,
    )  # fmt: skip
    (found,) = simulate(settings)
    for factors in ({"alpha": 0.5}, {"beta": 0.5}):
        link = {name: factors.get(name, 1.0) * value for name, value in (("alpha", 50e-6), ("beta", 1e-9))}
        priced = found.scenario.rewired(**factors).prices.seconds("ring", "all_reduce", [MIB])
        assert priced == pytest.approx(prices_on("fattree:4x4,1", 16, **link).seconds("ring", "all_reduce", [MIB]))


def test_the_command_says_what_is_assumed(tmp_path):
    file, network = tmp_path / "rows.json", "dragonfly:2x2x2x2,10gbit,50us"
    flags = ["--ranks", "16", "--network", network, "--algorithm", "swing", "--json", str(file)]
    done = succeed("simulate", *flags)
    assert f"the network {network} (assumed)" in " ".join(done.output.split())
    for row in json.loads(file.read_text()):
        assert (row["network"], row["network_origin"], row["hosts"]) == (network, "given", None)
        assert row["alpha_s"] == pytest.approx(50e-6)
        assert row["beta_s_per_B"] == pytest.approx(8e-10)


@needs_simgrid
@pytest.mark.parametrize("text", ["fattree:4x4,1", "fattree:4x4,3", "torus:4x4", "torus:2x2x4", "dragonfly:2x2x2x2"])
@pytest.mark.parametrize(("name", "collective"), SERVED)
def test_cost_on_a_topology_agrees_with_simgrid(name, collective, text):
    written, topology = programs(name, collective, 16), parse_topology(text)
    network = ShapedNetwork(**LINK, topology=topology)
    time_s = replay(written, COUNT, 4, topology, **LINK)
    assert cost(written, COUNT, 4, network).time_s == pytest.approx(time_s, rel=6e-3)
