"""Sums along a tree of micro-batches: the same bits on any number of ranks, whatever else is chosen.

EVERY=1 trains all cells of the product; otherwise each 61st.
"""

import json
import math
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from dear_mpi.kernels.optimizers import SGD
from dear_mpi.models.layers import Dense, Gelu, SoftmaxCrossEntropy
from dear_mpi.ranks.world import run_world
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import simulate
from dear_mpi.training import Session
from dear_mpi.training.fabric.plan_cost import traffic
from dear_mpi.training.routes.find import FULL, SHARDED
from dear_mpi.training.routes.invariant import (
    FoldSubtrees,
    PackSubtrees,
    fold,
    leaves,
    shares,
    sources,
    subtrees,
    with_tree,
)
from dear_mpi.training.routes.proof import RouteError, prove
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import Saving
from dear_mpi.training.schedules import SCHEDULES
from docs.benchmarks.invariant_cost import cost
from tests.training.route_checks import layers
from tests.training_checks import EVERY, RANKS, agreed, check_bits_of_one_rank, on_all, on_one_rank, settings
from tests.training_checks import run_invariant as run

TREES = [(1 << k, ranks) for k in range(7) for ranks in range(1, (1 << k) + 1)]


def written(count, span=None):
    """The sum of micro-batches as a text with brackets."""
    return fold([(range(at, at + 1), str(at)) for at in span or range(count)], "({} + {})".format)


def test_parts_have_two_subtrees_and_are_even():
    for count, ranks in TREES:
        parts, least = shares(count, ranks), -(-count // ranks)
        assert [each for part in parts for each in part] == list(range(count))
        assert len(parts) == ranks
        assert all(1 <= len(subtrees(part)) <= 2 for part in parts)
        assert max(map(len, parts)) <= max(least, 4 / 3 * least)
        if count % ranks == 0:
            assert {(len(part), len(subtrees(part))) for part in parts} == {(count // ranks, 1)}


def test_ranks_write_the_sum_of_one():
    """Each rank carries out its leaves; the owner adds up their subtrees."""
    for count, ranks in TREES:
        sums, most = [], 0
        for part in shares(count, ranks):
            kept, buffers = [], {}
            for number, leaf in zip(part, leaves(part), strict=True):
                assert leaf.kept == len(kept)
                found = str(number)
                for _ in range(leaf.merges):
                    found = f"({kept.pop()} + {found})"
                if leaf.goes == "kept":
                    kept.append(found)
                else:
                    buffers[leaf.goes] = found
                most = max(most, len(kept))
            assert not kept
            sums += [(span, buffers[name]) for span, name in zip(subtrees(part), sources(part), strict=True)]
        assert fold(sums, "({} + {})".format) == written(count)
        assert most <= math.log2(count)


class InRankOrder(FoldSubtrees):
    def prove(self, memory):
        for rank in range(memory.size):
            rows = [memory.made[memory.read("subtrees", rank, row)][1:] for row in range(memory.size) if row != rank]
            rows.insert(rank, self.own_sums(memory, rank, rank))
            memory.write("gradients", rank, rank, memory.symbol("sum", *[each for row in rows for each in row]))


@pytest.mark.parametrize("micro_batches", [1, 2, 4, 8, 16, 1024])
@pytest.mark.parametrize("route", [FULL, SHARDED], ids=str)
def test_routes_are_proved_to_have_the_bits_of_one_rank(route, micro_batches):
    found = with_tree(route, micro_batches)
    proof, plain = prove(found), prove(route)
    assert proof == plain
    for number, stage in enumerate(found.out):
        rest = found.out[:number] + found.out[number + 1 :]
        with pytest.raises(RouteError):
            prove(replace(found, out=rest))
        if isinstance(stage, FoldSubtrees):
            other = InRankOrder(wire=stage.wire)
            with pytest.raises(RouteError, match="its sums do not have the bits of one rank"):
                prove(replace(found, out=(*rest, other)))


@pytest.mark.parametrize("ranks", [1, 2, 4, 5, 6, 7])
def test_routes_are_proved_on_other_numbers_of_ranks(ranks, monkeypatch):
    monkeypatch.setattr("dear_mpi.training.routes.proof.HOSTS", (0,) * ranks)
    for route, micro_batches in product((FULL, SHARDED), (8, 32)):
        assert prove(with_tree(route, micro_batches)).exact


def test_memory_of_a_second_subtree_is_there_if_a_rank_has_two():
    kinds = {ranks: with_tree(FULL, 8, ranks).buffers for ranks in RANKS}
    assert kinds == {1: {}, 2: {}, 3: {"earlier": "scratch"}, 4: {}, 5: {}}
    assert isinstance(with_tree(FULL, 8, 3).out[1], PackSubtrees)


# The product.

SUMMING = [name for name, schedule in SCHEDULES.items() if schedule.own_route() is None]
STEP = 1 if EVERY else 61  # a prime: the rest of the division goes through all choices
GROUPS = 8  # tests, which run side by side


@pytest.mark.parametrize("group", range(GROUPS))
def test_bits_of_one_rank(group):
    check_bits_of_one_rank(SUMMING, slice(STEP * group, None, STEP * GROUPS))


def test_choices_that_change_bits():
    """Otherwise the test above would show nothing. Two parts of a micro-batch are one more level of the tree."""
    found = [on_one_rank(0, "sgd", number) for number in range(3)]
    assert found[2] == run(1, optimizer="sgd", invariant=16)
    found += [run(1, optimizer="sgd", invariant=each) for each in (4, None)]
    assert len(set(map(repr, found))) == len(found)


@pytest.mark.parametrize(("before", "after"), [(3, 5), (5, 2), (1, 4)])
@pytest.mark.parametrize("choices", [{"optimizer": "adamw"}, {"optimizer": "muon", "update": "sharded"}], ids=str)
def test_a_checkpoint_goes_on_with_the_same_bits_on_other_ranks(before, after, choices, tmp_path):
    file = tmp_path / "run.npz"
    whole = run(2, iterations=6, **choices)
    run(before, Saving(file), iterations=3, **choices)
    assert run(after, Saving(file, resume=True), iterations=6, schedule="wfbp", **choices) == whole


# Sessions.

SIZE = 3  # examples of a micro-batch


def tied_layers():
    """The last layer uses the first one's weights, in another place of memory that gradients are added to."""
    found = layers()
    again = Dense("again", np.zeros((6, 20)))
    again.parameters[0].value = found[0].parameters[0].value
    found[0].parameters[0].rebind = True
    frozen = Dense("frozen", np.random.default_rng(2).standard_normal((4, 6)))
    frozen.parameters[1].trained = False
    return [*found, frozen, again, Gelu(), Dense("end", np.random.default_rng(3).standard_normal((20, 4)))]


def batch(iteration, micro_batches, count=8):
    rng = np.random.default_rng(iteration)
    x, targets = rng.standard_normal((count * SIZE, 6)), rng.integers(0, 4, count * SIZE)
    own = slice(micro_batches.start * SIZE, micro_batches.stop * SIZE)
    return x[own], targets[own]


def session_run(transport, make=layers, seen=lambda session: None, **options):
    options = {"invariant": 8, "fusion": "cut:128B", "optimizer": SGD(0.1)} | options
    with Session(make(), SoftmaxCrossEntropy(), transport, **options) as session:
        losses = [session.step(*batch(each, session.micro_batches)) for each in range(3)]
        seen(session)
        session.flush()
        return losses, session.parameters_sha256()


@pytest.mark.parametrize("make", [layers, tied_layers])
@pytest.mark.parametrize("options", [{}, {"clip": 0.1, "accumulate": 3}, {"update": "sharded", "debug": True}], ids=str)
def test_sessions_with_parameters_in_their_own_memory_and_tied_ones(make, options):
    found = [answer for ranks in RANKS for answer in on_all(lambda t: session_run(t, make, **options), ranks)]
    assert isinstance(found[0], tuple), found[0]
    assert found == found[:1] * sum(RANKS)


def test_the_sum_is_that_of_the_naive_program():
    """Gradients of each micro-batch by hand, added up by recursion."""

    def naive():
        model, loss = layers(), SoftmaxCrossEntropy()
        parameters = [each for layer in model for each in layer.parameters]
        for iteration in range(3):
            x, targets = batch(iteration, range(8))

            def gradients(first, last, x=x, targets=targets):
                if last - first > 1:
                    middle = (first + last) // 2
                    halves = zip(gradients(first, middle), gradients(middle, last), strict=True)
                    return [left + right for left, right in halves]
                own = slice(first * SIZE, last * SIZE)
                y = x[own]
                for layer in model:
                    y = layer.forward(y)
                loss.forward(y, targets[own])
                dy = loss.backward(1 / len(targets))
                for layer in reversed(model):
                    dy = layer.backward(dy)
                return [each.grad.copy() for each in parameters]

            for parameter, gradient in zip(parameters, gradients(0, 8), strict=True):
                parameter.value -= 0.1 * gradient
        return [each.value for each in parameters]

    def trained(transport):
        found = []
        session_run(transport, seen=lambda session: (session.flush(), found.extend(session.parameters)))
        return [each.value.copy() for each in found]

    for ranks in (1, 3, 4):
        for found in on_all(trained, ranks):
            assert all(np.array_equal(one, other) for one, other in zip(found, naive(), strict=True))


def test_a_rank_sends_what_a_ring_sends_for_each_of_its_subtrees():
    def sent(ranks, **options):
        found = []
        look = {"seen": lambda session: found.append(traffic(session.group.fabric, ("reduce_scatter",))[1])}
        on_all(lambda transport: session_run(transport, schedule="dear", algorithm="ring", **look, **options), ranks)
        return max(found)

    for ranks in RANKS[1:]:
        both = sent(ranks), sent(ranks, invariant=None)
        assert both[0] == both[1] * (2 if ranks == 3 else 1), ranks


def test_predictions_have_the_passes_and_bytes_of_the_tree():
    """A network of infinite bandwidth leaves the passes: 3 of 8 on the slowest of 3 ranks, not 1."""

    def seconds(**options):
        options = {"models": ("synthetic:resnet50",), "schedules": ("sequential",), "fusions": ("25MB",)} | options
        (row,) = (each.row for each in simulate(Settings(**options)))
        return row["compute_s"], row["exposed_comm_s"]

    slow = {"network": "1gbit,0us"}
    for ranks, passes, subtrees_sent in ((2, 4, 1), (3, 3, 2), (4, 2, 1), (5, 2, 1)):
        found, ring = seconds(ranks=(ranks,), invariant=8, **slow), seconds(ranks=(ranks,), **slow)
        assert found[0] == pytest.approx(passes * ring[0])
        assert found[1] == pytest.approx((1 + subtrees_sent) / 2 * ring[1], rel=0.05)


@pytest.mark.parametrize(("ranks", "sent", "held"), [(1, None, 5), (2, 1, 4), (3, 1.5, 5), (4, 1, 3), (5, 1, 3)])
def test_sessions_have_these_costs(ranks, sent, held, tmp_path):
    modules = [{"name": str(each), "params": [9600], "fwd_flops": 1} for each in range(3)]
    (tmp_path / "model.json").write_text(json.dumps({"batch": 64, "modules": modules}))
    found, ring = (
        run_world(lambda world, m=m: cost(world, tmp_path / "model.json", m), threads=ranks) for m in (8, None)
    )
    assert found[1] == held * ring[1]
    assert sent is None or found[0] == sent * ring[0]


class Exchanging(Gelu):
    def exchange_forward(self, x):
        return x

    exchange_backward = exchange_forward


def narrow():
    found = layers()
    return [*found, Dense("narrow", np.eye(4, dtype=np.float32))]


OF_SESSIONS = [
    ({"invariant": 6}, "invariant must be a power of two from 1 to 16384, not 6"),
    ({"invariant": 0}, "invariant must be a power of two from 1 to 16384, not 0"),
    ({"invariant": True}, "invariant must be a power of two from 1 to 16384, not True"),
    ({"invariant": 2}, "invariant must be at least 4, so that each rank has a micro-batch, not 2"),
    (
        {"wire": "int8"},
        "wire must be left out with invariant, or be fp64, the type in which each rank adds up, not 'int8'",
    ),
    ({"wire": "fp32"}, "wire must be left out with invariant, or be fp64"),
    ({"weights": (1, 2, 1)}, "weights must be left out with invariant, which shares out batches, not (1, 2, 1)"),
    ({"schedule": "local:2"}, "invariant must be left out: the route 'local:2' does not sum all ranks' gradients"),
    ({"schedule": "diloco:3"}, "invariant must be left out: the route 'diloco:3' does not sum"),
    ({"make": narrow}, "invariant needs parameters of one type, not of fp"),
    ({"make": lambda: [Exchanging(), *layers()]}, "invariant must be left out: layers exchange data"),
]


@pytest.mark.parametrize(("options", "said"), OF_SESSIONS, ids=[said for _, said in OF_SESSIONS])
def test_what_cannot_hold_is_refused_on_all_ranks(options, said):
    assert said in agreed(lambda transport: session_run(transport, **options))


OF_RUNS = [
    ({"batch": 36}, "batch must be a multiple of invariant, 8 micro-batches, not 36"),
    ({"accumulate": 3}, "accumulate must divide 4, the examples of a micro-batch (batch / invariant), not be 3"),
]


@pytest.mark.parametrize(("choices", "said"), OF_RUNS)
def test_settings_of_runs_that_are_refused(choices, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        Config.of(settings(invariant=8, **choices))


def test_examples_that_are_no_micro_batches_are_refused():
    """Before anything is sent; and if parts could be split, ranks expect different numbers of targets."""

    def body(transport, rows):
        with Session(layers(), SoftmaxCrossEntropy(), transport, invariant=8) as session:
            session.step(np.ones((rows, 6)), np.zeros(rows, int))

    with pytest.raises(ValueError, match="this rank's 8 examples cannot be split into 3 micro-batches in 1 parts"):
        on_all(lambda transport: body(transport, 8), 3)
    assert "ranks expect different numbers of targets in the whole batch" in agreed(lambda each: body(each, 6))
