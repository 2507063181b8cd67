"""Prices on a topology, of collectives whose messages meet on its links, and how such a network is written."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from dear_mpi.cli.app import app
from dear_mpi.collectives.algorithms.registry import programs
from dear_mpi.collectives.program.cost import cost
from dear_mpi.collectives.program.network import Network
from dear_mpi.collectives.program.program import Program, Receive, Send, Step
from dear_mpi.simulate.gains import remedies
from dear_mpi.simulate.network import read_network
from dear_mpi.simulate.prices.lockstep import Lockstep
from dear_mpi.simulate.prices.prices import Prices
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from dear_mpi.simulate.topology import ShapedNetwork, Topology, parse_topology
from tests.simulate.simgrid import replay

needs_simgrid = pytest.mark.skipif(
    shutil.which("smpirun") is None, reason="SimGrid is not installed (Debian: libsimgrid-dev): nothing can be replayed"
)
LINK = {"alpha": 5e-6, "beta": 1e-9}  # 5 us, 1 GB/s
MIB = 1 << 20


def prices_on(text, ranks, **link):
    topology = parse_topology(text)
    return Prices(ShapedNetwork(**LINK | link, topology=topology), ranks, 60 * 1024)


# How a network with a topology is written.


@pytest.mark.parametrize(
    ("text", "topology"),
    [
        ("star,8gbit,5us", None),
        ("fattree:8x8,2,8gbit,5us", Topology("fattree", (8, 8), 2)),
        ("torus:4x16,8gbit,5us", Topology("torus", (4, 16))),
        ("dragonfly:4x2x4x2,8gbit,5us", Topology("dragonfly", (4, 2, 4, 2))),
    ],
)
def test_a_network_is_a_topology_and_a_link(text, topology):
    machine = read_network(text, 64)
    plain = read_network("8gbit,5us", 64).network
    shaped = ShapedNetwork(plain.alpha, plain.beta, topology=topology) if topology else plain
    assert (machine.network, machine.text, machine.origin) == (shaped, text, "given")


def test_a_latency_may_be_left_out():
    assert read_network("torus:8,8gbit", 8).network == ShapedNetwork(beta=1e-9, topology=Topology("torus", (8,)))
    assert read_network("star,8gbit", 8).network == Network(beta=1e-9)


@pytest.mark.parametrize(
    ("text", "said"),
    [
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
    ],
)
def test_a_network_that_cannot_be_read_is_told(text, said):
    with pytest.raises(ValueError, match=said):
        read_network(text, 64)


# What a collective costs there: what SimGrid 3.32 says, but for the 16 bytes that it adds to each message.


@pytest.mark.parametrize(
    ("name", "text", "ms"),  # of docs/benchmarks/topology.md
    [
        ("ring", "fattree:8x8,2", 52.9),
        ("ring", "torus:8x8", 52.2),
        ("ring", "dragonfly:4x2x4x2", 104.25),
        ("swing", "fattree:8x8,2", 68.9),
        ("swing", "torus:8x8", 71.3),
        ("swing", "dragonfly:4x2x4x2", 103.15),
        ("rabenseifner", "fattree:8x8,2", 189.3),
        ("rabenseifner", "dragonfly:4x2x4x2", 622),
        ("bruck", "torus:8x8", 158.9),
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
        (Step((), (Receive(0, range(1)), Receive(4, range(1)))),),
        (Step((), (Receive(0, range(5)),)),),
        (),
        (Step((Send(1, range(1)),)),),
        *[()] * 3,
    ]
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
        models=("synthetic:resnet50",),
        ranks=(16,),
        network="fattree:4x4,1,8gbit,50us",
        schedules=("wfbp",),
        fusions=("25MB",),
        forward_s=0.05,
    )
    (found,) = simulate(settings)
    for factors in ({"alpha": 0.5}, {"beta": 0.5}):
        link = {name: factors.get(name, 1.0) * value for name, value in (("alpha", 50e-6), ("beta", 1e-9))}
        rewired = found.scenario.rewired(**factors).prices.seconds("ring", "all_reduce", [MIB])
        assert rewired == pytest.approx(prices_on("fattree:4x4,1", 16, **link).seconds("ring", "all_reduce", [MIB]))
    assert "twice the bandwidth" in dict(remedies(found))


def test_the_command_says_what_is_assumed(tmp_path):
    file, network = tmp_path / "rows.json", "dragonfly:2x2x2x2,10gbit,50us"
    flags = ["--ranks", "16", "--network", network, "--algorithm", "swing", "--json", str(file)]
    done = CliRunner().invoke(app, ["simulate", *flags])
    assert done.exit_code == 0, done.output
    assert f"the network {network} (assumed)" in " ".join(done.output.split())
    assert "What would help" in done.output
    for row in json.loads(file.read_text()):
        assert (row["network"], row["network_origin"], row["hosts"]) == (network, "given", None)
        assert row["alpha_s"] == pytest.approx(50e-6)
        assert row["beta_s_per_B"] == pytest.approx(8e-10)
