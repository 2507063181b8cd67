"""Times taken apart: the parts add up to the model, and the sentence names the part that was planted."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from dear_mpi.bench.fit import Fit, programs_of, time_s
from dear_mpi.bench.run import bound_us
from dear_mpi.collectives.program.cost import Network
from dear_mpi.contrib.analysis.why import PARTS, Site, behind_middle, cells, explained, model_of, sentence, spread_us
from tests.bench.test_bench import row

NETWORK = Network(alpha=20e-6, beta=0.3e-9, gamma=0.1e-9, o=1e-6)
NAMES = ("ring", "naive", "bruck", "rabenseifner", "recursive_doubling", "binomial", "pairwise")


def fitted(network=NETWORK):
    return Site(Fit(network, ("alpha", "beta", "gamma", "o"), 0.0, 9))


def timed(algorithm, nbytes, network=NETWORK, factor=1.0, ranks=4, collective="all_reduce"):
    """A row that takes so many times what the model says."""
    made = row(algorithm, nbytes, ranks=ranks, collective=collective)
    time_us = time_s(made, programs_of(made), network) * 1e6 * factor
    return row(algorithm, nbytes, time_us, ranks=ranks, collective=collective)


def apart(made, site=None, **facts):
    site = site or fitted()
    return site.apart(replace(made, bound_us=bound_us(made, site.fit.network), **facts), made.algorithm)


def random_networks():
    rng = np.random.default_rng(7)
    for _ in range(6):
        costs = 10.0 ** rng.uniform((-6, -10, -11, -7), (-4, -8, -9, -5))
        yield Network(*np.where(rng.random(4) < 0.25, 0.0, costs).tolist())
    yield from (Network(), Network(alpha=1e-6), Network(beta=1e-9), NETWORK)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("network", [*random_networks()])
def test_parts_add_up_to_the_model_and_none_is_negative(network, ranks):
    found = 0
    for name, collective, nbytes in product(NAMES, ("all_reduce", "all_gather", "reduce"), (ranks * 4, 9996, 1 << 20)):
        made = row(name, nbytes, ranks=ranks, collective=collective)
        model = model_of(made, network, Site(None))
        if model is None:
            continue
        found += 1
        total_us = sum(model[name] for name in PARTS)
        assert total_us == pytest.approx(time_s(made, programs_of(made), network) * 1e6, rel=1e-12, abs=1e-15)
        assert min(model.values()) >= 0
        costs = (network.alpha, network.beta, network.gamma, network.o)
        by_counts = sum(each * model[count] for each, (count, _) in zip(costs, PARTS.values(), strict=True))
        assert by_counts * 1e6 == pytest.approx(total_us, rel=1e-3, abs=1e-2)
    assert found >= 12


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_a_ring_has_the_parts_of_its_closed_form(ranks):
    count = 1000 * ranks
    model = model_of(row("ring", 4 * count, ranks=ranks), Network(1e-6, 1e-9, 1e-10), Site(None))
    steps = 2 * (ranks - 1)
    due = {"messages": steps, "nbytes": 4000 * steps, "combined_nbytes": 4000 * (ranks - 1), "latency_us": steps}
    due |= {"bytes_us": 4 * steps, "combining_us": 0.4 * (ranks - 1), "processor_us": 0, "spread_us": 0}
    assert {name: model[name] for name in due} == pytest.approx(due, rel=1e-5, abs=1e-9)


def test_everything_adds_up_to_what_was_measured():
    for factor in (0.8, 1.0, 1.7):
        made = replace(timed("naive", 1 << 16, factor=factor), mean_us=900.0, rank_min_us=500.0, rank_max_us=800.0)
        found = apart(made)
        total = found.model_us + found.late_us + found.rest_us
        assert total == pytest.approx(made.p50_us)


def test_a_rank_is_late_by_what_the_last_one_ends_after_the_middle_one():
    times_us = [[10.0, 10.0, 50.0], [11.0, 30.0, 11.0], [12.0, 12.0, 12.0]]  # of three ranks
    assert behind_middle(np.array(times_us)) == 18
    made = replace(timed("naive", 4096, factor=10, ranks=3), times_us=times_us)
    assert spread_us(made) == 18
    assert spread_us(replace(made, cadence="streaming")) is None
    assert spread_us(replace(made, times_us=None, mean_us=30.0, rank_min_us=10.0, rank_max_us=20.0)) == 15
    modelled_us = apart(made).model["spread_us"]
    assert 0 < modelled_us < 18
    assert apart(made).late_us == pytest.approx(18 - modelled_us)
    assert apart(timed("ring", 4096), times_us=times_us).late_us == pytest.approx(0, abs=1e-9)  # all is explained
    assert apart(row("native", 4096), times_us=times_us).late_us == 18


def test_a_call_of_a_library_has_a_bound_and_no_parts():
    found = apart(row("native", 1 << 20, 500.0))
    assert found.model is found.rest_us is None
    least_us = min(timed(name, 1 << 20).p50_us for name in ("ring", "naive", "rabenseifner", "recursive_doubling"))
    assert 0 < found.row.bound_us <= least_us


def said(mine, *others, site=None):
    site = site or fitted()
    return sentence(apart(mine, site), [apart(each, site) for each in others])


RING, TREE, NATIVE = timed("ring", 4096), timed("recursive_doubling", 4096), row("native", 4096, 50.0)
LARGE, LARGE_TREE, SLOW = timed("ring", 1 << 22), timed("recursive_doubling", 1 << 22), timed("ring", 4096, factor=3)
WRONG = replace(timed("ring", 4096, factor=0.01), wrong=1)
FIRST, LONGEST = "6 messages after one another (120 us)", "because it has {} MiB on its longest"
SENTENCES = [  # a row, the others, and what is said
    (RING, [TREE], "At 4 KiB ring (134 us) is slower than recursive_doubling (47 us) because it has 6 mess"),
    (RING, [TREE], "and recursive_doubling 2 messages after one another (40 us)."),
    (LARGE_TREE, [LARGE], f"recursive_doubling (3399 us) is slower than ring (2334 us) {LONGEST.format(8)}"),
    (LARGE, [LARGE_TREE, timed("naive", 1 << 22)], f"is faster than recursive_doubling (3399 us) {LONGEST.format(6)}"),
    (SLOW, [TREE], "the reason is unknown: model and late ranks explain a difference of 87 us, not 355 us"),
    (SLOW, [NATIVE], "the reason is unknown: model and late ranks explain 134 us of ring, not 402 us."),
    (row("shared", 4096, 300.0), [NATIVE], "the reason is unknown: shared has no program of messages"),
    (RING, [row("native", 4096, 60.0)], f"89% of its time is {FIRST}; the parts of native are unknown"),
    (LARGE, [row("native", 1 << 22, 900.0)], "native takes less than messages on this network can"),
    (RING, [WRONG, TREE], "slower than recursive_doubling (47 us)"),
    (replace(RING, ci_low_us=40.0), [timed("bruck", 4096)], "cannot be told apart: their intervals overlap. ring: 89%"),
    (RING, [], f"At 4 KiB ring takes 134 us: 89% of its time is {FIRST}."),
]


@pytest.mark.parametrize(("mine", "others", "words"), SENTENCES)
def test_the_sentence_names_the_part_that_differs_most_if_the_model_explains_it(mine, others, words):
    found = said(mine, *others)
    assert words in found
    assert ("cannot be told apart" in found) == ("intervals overlap" in words)


def test_without_a_fit_a_time_cannot_be_split():
    assert "it cannot be split" in sentence(Site(None).apart(row("ring", 4096), "ring"), [])


@pytest.mark.parametrize(
    ("cost", "named"),
    [("alpha", "messages after one another"), ("beta", "on its longest path"), ("gamma", "to combine"), ("o", "for a")],
)
def test_a_cost_that_outweighs_all_others_is_the_reason(cost, named):
    """A ring has more messages than a tree, and a naive all_reduce moves, combines and handles more than a ring."""
    network = replace(Network(1e-7, 1e-12, 1e-12, 1e-8), **{cost: {"alpha": 1e-4, "o": 1e-4}.get(cost, 1e-8)})
    slow, fast = ("naive", "recursive_doubling") if cost in ("alpha", "o") else ("naive", "ring")
    mine, other = (timed(name, 1 << 16, network, ranks=5) for name in (slow, fast))
    assert mine.p50_us > other.p50_us
    assert named in said(mine, other, site=fitted(network)).partition(" because ")[2]


def test_a_late_rank_is_the_reason_where_one_was_planted():
    slow = timed("ring", 1 << 16)
    ends = [[slow.p50_us] * 9] * 3 + [[slow.p50_us + 400] * 9]
    late = replace(slow, p50_us=slow.p50_us + 400, ci_low_us=500.0, ci_high_us=600.0, slow_rank=3, times_us=ends)
    assert "because it has a late rank, mostly rank 3 (400 us)" in said(late, timed("bruck", 1 << 16))


def test_the_nearest_size_and_the_fastest_call_of_a_library_are_taken():
    rows = [
        *(timed("ring", nbytes) for nbytes in (1024, 4096, 65536)),
        *(row("native", 4096, 90.0), row("native-persistent", 4096, 80.0), row("native-nonblocking", 4096, 85.0)),
    ]
    data, split = explained(rows, ("ring", "native-best"), fitted(), 5000)
    assert [each.name for each in split] == ["ring", "native-persistent"]
    assert (data["asked_bytes"], data["bytes"]) == (5000, 4096)
    assert len(data["sentences"]) == 1
    assert json.loads(json.dumps(data)) == data
    assert data["parts"][0]["model"]["messages"] == 6
    assert cells(split[0])[2:6] == ["120.0 (6)", "1.8 (6 KiB)", "0.3 (3 KiB)", "12.0 (12)"]
    assert cells(split[1])[2:6] == ["-"] * 4
