"""The line: every trained element is on it once, in one bucket, and wherever it is cut the same numbers come out."""

import copy
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.kernels.optimizers import Adam
from dear_mpi.models.layer import in_order
from dear_mpi.models.layers import Dense, Gelu, Reshape, Residual, SoftmaxCrossEntropy
from dear_mpi.models.networks import MODELS
from dear_mpi.ranks.world import run_world
from dear_mpi.training.buckets.bound import BoundBucket
from dear_mpi.training.buckets.layout import Layout, cut
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import train
from tests.training_checks import KINDS, arena_of, settings, third

SHAPES = [(), (1,), (3, 5), (32,), (7, 11, 2), (0,), (129,)]
TENSORS = st.integers(0, 11).map(lambda number: (number, SHAPES[number % len(SHAPES)]))  # one number, one shape
USES = st.lists(st.lists(TENSORS, max_size=3, unique=True), min_size=1, max_size=8).filter(any)


@given(uses=USES, itemsize=st.sampled_from([2, 4, 8]), ranks=st.integers(1, 5), data=st.data())
def test_every_element_is_on_the_line_once_and_in_one_bucket(uses, itemsize, ranks, data):
    layout = Layout.of(uses, itemsize=itemsize, ranks=ranks)
    in_order_of_first_use = list(dict.fromkeys(tensor for use in uses for tensor in use))
    assert layout.shapes == tuple(shape for _, shape in in_order_of_first_use)
    assert layout.calls == tuple(tuple(map(in_order_of_first_use.index, use)) for use in uses)
    ends = layout.ends
    assert all(end <= start for end, start in zip([0, *ends], [*layout.offsets, layout.count], strict=True))
    assert all(offset * itemsize % 16 == 0 for offset in layout.offsets), "a GPU reads tensors in whole vectors"
    assert 0 <= layout.count - max(ends, default=0) < layout.grid, "no row too many"
    assert sum(layout.owned) == sum(math.prod(shape) for _, shape in in_order_of_first_use)

    borders = data.draw(st.lists(st.integers(0, layout.count), max_size=5))
    buckets = cut(layout, borders)
    covered = [element for bucket in buckets for element in range(bucket.start, bucket.stop)]
    assert covered == list(range(layout.count))
    for bucket in buckets:
        assert bucket.nbytes % (128 * ranks) == 0 < bucket.count
        touching = {
            use
            for use, tensors in enumerate(layout.calls)
            for tensor in tensors
            if set(range(layout.offsets[tensor], layout.ends[tensor])) & set(range(bucket.start, bucket.stop))
        }
        assert touching == set(bucket.calls)
    for use, tensors in enumerate(uses):
        assert set(buckets.needed_by(use)) == {bucket for bucket in buckets if use in bucket.calls}, tensors
    completed = [bucket for use in reversed(range(len(uses))) for bucket in buckets.completed_by(use)]
    assert sorted(completed, key=lambda bucket: bucket.index) == list(buckets), "each once"


def test_an_empty_tensor_is_in_no_bucket():
    (bucket,) = cut(Layout.of([[("scale", ())], [("empty", (0,))]], itemsize=4, ranks=1), [])
    assert bucket.calls == (0,)


def digest(threads, **choices):
    config = Config.of(settings(algorithm="ordered", **choices))
    return run_world(lambda world: train(config, world), threads=threads)["params_sha256"]


def network(rng, *, tied):
    """An autoencoder whose two halves share a weight, or have equal ones."""
    weight, hidden = rng.standard_normal((8, 8)), Dense("hidden", rng.standard_normal((8, 8)))
    first, last = Dense("first", weight), Dense("last", weight if tied else weight.copy())
    return [Reshape((8,)), first, Gelu(), hidden, last]


def gradients(layers, x, targets):
    """The gradients of one pass, by parameter."""
    arena, loss = arena_of(layers), SoftmaxCrossEntropy()
    for layer in layers:
        x = layer.forward(x)
    loss.forward(x, targets)
    dy = loss.backward(1.0)
    for number in reversed(range(len(layers))):
        for place in arena.places[number]:
            place.parameter.grad = place.grad
        dy = layers[number].backward(dy)
        arena.add_tied(number)
    return arena


def test_gradients_of_tied_parameters_add_up():
    rng = np.random.default_rng(1)
    x, targets = rng.standard_normal((6, 8)), rng.integers(0, 8, 6)
    tied, apart = (network(np.random.default_rng(2), tied=tied) for tied in (True, False))
    together, each = gradients(tied, x, targets), gradients(apart, x, targets)
    assert together.layout.calls == ((), (0, 1), (), (2, 3), (0, 4)), "one weight, two biases"
    assert tied[1].weight.value is tied[4].weight.value or np.shares_memory(tied[1].weight.value, tied[4].weight.value)
    wanted = apart[1].weight.grad + apart[4].weight.grad
    assert (together.view(together.grads, 0) == wanted).all()
    assert (together.view(together.grads, 2) == each.view(each.grads, 2)).all()


@pytest.mark.parametrize("ties", [2, 3])
def test_gradients_of_parameters_that_are_tied_within_a_layer_add_up(ties):
    rng = np.random.default_rng(1)
    x, targets = rng.standard_normal((6, 8)), rng.integers(0, 8, 6)
    weight = rng.standard_normal((8, 8)) / 8
    tied, apart = (
        [Dense(f"dense{number}", weight if share else weight.copy()) for number in range(ties)]
        for share in (True, False)
    )
    together, _ = (gradients([Residual(dense)], x, targets) for dense in (tied, apart))
    wanted = sum(layer.weight.grad for layer in apart)
    assert together.view(together.grads, 0) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("number", "fusion"), list(enumerate(["none", "25MB", "cut:128B"])))
def test_a_layer_that_runs_twice_trains(threads, number, fusion, monkeypatch):
    """As one parameter whose gradient is the sum of both; in fp64, under every schedule, to the bits."""

    def build(shape, classes, rng, dtype):
        weights = [rng.standard_normal(shape).astype(dtype) / 8 for shape in ((64, 20), (20, 20), (20, classes))]
        first, twice, head = (Dense(f"dense{i}", weight) for i, weight in enumerate(weights))
        return [Reshape((64,)), first, twice, Gelu(), twice, head]

    monkeypatch.setitem(MODELS, "mlp", build)
    choices = {"fusion": fusion, "dtype": "fp64"}
    digests = {digest(threads, schedule=schedule, **choices) for schedule in third(number)}
    assert len(digests) == 1
    config = Config.of(settings(iterations=60, **choices))
    losses = run_world(lambda world: train(config, world), threads=threads)["loss"]
    assert losses[-1] < losses[0] / 2


def test_a_layer_runs_in_the_order_that_is_asked_for():
    layers = [Dense("a", np.eye(3)), Dense("b", np.eye(3))]
    uses = in_order(layers, [1, 0, 1])
    assert uses[0] is layers[1]
    assert uses[1] is layers[0]
    assert uses[2] is not layers[1]
    assert uses[2].weight is layers[1].weight
    with pytest.raises(ValueError, match="calls must be of numbers below 2, the layers of the model, not 2"):
        in_order(layers, [0, 2])


@pytest.mark.parametrize("schedule", KINDS)
def test_frozen_parameters_stay_as_they_are(schedule, monkeypatch):
    built = []
    network = MODELS["mlp"]

    def build(*arguments):
        layers = network(*arguments)
        for parameter in layers[3].parameters:
            parameter.trained = False
        built.append((layers, copy.deepcopy([parameter.value for layer in layers for parameter in layer.parameters])))
        return layers

    monkeypatch.setitem(MODELS, "mlp", build)
    digest(2, schedule=schedule, fusion="none")
    for layers, before in built:
        after = [parameter.value for layer in layers for parameter in layer.parameters]
        same = [(old == new).all() for old, new in zip(before, after, strict=True)]
        assert same == [False, False, True, True, False, False]


@pytest.mark.parametrize("wire", ["fp64", "fp32"])
def test_parameters_that_stay_in_their_memory_are_updated_there(wire):
    """As others are, to the bits; a bucket may hold a part of one, and parts of several."""
    rng = np.random.default_rng(3)
    arenas, networks = [], []
    for rebind in (True, False):
        layers = [Dense("dense", np.arange(600.0).reshape(20, 30)), Dense("second", np.ones((30, 2)))]
        values = [parameter.value for layer in layers for parameter in layer.parameters]
        layers[0].weight.rebind = layers[1].parameters[1].rebind = rebind
        arenas.append(arena_of(layers, wire=wire, optimizer=Adam()))
        networks.append(layers)
        parameters = (parameter for layer in layers for parameter in layer.parameters)
        stays = [parameter.value is value for parameter, value in zip(parameters, values, strict=True)]
        assert stays == [not rebind, False, False, not rebind]
    for _ in range(3):
        grads = {}
        for arena, layers in zip(arenas, networks, strict=True):
            for layer in layers:
                for parameter in layer.parameters:
                    parameter.grad[...] = grads.setdefault(parameter.name, rng.standard_normal(parameter.grad.shape))
            buckets = cut(arena.layout, range(0, 900, 100))
            arena.share_out(buckets)
            for bucket in buckets:
                bound = BoundBucket(bucket, arena, np.ones(1, np.bool_))
                bound.pack()
                bound.update_own(1.0)
                bound.updated()
            arena.updates += 1
    first, second = ([p.value for layer in layers for p in layer.parameters] for layers in networks)
    assert all((one == other).all() for one, other in zip(first, second, strict=True))
    assert not (first[0] == np.arange(600.0).reshape(20, 30)).any()
