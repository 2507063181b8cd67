"""Graphs are read from files of links, from our own files and from shapes; errors name file and row."""

import copy
import json
import os
import random
from contextlib import suppress

import pytest

from dear_mpi.contrib.networks.bound import in_units
from dear_mpi.contrib.networks.graph import Graph, Port, distances, read_graph, write_graph


def measured(rates, hosts):
    """A file of ``links``; ``rates``: GB/s by pair."""
    row = {
        "path": "host",
        "latency_us": 20.0,
        "latency_bytes": 8,
        "latency_samples": 100,
        "bytes": 1 << 20,
        "samples": 30,
    }
    row |= {"latency_low_us": 19.0, "latency_high_us": 21.0}
    links = [
        {**row, "source": source, "dest": dest, "GBps": rate, "GBps_low": rate, "GBps_high": rate}
        for (source, dest), rate in rates.items()
    ]
    return {"links": links, "ranks": [{"host": host} for host in hosts]}


def all_pairs(size, rate=0.1):
    return {(one, other): rate for one in range(size) for other in range(size) if one != other}


def read(tmp_path, content):
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(content))
    return read_graph(path)


def test_a_graph_is_read_as_it_was_written(tmp_path):
    graph = Graph(3, {(0, 1): 1e9, (1, 2): 2.5e8, (2, 0): 1e9}, (Port((0, 1), 1e9, 2e9),), 1e-5)
    write_graph(graph, tmp_path / "graph.json")
    assert read_graph(tmp_path / "graph.json") == graph
    assert graph.reverse.links[1, 0] == 1e9
    assert graph.reverse.ports == (Port((0, 1), 2e9, 1e9),)
    assert graph.reverse.reverse == graph


def test_measured_links_get_a_port_per_rank_and_per_host(tmp_path):
    rates = {pair: 5.0 if pair[0] // 2 == pair[1] // 2 else 0.1 for pair in all_pairs(4)} | {(0, 2): 0.12}
    graph = read(tmp_path, measured(rates, "aabb"))
    assert graph.alpha == pytest.approx(2e-5)
    assert graph.links[0, 1] == 5e9
    assert [port.ranks for port in graph.ports] == [(0,), (1,), (2,), (3,), (0, 1), (2, 3)]
    assert graph.ports[0].out == 5e9
    assert graph.ports[4] == Port((0, 1), 1.2e8, 1e8)
    assert graph.hosts == (0, 0, 1, 1)
    assert graph.passed[0, 1] == ((0,), (1,))
    assert graph.passed[1, 2] == ((1, 4), (5, 2))


def test_ranks_of_one_host_share_nothing_but_their_own_ports(tmp_path):
    graph = read(tmp_path, measured(all_pairs(3), "aaa"))
    assert [port.ranks for port in graph.ports] == [(0,), (1,), (2,)]
    assert graph.hosts is None


def test_rates_are_rounded_to_few_units(tmp_path):
    noisy = {pair: rate * (1 + 0.02 * ((3 * pair[0] + pair[1]) % 3 - 1)) for pair, rate in all_pairs(4).items()}
    noisy |= {(0, 1): 0.051, (1, 0): 0.049}
    graph, unit = in_units(read(tmp_path, measured(noisy, "abcd")))
    assert graph.links == {pair: 1 if {*pair} == {0, 1} else 2 for pair in noisy}
    assert {port.out for port in graph.ports} == {2}
    assert unit == pytest.approx(0.049e9)


def test_fast_links_have_no_more_units_than_needed_and_dead_ones_none(tmp_path):
    rates = {pair: 50.0 if pair[0] // 2 == pair[1] // 2 else 0.1 for pair in all_pairs(4)} | {(0, 2): 0.001}
    graph, unit = in_units(read(tmp_path, measured(rates, "aabb")))
    assert (0, 2) not in graph.links
    assert max(graph.links.values()) == 8
    assert unit == pytest.approx(1e8)


@pytest.mark.parametrize(("text", "ranks", "links"), [
    ("mesh:5x5", 25, 80), ("torus:4x4", 16, 64), ("torus:3x4x5", 60, 360), ("torus:2x3", 6, 18), ("star:5", 5, 20),
    ("fattree:2x4,2", 8, 56), ("torus:2x2,10gbit,50us", 4, 8),
])  # fmt: skip
def test_shapes(text, ranks, links):
    graph = read_graph(text)
    assert (graph.size, len(graph.links)) == (ranks, links)
    assert graph.unreachable() is None


def test_a_leaf_is_a_port():
    graph = read_graph("fattree:2x4,2,8gbit")
    assert graph.ports[-1] == Port((4, 5, 6, 7), 2e9, 2e9)
    assert distances(graph, 0) == [0, 1, 1, 1, 1, 1, 1, 1]


OURS = {"ranks": 3, "links": [[0, 1, 1.0], [1, 2, 1.0], [2, 0, 1.0]]}


@pytest.mark.parametrize(("content", "said"), [
    ({"links": [[0, 1, 1.0]]}, "it must have the field 'ranks'"),
    ({"ranks": 2, "links": []}, "rank 1 cannot be reached from rank 0: measure more pairs"),
    (OURS | {"links": [[0, 1, 1.0], [1, 0, 1.0], [2, 0, 1.0]]}, "rank 2 cannot be reached from rank 0"),
    (OURS | {"links": [[0, 1, 1.0], [1, 0, 1.0], [0, 2, 1.0]]}, "rank 0 cannot be reached from rank 2"),
    (OURS | {"links": [[0, 3, 1.0]]}, "the link 0 to 3: ranks must be from 0 to 2, not 3"),
    (OURS | {"links": [[1, 1, 1.0]]}, "the link 1 to 1: ranks must differ"),
    (OURS | {"links": [[0, 1, 0.0]]}, r"links\[0\]\[2\] must be a number >= 1.0, not 0.0"),
    (OURS | {"links": [[0, 1, 1e300]]}, r"links\[0\]\[2\] must be a number <= 10{15}.0, not 1e\+300"),
    (OURS | {"links": [[0, 1, float("nan")]]}, r"links\[0\]\[2\] must be a number >= 1.0, not NaN"),
    ({"ranks": 3, "alpha_s": 1e-5}, "it must have the field 'links'"),
    (OURS | {"links": [[0, 1, 1.0]] * 2}, r"links\[1\]: the link 0 to 1 is defined twice"),
    (OURS | {"links": [[0, 1]]}, r"links\[0\] must be a list of length 3, not \[0, 1\]"),
    (OURS | {"links": [[0, 1, "fast"]]}, r"links\[0\]\[2\] must be a number, not \"fast\""),
    (OURS | {"ports": [{"ranks": [0, 0], "out": 1, "into": 1}]}, r"ports\[0\]: ranks must differ"),
    (OURS | {"ports": [{"ranks": [0], "out": 1}]}, r"ports\[0\] must have the field 'into'"),
    (OURS | {"alpha_s": -1}, "alpha_s must be seconds >= 0, not -1"),
    (OURS | {"ranks": 0}, "ranks must be from 1 to 1024, not 0"),
    ({"rows": []}, "it has neither rows nor links"),
    ([], "it must be an object"),
])  # fmt: skip
def test_what_is_wrong_is_named(content, said, tmp_path):
    with pytest.raises(ValueError, match=f"graph '.*graph.json' must be a file of .*: .*{said}"):
        read(tmp_path, content)


def values(content, place=()):
    """The places of all values, each as the keys that lead there."""
    yield place
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in inner:
        yield from values(value, (*place, key))


OTHERS = (
    None,
    True,
    -1,
    0,
    1,
    2,
    10**30,
    0.5,
    -1.0,
    float("nan"),
    float("inf"),
    "",
    "0",
    [],
    {},
    [0],
    [[0, 1]],
    {"a": 1},
)
VALID = (
    OURS | {"ports": [{"ranks": [0, 1], "out": 1.0, "into": 1.0}], "alpha_s": 1e-5},
    measured(all_pairs(3), "aab"),
)


def test_any_file_is_read_or_refused(tmp_path):
    """Values of valid files are replaced, or left out."""
    rnd = random.Random(1)
    for _ in range(10_000 if os.environ.get("EVERY") else 300):
        content = copy.deepcopy(rnd.choice(VALID))
        for _ in range(rnd.randrange(1, 4)):
            *way, last = rnd.choice([place for place in values(content) if place])
            inner = content
            for key in way:
                inner = inner[key]
            if rnd.random() < 0.2:
                del inner[last]
            else:
                inner[last] = copy.deepcopy(rnd.choice(OTHERS))
        with suppress(ValueError):
            assert read(tmp_path, content).unreachable() is None


@pytest.mark.parametrize(("text", "said"), [
    ("tours:4x4", "must be a FILE.json of .*, or a shape as mesh:5x5"), ("torus:4x4x", "or a shape as"),
    ("torus:0x4", "sizes of at least 1"), ("torus:64x64", "at most 1024 ranks"), ("torus:4x4,fast", "bandwidth"),
    ("no.json", "is no readable JSON file"),
])  # fmt: skip
def test_a_wrong_text_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        read_graph(text)
