"""Codes: what they lose is bounded, nothing that is not finite is hidden, and all ranks come to the same bits."""

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.ranks.world import run_world
from dear_mpi.training import SGD, Session
from dear_mpi.training.routes.codes import BLOCK, LEAST, Blocks, coded
from dear_mpi.training.routes.find import WIRES, find_code, find_route, kind_of
from dear_mpi.training.routes.proof import RouteError, prove
from dear_mpi.training.routes.route import Payload
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import Saving, train
from dear_mpi.training.schedules.local import Outer
from tests.training.route_checks import layers
from tests.training_checks import batch, installed, settings

CODES = {name: kind for name in WIRES if (kind := kind_of(name))}  # with those of extras
EVERY = [kind.example or name for name, kind in CODES.items()]
ONE_BY_ONE = [example for example in EVERY if find_code(example).route is coded]  # whose codes do not add up
KINDS = {
    "normal": lambda draw, count: draw.standard_normal(count),
    "constant": lambda draw, count: np.full(count, draw.standard_normal()),
    "zero": lambda draw, count: np.zeros(count),
    "denormal": lambda draw, count: draw.standard_normal(count) * 1e-41,
    "huge": lambda draw, count: draw.standard_normal(count) * 1e37,
    "wide": lambda draw, count: draw.standard_normal(count) * 10.0 ** draw.integers(-30, 30, count),
}


def decoded(wire, x):
    codes, found = np.full(wire.nbytes(x.size) + 5, 0xAB, np.uint8), np.full_like(x, np.nan)
    wire.encode(x, codes)
    assert (codes[wire.nbytes(x.size) :] == 0xAB).all()
    wire.decode(codes, found)
    return found


def check_bound(wire, most, kind, count, seed):
    """Of blocks: half a step, by the largest magnitude of each."""
    x = KINDS[kind](np.random.default_rng(seed), count).astype(np.float32)
    with np.errstate(all="ignore"):
        lost = abs(decoded(wire, x).astype(np.float64) - x)
    for start in range(0, count, BLOCK):
        largest = abs(x[start : start + BLOCK].astype(np.float64)).max()
        assert lost[start : start + BLOCK].max() <= 1.001 * most * largest + wire.largest * LEAST


DRAWN = {"kind": st.sampled_from(list(KINDS)), "count": st.integers(1, 3 * BLOCK), "seed": st.integers(0, 99)}


@given(**DRAWN)
def test_what_a_block_loses_is_bounded(kind, count, seed):
    check_bound(Blocks(), 1 / 254, kind, count, seed)


@pytest.mark.parametrize("example", ONE_BY_ONE)
@given(**DRAWN)
def test_no_element_loses_more_than_it_has(example, kind, count, seed):
    """So that what is lost, and sent the next time, never grows."""
    x = KINDS[kind](np.random.default_rng(seed), count).astype(np.float32)
    with np.errstate(all="ignore"):
        lost = abs(decoded(find_code(example).wire, x).astype(np.float64) - x)
    assert (lost <= 1.001 * abs(x.astype(np.float64))).all()


@pytest.mark.parametrize("example", ONE_BY_ONE)
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@given(place=st.integers(0, 2 * BLOCK + 16))
def test_what_is_not_finite_is_seen_and_spoils_a_block_at_most(example, wrong, place):
    x = np.ones(2 * BLOCK + 17, np.float32)
    x[place] = wrong
    found = decoded(find_code(example).wire, x)
    assert not np.isfinite(found[place])
    assert (~np.isfinite(found)).sum() <= BLOCK


@given(place=st.integers(0, 2 * BLOCK + 16))
def test_a_block_with_an_infinity_is_nan(place):
    x = np.ones(2 * BLOCK + 17, np.float32)
    x[place] = math.inf
    found = np.isnan(decoded(Blocks(), x))
    assert found[place // BLOCK * BLOCK :][: min(BLOCK, x.size - place // BLOCK * BLOCK)].all()


def check_sums(wire, ranks, most):
    draw = np.random.default_rng(3)
    given = [draw.standard_normal(4096).astype(np.float32) for _ in range(ranks)]
    exact = np.sum(given, axis=0, dtype=np.float64)
    found = decoded(wire, np.sum([decoded(wire, x) for x in given], axis=0))
    assert np.linalg.norm(found - exact) < most * np.linalg.norm(exact)


@pytest.mark.parametrize("ranks", [2, 5, 64])
def test_the_error_of_a_sum_does_not_grow_with_ranks(ranks):
    check_sums(Blocks(), ranks, 0.011)


# In training ------------------------------------------------------------------------------------------------------


def run(choices, ranks=3, **how):
    config = Config.of(settings(**{"model": "mlp", "schedule": "dear", "fusion": "cut:8KB", "iterations": 6} | choices))
    return run_world(lambda world: train(config, world, **how), threads=ranks)


@pytest.mark.parametrize("wire", EVERY)
@pytest.mark.parametrize("update", ["full", "sharded"])
def test_routes_of_codes_are_proved(wire, update):
    try:
        proof = prove(find_route(update, wire=wire))
    except ValueError as error:
        assert "update must be full" in str(error)  # noqa: PT017
        return
    assert proof.alike
    assert not proof.exact
    assert proof.summed == (find_code(wire).route is coded or wire.startswith(("noise", "fixed32")))


@pytest.mark.parametrize("wire", [*EVERY, *installed("acp:4:after=3")])
def test_what_was_lost_survives_a_break(wire, tmp_path):
    whole, file = run({"wire": wire, "iterations": 9}), tmp_path / "c.npz"
    run({"wire": wire, "iterations": 4}, saving=Saving(file))
    again = run({"wire": wire, "iterations": 9}, saving=Saving(file, resume=True))
    assert again["params_sha256"] == whole["params_sha256"]


def float32_layers():
    found = layers()
    for layer in found:
        for parameter in layer.parameters:
            parameter.value, parameter.grad = (x.astype(np.float32) for x in (parameter.value, parameter.grad))
    return found


def steps(transport, iterations=4, *, spoil=None, each=None, **options):
    """A session of a few iterations; a rank may be spoilt before the third."""
    options = {"optimizer": SGD(0.1), "fusion": "25MB"} | options
    with Session(float32_layers(), SoftmaxCrossEntropy(), transport, **options) as session:
        for iteration in range(iterations):
            if iteration == 2 and spoil is not None:
                session.flush()
                if transport.rank == 1:
                    spoil(session)
            session.step(*batch(iteration, transport.rank, dtype=np.float32))
            if each is not None:
                each(session)
        return session.parameters_sha256()


def wrong_decoder(session):
    """From now on this rank decodes another scale."""
    stage = next(stage for stage in session.group.route.back if hasattr(stage, "wire"))
    decode = type(stage.wire).decode
    bound = session.group.fabric

    def twice(codes, x):
        decode(stage.wire, codes, x)
        x *= 2

    bound.calls.clear()
    bound.tasks.clear()
    object.__setattr__(stage.wire, "decode", twice)


def other_mask(session):
    """From now on this rank draws for another update."""
    for bound in session.group.fabric.bound.values():
        bound.begin += 1


def other_rate(session):
    """From now on this rank's outer optimiser has another learning rate."""
    outer = next(stage for stage in session.group.route.back if isinstance(stage, Outer))
    object.__setattr__(outer, "lr", 0.1)


@pytest.mark.parametrize(
    ("wire", "spoil", "said"),
    installed(("int8", wrong_decoder, "values of bucket 0"), ("blocks:50%", other_mask, "values of bucket 0")),
)
def test_a_rank_that_goes_wrong_is_found(wire, spoil, said):
    """In the iteration in which it does, with ``debug``."""
    with pytest.raises(AgreedError, match=said):
        run_loopback(3, lambda transport: steps(transport, wire=wire, spoil=spoil, debug=True))


def test_a_rank_that_goes_wrong_in_a_round_is_found_at_its_end():
    """With ``debug``; nothing was compared where a route has rounds."""
    for schedule in ("diloco:4", "post-local:3:after=2"):
        run_loopback(3, lambda transport, how=schedule: steps(transport, schedule=how, debug=True))
    with pytest.raises(AgreedError, match="values of bucket 0"):
        run_loopback(3, lambda transport: steps(transport, schedule="diloco:4", spoil=other_rate, debug=True))


@pytest.mark.parametrize("wire", installed("int8", "blocks:50%", "topk:10%", "acp:1", "powersgd:1", "noise:1%"))
def test_a_gradient_that_is_not_finite_ends_training_on_all_ranks(wire):
    def poison(session):
        layer = session.layers[0]
        backward = layer.backward

        def poisoned(dy):
            dx = backward(dy)
            layer.parameters[0].grad[3, 3] = np.inf
            return dx

        layer.backward = poisoned

    with pytest.raises(AgreedError, match="are infinite or not a number in update 2"):
        run_loopback(3, lambda each: steps(each, wire=wire, spoil=poison, each=lambda session: session.flush()))


@pytest.mark.parametrize(
    ("choices", "said"),
    installed(
        ({"wire": "topk:0%"}, "the share of a wire must be above 0%, and at most 100%, not 0%"),
        ({"wire": "blocks:101%"}, "the share of a wire must be from 0% to 100%, not 101%"),
        ({"wire": "blocks:-1%"}, "the share of a wire must be from 0% to 100%, not -1%"),
        ({"wire": "noise:0%"}, "the share of a wire must be above 0%, and at most 100%, not 0%"),
        ({"wire": "noise:loud"}, "the share of a wire 'loud' cannot be read: write it like 5%"),
        ({"wire": "noise:1%:error=no"}, "wire 'noise:1%:error=no' must be written like 'noise:1%'$"),
        ({"wire": "topk"}, "wire 'topk' must be written like 'topk:1%', or topk:1%:error=no"),
        ({"wire": "int8:3"}, "wire 'int8:3' must be written like 'int8', or int8:error=no"),
        ({"wire": "int8:between=4"}, "wire 'int8:between=4' must be written like 'int8', or int8:error=no, or int8:"),
        ({"wire": "int8:between="}, "wire 'int8:between=' must be written like 'int8', or int8:error=no, or int8:"),
        ({"wire": "blocks:10%:between"}, "wire 'blocks:10%:between' must be written like 'blocks:10%'"),
        ({"wire": "int8:between"}, "'full over int8:between' has stages between hosts, and all ranks are on one"),
        ({"wire": "acp:0"}, "the rank of a wire must be a whole number above zero, not '0'"),
        ({"wire": "powersgd:-2"}, "the rank of a wire must be a whole number above zero, not '-2'"),
        ({"wire": "acp:four"}, "the rank of a wire must be a whole number above zero, not 'four'"),
        ({"wire": "acp:4:after=x"}, "after of a wire must be a whole number above zero, not 'x'"),
        ({"wire": "acp"}, "wire 'acp' must be written like 'acp:4', or acp:4:error=no, or acp:4:after=50"),
        ({"wire": "acp:4:error=yes"}, "wire 'acp:4:error=yes' must be written like 'acp:4', or acp:4:error=no"),
        ({"wire": "int8:after=5"}, "'int8:after=5' must be written like 'int8', or int8:error=no, or int8:between$"),
        ({"wire": "acp:4", "update": "sharded"}, "update must be full: acp:4 gives all gradients to each rank"),
        ({"wire": "powersgd:4:after=9", "clip": 1.0}, "the route 'full over powersgd:4:after=9' does not have them"),
        ({"wire": "acp:4", "loss_scale": "dynamic"}, "the route 'full over acp:4' does not have them"),
        ({"wire": "acp:400"}, "has nothing to do: the model has no matrix that is large enough for it"),
        ({"wire": "int9"}, "wire 'int9' is unknown: did you mean 'int8'"),
        ({"wire": "fp16:2"}, "wire 'fp16:2' must be written like 'fp16'"),
        ({"wire": "int8", "dtype": "fp64"}, "wire 'int8' carries gradients of fp32, fp16, bf16, not of fp64"),
        ({"wire": "blocks:10%", "update": "sharded"}, "update must be full: blocks:10% changes elements of all shards"),
        ({"wire": "blocks:10%", "clip": 1.0}, "the route 'full over blocks:10%' does not have them"),
        ({"wire": "int8", "loss_scale": "dynamic"}, "what codes have lost would be of another scale"),
        ({"wire": "int8", "route": "full.py:r"}, "wire 'int8' sets the route: leave out route"),
        ({"wire": "blocks:10%", "optimizer": "lamb"}, "and selected elements lie within tensors"),
    ),
)
def test_what_cannot_be_is_refused(choices, said):
    with pytest.raises((AgreedError, ValueError), match=said):
        run(choices)


def test_each_kind_of_codes_has_an_example_that_can_be_read():
    assert [type(find_code(example).wire) for example in EVERY] == [kind.make for kind in CODES.values()]
    for wire in installed("acp:4"):
        assert find_code(f"{wire}:after=50:error=no") == find_code(f"{wire}:error=no:after=50")
        assert find_code(f"{wire}:after=50").how == {"after": 50}


@pytest.mark.parametrize(
    ("text", "option"),
    installed(
        ("acp:4:after=50:after=60", "after"), ("int8:error=no:error=no", "error"), ("topk:1%:error=a:error=no", "error")
    ),
)
def test_an_option_of_a_wire_is_given_once(text, option):
    with pytest.raises(ValueError, match=f"^wire '{text}' has {option} twice$"):
        find_code(text)
    with pytest.raises(ValueError, match=r"must be written like|must be a whole number above zero, not ''"):
        find_code(f"{text.partition(':')[0]}:{'error' if option == 'error' else '4:after'}")


def test_what_one_wire_encodes_no_other_decodes():
    route = replace(find_route("full", wire="int8"), back=coded("other", Counting()).back)
    with pytest.raises(RouteError, match="must have the wire that encodes this buffer"):
        prove(route)


class Counting(Blocks):
    """Keeps how many elements each call had."""

    seen: ClassVar[dict[str, list[int]]] = {}

    def encode(self, x, out):
        self.seen["encode"].append(x.size)
        super().encode(x, out)

    def decode(self, codes, x):
        self.seen["decode"].append(x.size)
        super().decode(codes, x)


class Memory:
    """Of rank 1 of 3: a bucket of three shards of 64 elements."""

    rank, ranks, width, hosts = 1, 3, 64, (0, 0, 0)

    def __init__(self):
        self.lines = {name: np.ones(self.ranks * self.width, np.float32) for name in ("gradients", "residual")}
        self.codes = np.zeros((self.ranks, Blocks().nbytes(self.width)), np.uint8)

    def shard(self, name, shard):
        return self.lines[name][self.width * shard : self.width * (shard + 1)]

    def rows(self, codes):
        return self.codes


@pytest.mark.parametrize("error", ["residual", None])
def test_a_price_has_the_calls_and_the_elements_of_a_stage(error, monkeypatch):
    prices = [f"{act}{what}_s" for act in ("encode", "decode") for what in ("", "_call")]
    for stage in (stage for stage in coded("mine", Counting(), error=error).stages if isinstance(stage, Payload)):
        Counting.seen = {"encode": [], "decode": []}
        stage.bind(Memory())(1.0)
        found = []
        for price in prices:
            for each in prices:
                monkeypatch.setattr(Counting, each, float(each == price), raising=False)
            found.append(stage.compute_s(Memory.ranks * Memory.width, Memory.ranks))
        assert found == [figure for seen in Counting.seen.values() for figure in (sum(seen), len(seen))], str(stage)
