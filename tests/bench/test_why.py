"""Times taken apart: the parts add up to the model, and the sentence names the part that was planted."""

import json
from dataclasses import asdict, replace
from itertools import product

import numpy as np
import pytest

from dear_mpi.bench.analysis.explained import explained, show_why
from dear_mpi.bench.analysis.why import (
    Site,
    behind_middle,
    crossover,
    model_of,
    rounded_bytes,
    sentence,
    spread_us,
    taken_apart,
)
from dear_mpi.bench.fit import Fit, predicted_us, programs_of, time_s
from dear_mpi.bench.run import bench, bound_us
from dear_mpi.bench.suite import Suite
from dear_mpi.collectives.program.network import Network
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.terminal import console
from tests.bench.test_bench import row

NETWORK = Network(alpha=20e-6, beta=0.3e-9, gamma=0.1e-9, o=1e-6)
NAMES = ("ring", "naive", "bruck", "rabenseifner", "recursive_doubling", "binomial", "pairwise")


def fitted(network=NETWORK):
    return Fit(network, ("alpha", "beta", "gamma", "o"), 0.0, 9)


def timed(algorithm, nbytes, network=NETWORK, factor=1.0, ranks=4, collective="all_reduce"):
    """A row that takes so many times what the model says."""
    made = row(algorithm, nbytes, ranks=ranks, collective=collective)
    time_us = time_s(made, programs_of(made), network) * 1e6 * factor
    return row(algorithm, nbytes, time_us, ranks=ranks, collective=collective)


def apart(made, fit=None, **facts):
    fit = fit or fitted()
    return taken_apart(replace(made, bound_us=bound_us(made, fit.network), **facts), fit, Site(), made.algorithm)


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
        model = model_of(made, network, Site())
        if model is None:
            continue
        found += 1
        assert model.time_us == pytest.approx(predicted_us(made, fitted(network)), rel=1e-12, abs=1e-15)
        parts = asdict(model)
        assert min(parts.values()) >= 0
        by_counts = (
            network.alpha * model.messages
            + network.beta * model.nbytes
            + network.gamma * model.combined_nbytes
            + network.o * model.handled
        )
        assert by_counts * 1e6 == pytest.approx(model.time_us, rel=1e-3, abs=1e-2)
    assert found >= 12


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_a_ring_has_the_parts_of_its_closed_form(ranks):
    count = 1000 * ranks
    model = model_of(row("ring", 4 * count, ranks=ranks), Network(1e-6, 1e-9, 1e-10), Site())
    steps = 2 * (ranks - 1)
    assert (model.messages, model.nbytes, model.combined_nbytes) == (steps, 4000 * steps, 4000 * (ranks - 1))
    assert model.latency_us == pytest.approx(steps)
    assert model.bytes_us == pytest.approx(4 * steps)
    assert model.combining_us == pytest.approx(0.4 * (ranks - 1))
    assert model.spread_us == pytest.approx(0, abs=1e-9)


def test_everything_adds_up_to_what_was_measured():
    for factor in (0.8, 1.0, 1.7):
        made = replace(timed("naive", 1 << 16, factor=factor), mean_us=900.0, rank_min_us=500.0, rank_max_us=800.0)
        found = apart(made)
        total = found.model.time_us + found.late_us + found.rest_us
        assert total == pytest.approx(made.p50_us)


def test_a_rank_is_late_by_what_the_last_one_ends_after_the_middle_one():
    times_us = [[10.0, 10.0, 50.0], [11.0, 30.0, 11.0], [12.0, 12.0, 12.0]]  # of three ranks
    assert behind_middle(np.array(times_us)) == 18
    made = replace(timed("naive", 4096, factor=10, ranks=3), times_us=times_us)
    assert spread_us(made) == 18
    assert spread_us(replace(made, cadence="streaming")) is None
    assert spread_us(replace(made, times_us=None, mean_us=30.0, rank_min_us=10.0, rank_max_us=20.0)) == 15
    modelled_us = apart(made).model.spread_us
    assert 0 < modelled_us < 18
    assert apart(made).late_us == pytest.approx(18 - modelled_us)
    assert apart(timed("ring", 4096), times_us=times_us).late_us == pytest.approx(0, abs=1e-9)  # all is explained
    assert apart(row("native", 4096), times_us=times_us).late_us == 18


def test_a_call_of_a_library_has_a_bound_and_no_parts():
    found = apart(row("native", 1 << 20, 500.0))
    assert found.model is found.rest_us is None
    least_us = min(timed(name, 1 << 20).p50_us for name in ("ring", "naive", "rabenseifner", "recursive_doubling"))
    assert 0 < found.row.bound_us <= least_us


def said(mine, *others, fit=None):
    fit = fit or fitted()
    return sentence(apart(mine, fit), [apart(each, fit) for each in others], "SIZE", fit, Site())


def test_the_sentence_names_the_part_that_differs_most():
    small = said(timed("ring", 4096), timed("recursive_doubling", 4096))
    assert small.startswith("At SIZE ring (134 us) is slower than recursive_doubling (47 us) because it has 6 messages")
    assert "where recursive_doubling has 2 messages (40 us); from about 310 KiB on ring is the faster one" in small
    large = said(timed("recursive_doubling", 1 << 22), timed("ring", 1 << 22))
    assert "recursive_doubling (3399 us) is slower than ring (2334 us) because it has 8 MiB on its longest" in large
    faster = said(timed("ring", 1 << 22), timed("recursive_doubling", 1 << 22), timed("naive", 1 << 22))
    assert "ring (2334 us) is faster than recursive_doubling (3399 us) because it has 6 MiB on its longest" in faster


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
    assert named in said(mine, other, fit=fitted(network)).partition(" because ")[2]


def test_a_late_rank_is_the_reason_where_one_was_planted():
    slow = timed("ring", 1 << 16)
    ends = [[slow.p50_us] * 9] * 3 + [[slow.p50_us + 400] * 9]
    late = replace(slow, p50_us=slow.p50_us + 400, ci_low_us=500.0, ci_high_us=600.0, slow_rank=3, times_us=ends)
    assert "because it has a late rank, mostly rank 3 (400 us)" in said(late, timed("bruck", 1 << 16))


def test_where_the_model_does_not_explain_a_difference_no_reason_is_given():
    """The ring takes three times what its messages explain; a library's call takes any time, and is not judged."""
    odd = said(timed("ring", 4096, factor=3), timed("recursive_doubling", 4096))
    assert "why is not known: model and late ranks put 87 us between them, not 355 us" in odd
    beside = said(timed("ring", 4096, factor=3), row("native", 4096, 50.0))
    assert "why is not known: model and late ranks come to 134 us for ring, not 402 us." in beside
    assert "cannot be told apart" not in odd + beside
    shared = said(row("shared", 4096, 300.0), row("native", 4096, 50.0))
    assert "why is not known: shared has no program of messages" in shared


def test_beside_a_library_the_largest_part_is_named():
    found = said(timed("ring", 4096), row("native", 4096, 60.0))
    assert "89% of its time is 6 messages after one another (120 us); what native does inside is not known" in found
    assert "; from about 220 KiB on its bytes take longer than its latency" in found
    quick = said(timed("ring", 1 << 22), row("native", 1 << 22, 900.0))
    assert "native takes less than messages on this network can: it moves data in another way" in quick


def test_the_other_one_has_right_results():
    quick = replace(timed("ring", 4096, factor=0.01), wrong=1)
    assert "slower than recursive_doubling (47 us)" in said(
        timed("ring", 4096), quick, timed("recursive_doubling", 4096)
    )


def test_times_that_overlap_are_not_explained_by_differences():
    made = replace(timed("ring", 4096), ci_low_us=40.0)
    assert "cannot be told apart: their intervals overlap. As for ring, 89% of" in said(made, timed("bruck", 4096))


def test_alone_a_time_is_explained_by_itself():
    assert (
        said(timed("ring", 4096))
        == "At SIZE ring takes 134 us: 89% of its time is 6 messages after one another (120 us)."
    )
    assert "it cannot be taken apart" in sentence(
        taken_apart(row("ring", 4096), None, Site(), "ring"), [], "SIZE", None, Site()
    )


def test_the_crossover_is_where_the_model_has_both_alike():
    mine, other = apart(timed("ring", 4096)), apart(timed("recursive_doubling", 4096))
    size = crossover(mine, other, NETWORK, Site())
    at = [timed(name, size).p50_us for name in ("ring", "recursive_doubling")]
    assert at[0] == pytest.approx(at[1], rel=0.02)
    assert crossover(mine, apart(timed("naive", 4096)), NETWORK, Site()) is None  # the naive one never is
    assert crossover(mine, apart(row("native", 4096, 1.0)), NETWORK, Site()) is None


def test_the_nearest_size_and_the_fastest_call_of_a_library_are_taken():
    rows = [
        *(timed("ring", nbytes) for nbytes in (1024, 4096, 65536)),
        *(row("native", 4096, 90.0), row("native-persistent", 4096, 80.0), row("native-nonblocking", 4096, 85.0)),
    ]
    (found,) = explained(rows, ("ring", "native-best"), {4: fitted()}, Site(), 5000)
    assert [each.name for each in found.apart] == ["ring", "native-persistent"]
    assert "all_reduce of 4 KiB (nearest to 5000 B)" in found.title
    assert len(found.sentences) == 1
    report = found.as_report()
    assert json.loads(json.dumps(report)) == report
    assert report["parts"][0]["model"]["messages"] == 6
    assert len({len(line) for line in list(found.lines())[1:4]}) == 1  # columns stand under their heads


def test_each_case_is_explained_by_itself():
    rows = [timed("ring", 4096), timed("ring", 4096, collective="all_gather")]
    rows.append(replace(rows[0], placement="out of place"))
    titles = [each.title for each in explained(rows, ("ring",), {4: fitted()}, Site(), 4096)]
    assert len(set(titles)) == 3


def test_sizes_have_two_digits():
    assert [rounded_bytes(size) for size in (0, 1, 99, 1023, 1024, 1_000_000)] == [
        "0 B",
        "1 B",
        "99 B",
        "1000 B",
        "1 KiB",
        "980 KiB",
    ]


def test_ranks_that_are_threads_are_explained(capsys):
    settings = Suite((64, 6400), ("all_reduce", "broadcast"), ("ring", "naive", "auto"), budget_s=0.01)

    def run(world):
        report = bench(settings, world)
        return show_why(console(world), world, report, (6400,))

    found = run_world(run, threads=4)
    assert [(case["collective"], case["bytes"]) for case in found] == [("all_reduce", 6400), ("broadcast", 6400)]
    for part in (part for case in found for part in case["parts"] if part["model"]):
        model = part["model"]
        parts_us = sum(model[name] for name in ("latency_us", "bytes_us", "combining_us", "processor_us"))
        assert parts_us + part["late_us"] + part["rest_us"] == pytest.approx(part["time_us"])
    out = capsys.readouterr().out
    assert out
    assert all(line.startswith("#") for line in out.splitlines())
