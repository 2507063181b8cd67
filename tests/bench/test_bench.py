"""The benchmark without MPI: sizes, ranks that are threads, the fitted network, means of ratios, rules for `auto`."""

import re
from dataclasses import replace
from itertools import product
from threading import current_thread
from types import SimpleNamespace

import pytest

from dear_mpi.bench.backends import calls_of, label
from dear_mpi.bench.case import OPERATIONS, CannotRun, Case, Samples, row_of
from dear_mpi.bench.data import Data, check_exact
from dear_mpi.bench.fit import fit_network, programs_of
from dear_mpi.bench.native import FORMS
from dear_mpi.bench.output import fit_text
from dear_mpi.bench.run import against_peers, bench, modelled, shown
from dear_mpi.bench.saved import tuned
from dear_mpi.bench.suite import Suite
from dear_mpi.bench.timing import in_a_row
from dear_mpi.collectives.plans.tuning import Rule, wants_shared, write_rules
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.ranks.streams import host_streams
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.units import parse_sizes


def row(algorithm, nbytes, p50_us=1.0, collective="all_reduce", ranks=4, **facts):
    made = row_of(
        Case(collective, nbytes), algorithm, Samples([[p50_us * 1e-6] * 9] * ranks, 0), backend="here", hosts=[ranks],
        segment_bytes=1 << 18,
    )  # fmt: skip
    return replace(made, **facts)


def synthetic(network, algorithms, collectives=("all_reduce",), ranks=4):
    cases = product(collectives, parse_sizes("4B:64MiB"), algorithms)
    rows = [row(algorithm, nbytes, collective=kind, ranks=ranks) for kind, nbytes, algorithm in cases]
    return [replace(each, p50_us=cost(programs_of(each), each.count, 4, network).time_s * 1e6) for each in rows]


@pytest.mark.parametrize(("names", "homes"), [(("ring",), 1), (("ring", "function"), 2)])
def test_sizes_beyond_memory_are_left_out(names, homes, monkeypatch):
    """Three arrays for each of 3 ranks, and as many again where some have private memory and others share."""
    monkeypatch.setattr("dear_mpi.bench.run.available_bytes", lambda: 3 * 3 * homes * 1024)
    settings = Suite((1024, 1028, 4096), algorithms=names, memory="shared", budget_s=0.01)
    report = run_world(lambda world: bench(settings, world), threads=3)
    assert {row.bytes for row in report.rows} == {1024}
    assert [left[1:] for left in report.left_out] == [("all_reduce", 1028), ("all_reduce", 4096)]
    assert re.fullmatch(r"all: more memory than the [.0-9e-]+ GiB that each rank can have", report.left_out[0][0])


def case_of_three(collective, placement):
    return Case.of(collective, 4080, 3, {"placement": placement, "dtype": "fp32", "op": "sum"})


def data_of_three(case):
    worlds = [SimpleNamespace(rank=rank, size=3, transport=None) for rank in range(3)]
    return [Data(case, world, host_streams(), "private") for world in worlds]


@pytest.mark.parametrize("collective", OPERATIONS)
@pytest.mark.parametrize("placement", ["in", "out"])
def test_data_that_nobody_has_worked_on_is_wrong(collective, placement):
    """Whatever a collective promises to a rank is not there before, or the check would prove nothing."""
    for turn in range(1, 40):
        ranks = data_of_three(case_of_three(collective, placement))
        for data in ranks:
            data.fill(turn)
        sender = collective in ("broadcast", "scatter") and placement == "in"  # the root's result is there already
        assert all(data.errors(turn) > 0.5 * data.result.size for data in ranks[sender:] if data.result.size)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather"])
def test_ranks_may_be_threads(ranks, kind):
    settings = Suite((8, 3000), (kind,), ("ring", "auto", "shared"), segments=(512, 1024), iterations=5)
    report = run_world(lambda world: bench(settings, world), threads=ranks)
    assert {row.algorithm for row in report.rows} == {*settings.names}
    assert {(row.wrong, row.ranks, row.backend) for row in report.rows} == {(0, ranks, "loopback (threads)")}
    cuts = [row.segment_bytes for row in report.rows if (row.algorithm, row.bytes) == ("ring", 3000)]
    assert cuts == [512, 1024]
    assert not report.left_out


def test_who_needs_mpi_says_so_to_threads():
    settings = Suite((60,), algorithms=("native", "naive"), iterations=5)
    report = run_world(lambda world: bench(settings, world), threads=3)
    reason = "needs messages of MPI itself, not loopback (threads)"
    assert report.left_out == [(f"native: {reason}", "all_reduce", 60)]
    assert {row.algorithm for row in report.rows} == {"naive"}


@pytest.mark.parametrize("memory", ["auto", "shared", "private"])
def test_each_backend_has_the_memory_of_a_users_program(memory):
    """Shared where the algorithm, or the choice of ``auto`` at that size, works in the buffer; private elsewhere."""
    settings = Suite((4096, 65536), algorithms=("ring", "auto", "shared"), memory=memory, iterations=5)
    rows = run_world(lambda world: bench(settings, world), threads=2).rows
    wanted = {("auto", 65536): "shared", ("shared", 65536): "shared"} if memory == "auto" else {}
    default = "shared" if memory == "shared" else "private"
    found = {(row.algorithm, row.bytes): row.memory for row in rows}
    assert found == {key: wanted.get(key, default) for key in found}
    assert len(found) == 6
    assert all(row.wrong == 0 for row in rows)


def test_training_and_the_benchmark_take_shared_memory_for_the_same_algorithms(tmp_path):
    rules = tmp_path / "rules.json"
    write_rules(rules, {}, [Rule("all_reduce", 2, 1 << 20, "shared", 4096), Rule("all_reduce", 2, None, "ring", 4096)])
    asked = {name: wants_shared(name, (0, 0)) for name in ("ring", "shared", "auto", f"auto:{rules}", "native")}
    assert asked == {"ring": False, "shared": True, "auto": True, f"auto:{rules}": True, "native": False}
    assert not wants_shared("auto", (0, 1))  # between hosts nothing is shared
    sizes = {nbytes: wants_shared(f"auto:{rules}", (0, 0), "all_reduce", nbytes) for nbytes in (4096, 1 << 20, 1 << 21)}
    assert sizes == {4096: False, 1 << 20: True, 1 << 21: False}
    assert not wants_shared("auto", (0, 0), "all_to_all", 1 << 20)  # the table has no such rule


def test_auto_says_what_it_chose():
    settings = Suite((100, 4096, 65536), algorithms=("ring", "auto"), iterations=5)
    report = run_world(lambda world: bench(settings, world), threads=2)
    chosen = {row.bytes: row for row in report.rows if row.algorithm == "auto"}
    found = {nbytes: (row.chosen, row.model_us is not None) for nbytes, row in chosen.items()}
    small, shared = ("recursive_doubling", True), ("shared", False)  # which sends no messages
    assert found == {100: small, 4096: small, 65536: shared}
    assert label("auto", chosen[65536].chosen) == "auto (shared)"


def test_the_two_cadences_are_named_and_checked():
    for cadence in ("isolated", "streaming"):
        settings = Suite((100, 3000), ("all_reduce", "reduce_scatter"), ("ring",), cadence=cadence, iterations=5)
        for row in run_world(lambda world, settings=settings: bench(settings, world), threads=3).rows:
            assert (row.cadence, row.wrong, row.samples) == (cadence, 0, 5)
            assert row.rank_min_us <= row.mean_us * (1 + 1e-9)
            assert row.mean_us <= row.rank_max_us * (1 + 1e-9) or cadence == "isolated"


def test_calls_in_a_row_are_as_many_on_all_ranks(monkeypatch):
    """Also where their arrays are not as long: here one has 64 KiB, and the other an element more."""
    found = []

    def counted(run, barrier, calls):
        found.append((current_thread().name, calls))
        return in_a_row(run, barrier, calls)

    monkeypatch.setattr("dear_mpi.bench.timing.in_a_row", counted)
    how = {"placements": ("out",), "cadence": "streaming", "iterations": 3}
    run_world(lambda world: bench(Suite((2 * 65536 + 4,), ("all_gather",), ("ring",), **how), world), threads=2)
    mine, other = ([calls for name, calls in found if name == f"rank_{rank}"] for rank in range(2))
    assert mine == other
    assert max(mine) > 1


def test_a_sample_is_of_the_slowest_rank_or_the_mean_over_ranks():
    samples = Samples([[1e-6, 5e-6], [3e-6, 3e-6]], 0)
    rows = [
        row_of(Case("all_reduce", 8, cadence=cadence), "ring", samples, backend="", hosts=[2], segment_bytes=4)
        for cadence in ("isolated", "streaming")
    ]
    assert [(row.min_us, row.max_us) for row in rows] == [pytest.approx((3, 5)), pytest.approx((2, 4))]
    assert [(row.rank_min_us, row.rank_max_us) for row in rows] == [pytest.approx((3, 3))] * 2
    assert rows[0].hosts == [2]


def test_the_best_call_of_a_library_stands_for_those_that_serve_the_case():
    assert calls_of("native-best", Case("reduce_scatter", 64), 2) == [f"native{suffix}" for suffix in FORMS]
    blocking_or_not = ["native", "native-nonblocking", "native-persistent"]
    assert calls_of("native-best", Case("reduce_scatter", 12), 2) == [*blocking_or_not, "native-beside"]
    assert calls_of("native-best", Case("broadcast", 64), 2) == blocking_or_not
    assert calls_of("ring", Case("broadcast", 64), 2) == ["ring"]


def test_a_call_that_the_library_lacks_is_left_out():
    def refused(*_):
        raise NotImplementedError

    for old in (SimpleNamespace(Allreduce=None), SimpleNamespace(Allreduce_init=refused)):
        with pytest.raises(CannotRun, match="has no MPI_Allreduce_init"):
            FORMS["-persistent"].prepare(old, [[("Allreduce", ())]])


def test_the_peer_is_the_fastest_call_at_each_size():
    made = [row("native", 4, 8.0), row("native-persistent", 4, 4.0), row("native-counts", 4, 6.0), row("ring", 4, 6.0)]
    made += [row("native", 64, 3.0), row("native-persistent", 64, 4.0), row("ring", 64, 6.0), row("ring", 256, 6.0)]
    rows = against_peers(made)
    peers = [(each.peer, each.over_peer) for each in rows if each.algorithm == "ring"]
    assert peers == [("native-persistent", 1.5), ("native", 2.0), ("ring", 1.0)]
    of_best = [(each.algorithm, each.bytes) for each in shown(rows, ("native-best", "ring"))]
    assert of_best == [("native-persistent", 4), ("ring", 4), ("native", 64), ("ring", 64), ("ring", 256)]


def test_sizes_that_are_as_many_elements_are_measured_once():
    suite = Suite(sizes=(5, 4, 7, 8, 17), collectives=("all_reduce", "all_to_all"))
    found = [(case.collective, case.nbytes) for case in suite.cases(2)]
    assert found == [*product(["all_reduce"], (4, 8, 16)), *product(["all_to_all"], (8, 16))]


def test_sums_that_no_type_can_hold_are_refused():
    check_exact(Case("all_reduce", 4, dtype="bf16"), 256)
    check_exact(Case("all_reduce", 4, dtype="bf16", op="max"), 1000)
    check_exact(Case("all_gather", 4, dtype="bf16"), 1000)
    with pytest.raises(ValueError, match="dtype 'bf16' has no exact sums over 257 ranks"):
        check_exact(Case("all_reduce", 4, dtype="bf16"), 257)


@pytest.mark.parametrize("ranks", [2, 4, 7])
def test_the_fit_finds_the_network_again(ranks):
    network = Network(alpha=20e-6, beta=0.3e-9, gamma=0.1e-9)
    rows = synthetic(network, ["ring", "naive", "bruck"], ["all_reduce", "all_gather"], ranks)
    fit = fit_network([*rows, row("native", 4, 1e9, ranks=ranks)])
    assert "gamma" in fit.told
    assert fit.rows == len(rows)
    assert fit.residual < 1e-6
    for cost_of in ("alpha", "beta", "gamma"):
        assert getattr(fit.network, cost_of) == pytest.approx(getattr(network, cost_of), rel=1e-4)
    *_, ring, native = modelled([*rows, row("native", 4, 1e9, ranks=ranks)], (), None)[1]
    assert (ring.model_us, native.model_us) == (pytest.approx(rows[-1].p50_us), None)
    assert 0 < ring.bound_us <= 1.001 * min(each.p50_us for each in rows if each.case == ring.case)
    assert "alpha 20.0 us, o " in fit_text(fit)
    assert ", 1/beta 3.33 GB/s, 1/gamma 10.00 GB/s" in fit_text(fit)


@pytest.mark.parametrize("o", [0.5e-6, 5e-6])
def test_many_messages_in_a_step_tell_the_processor_from_the_latency(o):
    network = Network(alpha=20e-6, beta=0.3e-9, gamma=0.1e-9, o=o)
    rows = synthetic(network, ["ring", "naive", "pairwise"], ["all_reduce", "all_gather"], 7)
    fit = fit_network(rows)
    assert fit.told == ("alpha", "beta", "gamma", "o")
    assert fit.network.alpha == pytest.approx(network.alpha, rel=1e-3)
    assert fit.network.o == pytest.approx(o, rel=1e-3)
    assert f"o {o * 1e6:.1f} us" in fit_text(fit)


def test_one_ring_does_not_tell_gamma_from_beta():
    fit = fit_network(synthetic(Network(alpha=1e-6, beta=1e-9, gamma=1e-9, o=1e-6), ["ring"]))
    assert fit.told == ("alpha", "beta")
    assert fit.network.gamma == fit.network.o == 0
    assert fit.network.alpha == pytest.approx(3e-6, rel=1e-3)  # o at both ends of a message
    assert fit.network.beta == pytest.approx(1.5e-9, rel=1e-3)
    assert "cannot tell gamma from beta" in fit_text(fit)
    assert "cannot tell o from alpha" in fit_text(fit)


def test_nothing_of_the_network_is_negative():
    rows = [replace(each, p50_us=100.0 + 1e5 / each.bytes) for each in synthetic(Network(), ["ring", "naive"])]
    network = fit_network(rows).network
    assert min(network.alpha, network.beta, network.gamma, network.o) >= 0


@pytest.mark.parametrize(
    "rows", [[], [row("ring", 4)], [row("native", 4), row("native", 8)], [row("ring", 4, ranks=1)]]
)
def test_too_little_to_fit(rows):
    assert fit_network(rows) is None
    assert "No network fitted" in fit_text(None)


def test_a_call_by_function_is_a_backend_of_ours_in_private_memory():
    settings = Suite((64, 1 << 17), collectives=tuple(COLLECTIVES), algorithms=("auto", "function"), budget_s=0.01)
    rows = run_world(lambda world: bench(settings, world), threads=3).rows
    assert not any(row.wrong for row in rows)
    found = [row for row in rows if row.algorithm == "function"]
    assert len(found) == 2 * len(COLLECTIVES)
    assert {row.memory for row in found} == {"private"}
    assert {label(row.algorithm, row.chosen) for row in found} == {"function"}


def test_rules_keep_what_is_as_fast_within_the_interval():
    def timed(algorithm, nbytes, p50_us):
        return replace(row(algorithm, nbytes, p50_us), ci_high_us=p50_us * 1.1)

    rows = [
        *(timed("ring", 16, 10), timed("bruck", 16, 9.5), timed("native", 16, 1), timed("auto", 16, 1)),  # ring: first
        *(timed("ring", 64, 10), timed("bruck", 64, 5), timed("naive", 64, 4.9)),  # bruck, and not naive
        *(timed("ring", 256, 10), timed("bruck", 256, 10.5)),  # still bruck
        timed("mine.py:f", 4096, 1),
        *(timed("ring", 4096, 10), timed("bruck", 4096, 20), timed("shared", 4096, 3)),
    ]
    segment = rows[0].segment_bytes
    due = ((32, "ring"), (1024, "bruck"), (None, "ring"), (None, "shared"))
    assert tuned(rows) == [Rule("all_reduce", 4, up_to, name, segment) for up_to, name in due]
    assert tuned([timed("ring", 4, 1), timed("shared", 4, 2)]) == [Rule("all_reduce", 4, None, "ring", segment)]
    assert tuned([timed("shared", 4, 2), timed("native", 4, 2)]) == []


def test_each_number_of_ranks_has_rules_of_its_own_for_all_sizes():
    """On 2 ranks the ring is the faster one at both sizes, and on 4 ranks the other one: sizes of both take turns."""
    times_us = {(2, "ring"): 1, (2, "bruck"): 2, (4, "ring"): 4, (4, "bruck"): 3}
    rows = [row(name, size, us, ranks=ranks) for (ranks, name), us in times_us.items() for size in (4, 1024)]
    segment = rows[0].segment_bytes
    wanted = [Rule("all_reduce", 2, None, "ring", segment), Rule("all_reduce", 4, None, "bruck", segment)]
    assert tuned(rows) == tuned(rows[::-1])[::-1] == wanted
