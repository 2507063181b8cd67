"""The step-by-step search: TACOS's published times, limits of links and ports, large networks."""

import time

import pytest

from dear_mpi.contrib.networks.bound import cut_bound, in_units, least_steps
from dear_mpi.contrib.networks.graph import Graph, grid, read_graph
from dear_mpi.contrib.networks.greedy import search
from tests.contrib.networks.graphs import check_schedule, hosts_graph, random_graph

GIB = 1 << 30


def unequal(width, height, across, down):
    """A mesh with other rates across than down."""
    pairs = grid([height, width], around=False)
    return Graph(width * height, {pair: across if abs(pair[0] - pair[1]) == 1 else down for pair in pairs})


def found(graph, parts, **how):
    cut = cut_bound(graph)
    return search(graph, parts, least_steps(graph, parts, cut), **how)


# Of astra-sim/tacos 1.3.0, tests/ (MIT): MiB of the whole buffer, chunks per rank, GiB/s and us of a link, us.
TACOS = [
    ("mesh:5x5", 1024, 1, 50, 0.5, 9606.0), ("mesh:10x10", 1024, 2, 100, 1, 5049.0),
    ("torus:3x3x3", 1024, 1, 50, 0.5, 3706.20), ("torus:3x4x5", 2048, 2, 50, 0.5, 6676.67),
    ("mesh:3x3x3", 1024, 1, 50, 0.5, 6671.17), ("mesh:3x4x5", 2048, 2, 50, 0.5, 13353.33),
]  # fmt: skip


@pytest.mark.parametrize(("text", "MiB", "parts", "rate", "alpha", "expected"), TACOS)
def test_published_times_of_tacos(text, MiB, parts, rate, alpha, expected):
    graph, _ = in_units(read_graph(text))
    schedule = found(graph, parts)
    check_schedule(graph, schedule)
    chunk_us = (MiB << 20) / (graph.size * parts) / (rate * GIB) * 1e6
    assert schedule.steps * (chunk_us + alpha) == pytest.approx(expected, rel=1e-3)


def timed(graph, schedule, chunk, alpha):
    """The end of a schedule of whole chunks, if each link sends its chunks in order; rates in GiB/s, times in us."""
    ready = {(rank, rank * schedule.parts + part): 0.0 for rank in range(graph.size) for part in range(schedule.parts)}
    free = dict.fromkeys(graph.links, 0.0)
    for _, source, dest, each in sorted(schedule.moves):
        begin = max(ready[source, each], free[source, dest])
        ready[dest, each] = free[source, dest] = begin + alpha + chunk / (graph.links[source, dest] * GIB) * 1e6
    return max(ready.values())


@pytest.mark.parametrize(("shape", "units", "gib", "parts", "alpha", "expected"), [
    ((5, 5), (2, 3), (50, 75), 1, 0.5, 8005.0), ((8, 5), (16, 7), (80, 35), 2, 1, 8595.43),
])  # fmt: skip
def test_published_times_of_tacos_on_unequal_links(shape, units, gib, parts, alpha, expected):
    schedule = found(unequal(*shape, *units), parts, whole=True)
    chunk = GIB / (schedule.parts * shape[0] * shape[1])
    assert timed(unequal(*shape, *gib), schedule, chunk, alpha) == pytest.approx(expected, rel=1e-3)


def test_schedules_keep_to_links_and_ports():
    for seed in range(40):
        graph = random_graph(4 + seed % 9, seed, caps=(1, 2, 3), port=(None, 1, 2, 3)[seed % 4])
        check_schedule(graph, found(graph, 1 + seed % 3))
    check_schedule(hosts_graph(3, 3), found(hosts_graph(3, 3), 2))


def test_a_search_is_the_same_on_all_ranks():
    graph = random_graph(9, 3, port=2)
    assert found(graph, 2) == found(graph, 2)


@pytest.mark.parametrize(("text", "links"), [("torus:16x16", 4), ("torus:4x8x8", 6)])
def test_many_ranks(text, links):
    graph, _ = in_units(read_graph(text))
    least, begin_s = -(-255 // links), time.process_time()
    schedule = search(graph, 1, least)
    assert time.process_time() - begin_s < 60, "it takes two seconds on an idle core"
    check_schedule(graph, schedule)
    assert schedule.steps <= 1.1 * least


def test_a_full_mesh_behind_ports_takes_few_more_steps_than_a_ring():
    graph, _ = in_units(read_graph("star:16"))
    assert found(graph, 1).steps <= 16
