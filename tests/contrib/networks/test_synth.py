"""Synthesised programs: proved, priced near the bound, exact on threads, and explained."""

import shutil

import pytest

from dear_mpi.collectives import ProgramError, programs, verify
from dear_mpi.collectives.algorithms.registry import algorithm_source, load_algorithm, made_from
from dear_mpi.collectives.program.cost import cost
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.contrib.networks.graph import Graph, Port, read_graph, write_graph
from dear_mpi.contrib.networks.network import GraphNetwork
from dear_mpi.contrib.networks.synth import by_levels, programs_of, schedule_of, synthesise
from dear_mpi.reporting.declared import BETWEEN_ALGORITHMS, listed
from dear_mpi.see.explain import PROOFS
from dear_mpi.simulate.network import read_network
from tests import collective_checks as checks
from tests.cli_checks import assert_one_line, invoke, succeed
from tests.contrib.networks.graphs import hosts_graph, random_graph
from tests.contrib.networks.on_simgrid import replay

needs_simgrid = pytest.mark.skipif(shutil.which("smpirun") is None, reason="needs SimGrid (Debian: libsimgrid-dev)")
COLLECTIVES = ("reduce_scatter", "all_gather", "all_reduce")


def damaged(text, seed=0):
    """One link of a shape at half its rate, another at a quarter, one dead."""
    graph = read_graph(text)
    one, other, dead, *_ = [pair for number, pair in enumerate(sorted(graph.links)) if number % 7 == seed % 7]
    links = dict(graph.links)
    for pair, factor in ((one, 0.5), (other, 0.25)):
        links[pair] = links[pair[::-1]] = graph.links[pair] * factor
    for pair in (dead, dead[::-1]):
        del links[pair]
    return Graph(graph.size, links, graph.ports, graph.alpha)


def in_bytes(graph, rate=1e9):
    return Graph(graph.size, {pair: units * rate for pair, units in graph.links.items()}, graph.ports, 1e-6)


NETWORKS = {
    "torus": read_graph("torus:4x4"),
    "larger torus": read_graph("torus:4x4x4"),
    "mesh": read_graph("mesh:4x5"),
    "damaged torus": damaged("torus:4x6"),
    "damaged mesh": damaged("mesh:4x4"),
    "irregular": in_bytes(random_graph(16, 1, caps=(1, 2), extra=16, symmetric=True)),
    "star": read_graph("star:16,1GB/s,2us"),
    "fat tree": read_graph("fattree:4x8,2,1GB/s,2us"),
    "damaged star": damaged("star:17"),
    "hosts": hosts_graph(4, 4, inside=8e9, uplink=1e9),
    "one way": in_bytes(random_graph(20, 2, caps=(1, 2), extra=20)),
}


def saved(tmp_path, graph):
    path = tmp_path / "graph.json"
    write_graph(graph, path)
    return f"synth:{path}"


@pytest.mark.parametrize("name", NETWORKS)
def test_proved_and_near_the_bound(name, tmp_path):
    graph = NETWORKS[name]
    algorithm = saved(tmp_path, graph)
    for collective in COLLECTIVES:
        verify(written := programs(algorithm, collective, graph.size))
    forth = synthesise(graph)
    back = synthesise(graph.reverse, forth.schedule.parts)
    count = written[0].chunks << 14
    bound_s = float(forth.cut.time + back.cut.time) * count * 4 / graph.size / forth.unit
    assert bound_s * (1 - 1e-9) <= cost(written, count, 4, GraphNetwork.of(graph)).time_s <= bound_s / 0.95


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs_are_proved(seed, tmp_path):
    graph = random_graph(3 + seed, seed, port=(None, 2)[seed % 2])
    for collective in COLLECTIVES:
        written = programs(saved(tmp_path, graph), collective, graph.size)
        verify(written)
        PROOFS["messages"](written)


@pytest.mark.parametrize(("hosts", "ranks"), [(2, 2), (3, 4), (5, 3), (16, 8)])
def test_equal_hosts_are_made_in_two_levels(hosts, ranks):
    graph = hosts_graph(hosts, ranks, inside=8e9, uplink=1e9)
    schedule, told = by_levels(graph)
    assert told.startswith(f"{hosts} steps in two levels.")
    verify(written := programs_of(schedule, graph.size))
    count = written[0].chunks << 14
    bound_s = (hosts - 1) * ranks * count * 4 / graph.size / 1e9
    assert bound_s * (1 - 1e-9) <= cost(written, count, 4, GraphNetwork.of(graph)).time_s <= bound_s * 1.1


def test_levels_are_taken_if_they_are_faster():
    assert "in two levels" in schedule_of(hosts_graph(2, 3, inside=8e9, uplink=1e9))[1]
    assert "in two levels" not in schedule_of(hosts_graph(2, 2, inside=1e9, uplink=8e9))[1]
    graph = hosts_graph(3, 3)
    uneven = Graph(9, graph.links, (Port((0, 1), 2, 2), Port((2, 3, 4), 2, 2), Port((5, 6, 7, 8), 2, 2)))
    assert by_levels(uneven) is None


@pytest.mark.parametrize("text", ["torus:4", "star:3", "torus:2", "mesh:1x5", "torus:1"])
def test_exact_with_the_same_bits_on_all_ranks(text):
    size = read_graph(text).size
    run_loopback(size, lambda transport: checks.check_same_bits(transport, f"synth:{text}", "fp32"))


@needs_simgrid
@pytest.mark.parametrize("name", NETWORKS)
def test_prices_agree_with_simgrid(name, tmp_path):
    graph = NETWORKS[name]
    written = programs(saved(tmp_path, graph), "all_reduce", graph.size)
    count = written[0].chunks << 14
    found = cost(written, count, 4, GraphNetwork.of(graph)).time_s
    assert replay(written, count, 4, graph) == pytest.approx(found, rel=0.01)


def test_messages_share_links_and_ports():
    """The ring on a damaged star, and hosts with an uplink that a link does not fill."""
    graph = in_bytes(random_graph(4, 1, caps=(1,), extra=0, symmetric=True))
    ring = programs("ring", "all_gather", 4)
    assert cost(ring, 4000, 1, GraphNetwork.of(graph)).time_s == pytest.approx(3 * (1e-6 + 1000e-9))
    slow = Graph(4, graph.links | {(0, 1): 0.5e9}, alpha=1e-6)
    assert cost(ring, 4000, 1, GraphNetwork.of(slow)).time_s == pytest.approx(3 * (1e-6 + 2000e-9))
    pairs = programs("pairwise", "all_gather", 4)
    hosts = hosts_graph(2, 2, inside=4e9, uplink=1e9)
    assert cost(pairs, 4000, 1, GraphNetwork.of(hosts)).time_s == pytest.approx((1000 + 2000 + 1000) * 1e-9)


def test_messages_without_a_link_go_through_other_ranks():
    network = GraphNetwork.of(Graph(4, read_graph("mesh:4").links, alpha=1e-6))
    assert network.hops(0, 3) == [0, 1, 2, 3]
    assert network.link(network.distance(0, 3)).alpha == pytest.approx(3e-6)
    assert len(network.way_out(3, 0)) == 3


def test_a_network_of_the_command_line(tmp_path):
    write_graph(read_graph("torus:2x4"), tmp_path / "graph.json")
    found = read_network(f"graph:{tmp_path / 'graph.json'}", 8).network
    assert isinstance(found, GraphNetwork)
    with pytest.raises(ValueError, match="has 8 ranks, not 4: use --ranks 8"):
        read_network(f"graph:{tmp_path / 'graph.json'}", 4)


def test_explained(tmp_path):
    said = succeed(
        "explain", "--algorithm", "synth:torus:4", "--collective", "all_gather", "--ranks", "4", "--check"
    ).stdout
    for text in ("3 steps, with 2 chunks per rank", "Bound: 3 steps", "Gap: 0.0%", "Certificate: no schedule with 2"):
        assert text in " ".join(said.split())
    assert "Proved for 4 ranks" in said


@pytest.mark.parametrize(("text", "said"), [
    ("star:1", "0 steps: one rank has all chunks."),
    ("torus:2", "Bound: 1 step: 1 chunk must leave rank 1, 1 in a step."),
    ("mesh:3x3", "Bound: 4 steps: 8 chunks must leave ranks 1-8, 2 in a step."),
])  # fmt: skip
def test_the_bound_in_words(text, said):
    assert said in load_algorithm(f"synth:{text}")["all_gather"].__doc__


def test_refused(tmp_path):
    with pytest.raises(
        ProgramError, match="'synth:torus:4' fails for rank 0 of 5: ValueError: it is for 4 ranks, not for 5"
    ):
        programs("synth:torus:4", "all_gather", 5)
    with pytest.raises(ValueError, match="serves reduce_scatter, all_gather, all_reduce, not broadcast"):
        programs("synth:torus:4", "broadcast", 4)
    assert_one_line(invoke("explain", "--algorithm", "synth:tours:4"), "or a shape as mesh:5x5")


def test_made_anew_when_its_file_changes(tmp_path):
    name = saved(tmp_path, read_graph("torus:4"))
    source, before = algorithm_source(name), programs(name, "all_gather", 4)
    assert made_from(algorithm_source(name)) is made_from(source)
    write_graph(read_graph("star:4"), tmp_path / "graph.json")
    assert algorithm_source(name) != source
    assert programs(name, "all_gather", 4) != before


def test_shapes_with_commas_are_listed():
    assert listed("--algorithm", "ring,synth:fattree:2x4,2,auto", BETWEEN_ALGORITHMS) == (
        "ring",
        "synth:fattree:2x4,2",
        "auto",
    )
