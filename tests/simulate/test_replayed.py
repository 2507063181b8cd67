"""Prices on a topology: few replays by SimGrid say what all sizes cost. What needs no SimGrid is tested everywhere.

There ``cost`` is in SimGrid's place. Figures of docs/benchmarks/topology.md were replayed size by size.
"""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from dear_mpi.cli.app import app
from dear_mpi.collectives.algorithms.registry import programs
from dear_mpi.collectives.program.cost import cost
from dear_mpi.collectives.program.network import Network
from dear_mpi.collectives.program.program import Program, Receive, Send, Step
from dear_mpi.simulate.gains import remedies
from dear_mpi.simulate.network import read_network
from dear_mpi.simulate.prices import on_topology
from dear_mpi.simulate.prices.on_topology import PLACES, WITHIN, Curve, PricesOnTopology
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.simgrid import replay
from dear_mpi.simulate.sweep import simulate
from dear_mpi.simulate.topology import Topology, parse_topology
from tests.cli_checks import assert_one_line

needs_simgrid = pytest.mark.skipif(
    shutil.which("smpirun") is None, reason="SimGrid is not installed (Debian: libsimgrid-dev): nothing can be replayed"
)
LINK = {"alpha": 5e-6, "beta": 1e-9}  # 5 us, 1 GB/s
MIB = 1 << 20


def prices_on(text, ranks, **link):
    return PricesOnTopology(Network(**LINK | link), ranks, 60 * 1024, topology=parse_topology(text))


@pytest.fixture
def places(monkeypatch):
    """The links (alpha, beta) of all replays, which ``cost`` carries out on a star, whatever the topology."""
    asked = []

    def priced(written, count, itemsize, topology, **link):
        asked.append((link["alpha"], link["beta"]))
        return cost(written, count, itemsize, Network(**link)).time_s

    monkeypatch.setattr(on_topology, "replay", priced)
    monkeypatch.setattr(on_topology, "find_smpirun", lambda: "smpirun")
    return asked


# How a network with a topology is written.


@pytest.mark.parametrize(
    ("text", "topology"),
    [
        ("star,8gbit,5us", Topology("star")),
        ("fattree:8x8,2,8gbit,5us", Topology("fattree", (8, 8), 2)),
        ("torus:4x16,8gbit,5us", Topology("torus", (4, 16))),
        ("dragonfly:4x2x4x2,8gbit,5us", Topology("dragonfly", (4, 2, 4, 2))),
    ],
)
def test_a_network_is_a_topology_and_a_link(text, topology):
    machine = read_network(text, 64)
    assert (machine.topology, machine.text, machine.origin) == (topology, text, "replayed")
    assert machine.network == read_network("8gbit,5us", 64).network


def test_a_latency_may_be_left_out_and_other_networks_have_no_topology():
    assert read_network("torus:8,8gbit", 8).network == Network(beta=1e-9)
    assert read_network("8gbit,5us", 8).topology is None


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
        ("star,8gbit,5us,o=1us", "network 'star,8gbit,5us,o=1us': a topology takes no o=1us, as SimGrid"),
        ("star,8gbit,gamma=1ns", "a topology takes no gamma=1ns"),
        ("star,8gbit,hosts=4", "a topology takes no hosts=4"),
        ("torus:3x21,8gbit,5us", "topology 'torus:3x21' has places for 63 ranks, not for 64"),
    ],
)
def test_a_network_that_cannot_be_read_is_told(text, said):
    with pytest.raises(ValueError, match=said):
        read_network(text, 64)


# Few places of a function.


def test_a_straight_line_is_known_from_five_places():
    curve, asked = Curve(lambda place: 3 - place, within=WITHIN), np.linspace(0, 1, 101)
    assert curve(asked) == pytest.approx(3 - asked)
    assert sorted(curve.known) == list(PLACES)


@pytest.mark.parametrize("bend", [0.05, 0.4, 0.6, 0.95])
def test_a_function_with_a_bend_is_never_far_off(bend):
    def function(place):
        return 1 + place + max(0.0, 0.01 * (place - bend))

    curve, asked = Curve(function, within=1e-4), np.linspace(0, 1, 101)
    assert curve(asked) == pytest.approx([function(place) for place in asked], rel=2e-4)


def test_a_function_that_jumps_is_evaluated_at_each_place():
    asked = [0.1, 0.2, 0.45, 0.55, 0.6, 0.8]
    assert list(Curve(lambda place: 1.0 if place < 0.5 else 2.0, within=WITHIN)(asked)) == [1, 1, 1, 2, 2, 2]


def test_few_places_are_evaluated_alone_and_once():
    asked = []
    curve = Curve(lambda place: asked.append(place) or 1.0, within=WITHIN)
    curve([0.3, 0.7])
    curve([0.7])
    assert sorted(asked) == [0.3, 0.7]


# Prices out of replays.


@pytest.mark.parametrize("name", ["ring", "rabenseifner", "hierarchical", "binomial"])
def test_one_curve_serves_all_sizes_and_all_networks(places, name):
    """On a star in steps, ``cost`` says the same; here it has never heard of the curve."""
    written, sizes = programs(name, "all_reduce", 8), [32 * 3**power for power in range(14)]
    prices = prices_on("star", 8)
    for link in (LINK, {"alpha": 2.5e-6, "beta": 1e-9}, {"alpha": 5e-6, "beta": 5e-10}, {"alpha": 0, "beta": 1e-9}):
        network = Network(**link)
        found = replace(prices, network=network, found={}).seconds(name, "all_reduce", sizes)
        assert found == pytest.approx([cost(written, size // 4, 4, network).time_s for size in sizes], rel=1e-4)
    assert len(places) == len(PLACES)


def test_what_is_on_no_line_is_replayed_for_each_size(places, monkeypatch):
    """As if bytes travelled while others wait for the latency of two steps."""
    monkeypatch.setattr(on_topology, "replay", lambda written, count, *_, alpha, beta: max(2 * alpha, count * beta))
    prices, sizes = prices_on("star", 3), [12 * 5**power for power in range(9)]
    assert prices.seconds("ring", "all_gather", sizes) == pytest.approx([max(1e-5, size * 1e-9) for size in sizes])
    curve = prices.replays["ring", "all_gather", 1].curve
    assert len(curve.known) == len(PLACES) + len(sizes)


def test_pieces_have_replays_of_their_own(places):
    prices, sizes = prices_on("star", 4), {1: 60 * 1024, 2: 61 * 1024}
    found = prices.seconds("double_tree", "all_reduce", list(sizes.values()))
    written = {pieces: programs("double_tree", "all_reduce", 4, pieces=pieces) for pieces in sizes}
    direct = [cost(written[pieces], size // 4, 4, Network(**LINK)).time_s for pieces, size in sizes.items()]
    assert found == pytest.approx(direct, rel=1e-4)
    assert set(prices.replays) == {("double_tree", "all_reduce", pieces) for pieces in sizes}


def test_one_rank_and_a_network_that_is_free_need_no_replay(places):
    assert list(prices_on("star", 1).seconds("ring", "all_reduce", [400])) == [0]
    assert list(prices_on("star", 2, alpha=0.0, beta=1e-9).seconds("ring", "all_reduce", [0])) == [0]
    assert places == []


def test_too_many_messages_are_refused_before_any_replay(places, monkeypatch):
    monkeypatch.setattr(on_topology, "MOST_MESSAGES", 10_000)
    said = r"all_reduce of 'ring' has some 32512 messages on 128 ranks, and SimGrid replays at most 10000 here"
    with pytest.raises(ValueError, match=said):
        prices_on("star", 128).seconds("ring", "all_reduce", [512])
    assert places == []


def test_without_simgrid_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setattr("dear_mpi.simulate.simgrid.shutil.which", lambda name: None)
    done = CliRunner().invoke(app, ["simulate", "--ranks", "4", "--network", "star,8gbit,5us"])
    assert_one_line(done, "SimGrid is not installed", "apt-get install libsimgrid-dev")


# By SimGrid itself.


@needs_simgrid
@pytest.mark.parametrize(
    ("name", "text", "ms"),
    [
        ("ring", "fattree:8x8,2", 52.9),
        ("swing", "fattree:8x8,2", 68.9),
        ("rabenseifner", "fattree:8x8,2", 189),
        ("hierarchical", "torus:8x8", 51.7),
        ("hierarchical", "dragonfly:4x2x4x2", 90.8),
    ],
)
def test_prices_are_the_figures_of_the_page(name, text, ms):
    (seconds,) = prices_on(text, 64).seconds(name, "all_reduce", [25 * MIB])
    assert seconds * 1e3 == pytest.approx(ms, rel=3e-3)


CASES = [  # and whether prices are on a line
    ("ring", "all_reduce", "star", True),
    ("rabenseifner", "reduce_scatter", "fattree:4x4,1", True),
    ("torus", "all_gather", "torus:4x4", True),
    ("swing", "all_reduce", "fattree:4x4,1", False),
    ("ring", "all_reduce", "dragonfly:2x2x2x2", False),
]


@needs_simgrid
@pytest.mark.parametrize(("name", "collective", "text", "straight"), CASES)
def test_prices_are_those_of_a_replay_of_each_size(name, collective, text, straight):
    """From 1 MiB on: of shorter messages SimGrid's envelope, which prices do not have, is a larger part."""
    link = {"alpha": 50e-6, "beta": 1e-9}
    prices, written = prices_on(text, 16, **link), programs(name, collective, 16)
    sizes = [MIB << power for power in range(8)]
    found = prices.seconds(name, collective, sizes)
    direct = [replay(written, size // 4, 4, prices.topology, **link) for size in sizes]
    assert found == pytest.approx(direct, rel=1e-3)
    curve = prices.replays[name, collective, 1].curve
    assert len(curve.known) == len(PLACES) + (0 if straight else len(sizes))


@needs_simgrid
@pytest.mark.parametrize(("alpha", "seconds"), [(1e-6, 0.65), (0.0, 0.7)])
def test_nearer_ranks_have_more_of_a_link(alpha, seconds):
    """Ranks 0 and 4 send 0.1 s worth of bytes to rank 1, through 2 and 4 links; rank 0 sends 0.5 s to rank 2 behind it.

    It has two thirds of the link, and half if nothing has a latency.
    """
    steps = [
        (Step((Send(1, range(1)),)), Step((Send(2, range(5)),))),
        (Step((), (Receive(0, range(1)), Receive(4, range(1)))),),
        (Step((), (Receive(0, range(5)),)),),
        (),
        (Step((Send(1, range(1)),)),),
        *[()] * 3,
    ]
    written = [Program("broadcast", rank, 8, mine) for rank, mine in enumerate(steps)]
    found = replay(written, 8 * 10**8, 1, parse_topology("fattree:2x4,1"), alpha=alpha, beta=1e-9)
    assert found == pytest.approx(seconds, rel=1e-4)


@needs_simgrid
def test_half_the_latency_and_twice_the_bandwidth_are_those_of_a_replay():
    settings = Settings(
        models=("synthetic:resnet50",),
        ranks=(16,),
        network="fattree:4x4,1,8gbit,50us",
        schedules=("wfbp",),
        fusions=("25MB",),
        forward_s=0.05,
    )
    (found,) = simulate(settings)
    written = programs("ring", "all_reduce", 16)
    for factors in ({"alpha": 0.5}, {"beta": 0.5}):
        link = {name: factors.get(name, 1.0) * value for name, value in (("alpha", 50e-6), ("beta", 1e-9))}
        (seconds,) = found.scenario.rewired(**factors).prices.seconds("ring", "all_reduce", [MIB])
        assert seconds == pytest.approx(replay(written, MIB // 4, 4, parse_topology("fattree:4x4,1"), **link), rel=1e-3)
    assert "twice the bandwidth" in dict(remedies(found))
    assert all(len(each.curve.known) <= len(PLACES) for each in found.scenario.prices.replays.values())


@needs_simgrid
def test_the_command_says_who_replayed(tmp_path):
    file, network = tmp_path / "rows.json", "dragonfly:2x2x2x2,10gbit,50us"
    flags = ["--ranks", "16", "--network", network, "--algorithm", "swing", "--json", str(file)]
    done = CliRunner().invoke(app, ["simulate", *flags])
    assert done.exit_code == 0, done.output
    assert "assumed; replayed by SimGrid)" in " ".join(done.output.split())
    assert "What would help" in done.output
    for row in json.loads(file.read_text()):
        assert (row["network"], row["network_origin"]) == (network, "replayed")
        assert row["alpha_s"] == pytest.approx(50e-6)
        assert row["beta_s_per_B"] == pytest.approx(8e-10)
