"""Sketches: what is found again, what is reported, and that all ranks take the same way where counters do not fit."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.contrib.wires.sketch import Bits, Sketch, hashed, peeled
from dear_mpi.contrib.wires.sketch_stages import Join
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.training import SGD, Session
from dear_mpi.training.routes.find import check_carries, find_route
from dear_mpi.training.routes.proof import RouteError, prove
from dear_mpi.training.routes.stages import Collective
from tests import training_checks
from tests.training.test_wires import float32_layers, run

COUNT, COUNTERS = 1 << 15, (1 << 15) // 10
KINDS = {
    "normal": lambda draw, count: draw.standard_normal(count),
    "constant": lambda draw, count: np.full(count, draw.standard_normal()),
    "zero": lambda draw, count: np.zeros(count),
    "denormal": lambda draw, count: draw.standard_normal(count) * 1e-41,
    "huge": lambda draw, count: draw.standard_normal(count) * 1e36,
}


def summed(given, counters=COUNTERS):
    """What ranks find of the sum of these arrays; None if counters do not fit."""
    wire, bits = Sketch(10), Bits()
    codes = np.zeros((len(given), bits.nbytes(given[0].size)), np.uint8)
    for x, row in zip(given, codes, strict=True):
        bits.encode(x, row)
    peeling = wire.peeling(bits.marks(np.bitwise_or.reduce(codes), given[0].size), counters)
    if peeling is None:
        return None
    total, part = np.zeros((2, counters), given[0].dtype)
    for x in given:
        wire.encode(x, peeling, part)
        total += part
    found = np.full_like(given[0], np.nan)
    wire.decode(total, peeling, found)
    return found


@settings(deadline=None, max_examples=30)
@given(kind=st.sampled_from(list(KINDS)), ranks=st.integers(1, 5), density=st.floats(0, 0.065), seed=st.integers(0, 99))
def test_all_elements_are_found(kind, ranks, density, seed):
    draw = np.random.default_rng(seed)
    common = draw.random(COUNT) < density
    given = [(KINDS[kind](draw, COUNT) * common * (draw.random(COUNT) < 0.8)).astype(np.float32) for _ in range(ranks)]
    exact, found = np.sum(given, axis=0, dtype=np.float64), summed(given)
    assert found is not None
    assert not found[~common].any()
    largest = max(abs(x.astype(np.float64)).max() for x in given)
    assert abs(found - exact).max() <= 1e-5 * largest + np.finfo(np.float32).smallest_subnormal * 99


@settings(deadline=None, max_examples=30)
@given(wrong=st.sampled_from([math.nan, math.inf, -math.inf]), place=st.integers(0, COUNT - 1), seed=st.integers(0, 9))
def test_what_is_not_finite_is_found_where_it_was(wrong, place, seed):
    draw = np.random.default_rng(seed)
    given = [(draw.standard_normal(COUNT) * (draw.random(COUNT) < 0.02)).astype(np.float32) for _ in range(2)]
    given[1][place] = wrong
    with np.errstate(invalid="ignore"):
        assert not np.isfinite(summed(given)[place])


def test_opposite_infinities_are_no_number():
    x = np.zeros(COUNT, np.float32)
    x[7] = math.inf
    with np.errstate(invalid="ignore"):
        assert np.isnan(summed([x, -x])[7])


@given(count=st.integers(0, 40), counters=st.integers(3, 60), seed=st.integers(0, 999))
def test_it_gives_up_exactly_where_peeling_one_by_one_does(count, counters, seed):
    places = np.sort(np.random.default_rng(seed).permutation(1000)[:count])
    slots, signs = hashed(places, counters)
    assert set(signs.reshape(-1).tolist()) <= {1.0, -1.0}
    assert (slots // (counters // 3) == np.arange(3)[:, None]).all()
    left = set(range(count))
    while True:
        inside = {at: [each for each in left if at in slots[:, each]] for at in range(counters)}
        alone = next((each for each in inside.values() if len(each) == 1), None)
        if alone is None:
            break
        left -= set(alone)
    rounds = peeled(slots, counters)
    assert (rounds is None) == bool(left)
    if rounds is not None:
        assert sorted(each for elements, _ in rounds for each in elements.tolist()) == list(range(count))


def test_more_elements_than_counters_do_not_fit():
    assert summed([np.ones(COUNT, np.float32)]) is None


# In training ------------------------------------------------------------------------------------------------------


def sparse(layer, kept):
    """Let a layer have gradients at few places, common to all ranks, in iterations of which ``kept`` says so."""
    backward = layer.backward

    def thinned(dy):
        dx = backward(dy)
        if next(kept):
            for parameter in layer.parameters:
                parameter.grad[...] *= (np.arange(parameter.grad.size) % 11 == 3).reshape(parameter.grad.shape)
        return dx

    layer.backward = thinned


def steps(transport, pattern, **options):
    """Values after an iteration for each of a pattern, and how often gradients did not fit, and did."""
    layers = float32_layers()
    for layer in layers:
        if layer.parameters:
            sparse(layer, iter(pattern))
    optimizer = SGD(0.1, momentum=0.9)
    with Session(layers, SoftmaxCrossEntropy(), transport, optimizer=optimizer, fusion="25MB", **options) as session:
        digest = training_checks.steps(session, len(pattern), dtype=np.float32)
        return session.group.arena.values.copy(), list(session.group.fabric.tally), digest


@pytest.mark.parametrize("schedule", ["dear", "wfbp", "dear-eager"])
@pytest.mark.parametrize(("pattern", "tally"), [([True] * 5, [0, 5]), ([True, False, True], [1, 2])])
def test_training_goes_the_way_of_dense_sums(schedule, pattern, tally):
    """Where gradients fit, where they do not, and where that changes."""
    dense = run_loopback(3, lambda transport: steps(transport, pattern, schedule=schedule))
    found = run_loopback(
        3, lambda transport: steps(transport, pattern, schedule=schedule, wire="sketch:10", debug=True)
    )
    assert len({sha for *_, sha in found}) == 1
    assert all(seen == tally for _, seen, _ in found)
    assert np.allclose(found[0][0], dense[0][0], rtol=1e-5, atol=1e-6)


def test_what_does_not_fit_has_the_bits_of_dense_sums():
    dense, found = (run({"wire": wire, "algorithm": "ring"}) for wire in ("fp32", "sketch:10"))
    assert found["params_sha256"] == dense["params_sha256"]
    assert (dense["unfit"], found["unfit"]) == (0, 6 * found["buckets"])


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_on_any_number_of_ranks(ranks):
    found = run_loopback(ranks, lambda transport: steps(transport, [True] * 3, wire="sketch:10"))
    assert len({sha for *_, sha in found}) == 1
    assert all(seen == [0, 3] for _, seen, _ in found)


def test_counters_of_narrow_types_are_refused():
    with pytest.raises(ValueError, match="'sketch:10' carries gradients of fp32, fp64, not of fp16"):
        check_carries("sketch:10", "fp16")


def test_what_is_not_finite_ends_training_on_all_ranks():
    def poisoned(transport):
        layers = float32_layers()
        backward = layers[0].backward

        def poison(dy):
            dx = backward(dy)
            for layer in (layers[0], layers[2]):
                for parameter in layer.parameters:
                    parameter.grad[...] = 0
            layers[0].parameters[0].grad[3, 3] = math.inf if transport.rank == 1 else 0
            return dx

        layers[0].backward = poison
        with Session(layers, SoftmaxCrossEntropy(), transport, optimizer=SGD(0.1), wire="sketch:10") as session:
            session.step(np.ones((4, 6), np.float32), np.zeros(4, int))
            session.flush()

    with pytest.raises(AgreedError, match="are infinite or not a number in update 0"):
        run_loopback(3, poisoned)


def without(stages, unwanted):
    return tuple(stage for stage in stages if not unwanted(stage))


@pytest.mark.parametrize("unwanted", [
    lambda stage: isinstance(stage, Join),
    lambda stage: isinstance(stage, Collective) and (stage.name, stage.buffer) == ("all_gather", "index"),
    lambda stage: isinstance(stage, Collective) and (stage.name, stage.buffer) == ("all_to_all", "index"),
    lambda stage: stage.fits is False,
    lambda stage: isinstance(stage, Collective) and stage.fits is True,
    lambda stage: str(stage) == "fill counters",
    lambda stage: str(stage) == "peel counters",
])  # fmt: skip
def test_a_route_that_leaves_a_stage_out_is_refused(unwanted):
    route = find_route("full", wire="sketch:10")
    with pytest.raises(RouteError):
        prove(replace(route, out=without(route.out, unwanted), back=without(route.back, unwanted)))


@pytest.mark.parametrize(("choices", "said"), [
    ({"wire": "sketch:1"}, "the ratio of a sketch must be a number from 2 to 1000, not '1'"),
    ({"wire": "sketch:nan"}, "the ratio of a sketch must be a number from 2 to 1000, not 'nan'"),
    ({"wire": "sketch"}, "wire 'sketch' must be written like 'sketch:10'"),
    ({"wire": "sketch:10:error=no"}, "wire 'sketch:10:error=no' must be written like 'sketch:10'"),
    ({"wire": "sketch:10", "update": "sharded"}, "update must be full: sketch:10 has counters of elements of all"),
    ({"wire": "sketch:10", "clip": 1.0}, "the route 'full over sketch:10' does not have them"),
])  # fmt: skip
def test_what_cannot_be_is_refused(choices, said):
    with pytest.raises((AgreedError, ValueError), match=said):
        run(choices)
