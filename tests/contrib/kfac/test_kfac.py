"""K-FAC: layers multiply their gradients by the inverses of factors, which travel, and are inverted, as parameters."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.contrib.kfac.kfac import KFAC, Factored, Sides, packed, unpacked
from dear_mpi.models.layers import Dense, Relu, Residual, SoftmaxCrossEntropy
from dear_mpi.models.networks import ALL_MODELS, mlp
from dear_mpi.ranks.world import run_world
from dear_mpi.training import Session
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import train
from dear_mpi.training.schedules import SCHEDULES
from tests.training_checks import installed

ROWS = 12


def layers(kind=mlp, dtype=np.float32):
    return kind((4, 4), 3, np.random.default_rng(1), np.dtype(dtype))


def batch(iteration, rank=0, ranks=1):
    draw = np.random.default_rng(iteration)
    x, y = draw.standard_normal((ROWS, 4, 4)), draw.integers(0, 3, ROWS)
    return x[rank::ranks], y[rank::ranks]


def trained(transport, *, kind=mlp, dtype=np.float32, iterations=5, cuts=(), optimizer=None, **options):
    optimizer = optimizer or KFAC(0.05, damping=0.1)
    with Session(layers(kind, dtype), SoftmaxCrossEntropy(), transport, optimizer=optimizer, **options) as session:
        for iteration in range(iterations):
            if cuts:
                session.cut(cuts[iteration % len(cuts)])
            x, y = batch(iteration, transport.rank, transport.size)
            session.step(x.astype(dtype), y, total=ROWS)
        session.flush()
        found = {each.name: each.value.copy() for each in session.parameters}
        return found, session.parameters_sha256()


@given(st.integers(1, 9), st.integers(0, 99))
def test_a_triangle_has_all_of_a_symmetric_matrix(size, seed):
    half = np.random.default_rng(seed).standard_normal((size, size))
    np.testing.assert_array_equal(unpacked(packed(half + half.T), size), half + half.T)


def test_inverses_are_those_of_running_means():
    """Against the formula of Martens and Grosse, section 6.3, in fp64."""
    sides, draw = Sides(3, 2), np.random.default_rng(0)
    optimizer = KFAC(damping=0.04, factor_decay=0.8)
    value, state, means = np.zeros(sides.elements), [np.zeros(sides.elements)], None
    for iteration, rows in enumerate((5, 7, 6), start=1):
        a, g, targets = draw.standard_normal((rows, 3)), draw.standard_normal((rows, 2)), 4
        grad = np.zeros(sides.elements)
        sides.join(grad, a.T @ a, g.T @ g / targets**2, rows, targets)
        optimizer.inverses(sides).update(iteration, value, grad, state)
        new = [a.T @ a / rows, g.T @ g / targets]
        means = new if means is None else [0.8 * mean + 0.2 * each for mean, each in zip(means, new, strict=True)]
        pi = np.sqrt((np.trace(means[0]) / 3) / (np.trace(means[1]) / 2))
        dampings = 0.2 * pi, 0.2 / pi
        for found, mean, damping in zip(sides.split(value), means, dampings, strict=True):
            np.testing.assert_allclose(found @ (mean + damping * np.eye(len(mean))), np.eye(len(mean)), atol=1e-12)


@pytest.mark.parametrize("kind", [ALL_MODELS[name] for name in ("mlp", "cnn") if name in ALL_MODELS])
def test_a_gradient_is_multiplied_by_the_inverses_of_both_sides(kind):
    """A step of whole K-FAC matrices, from the definition: (A x G)^-1 of the gradient as one vector."""
    plain, model = layers(kind, np.float64), KFAC().adapted(layers(kind, np.float64))
    draw = np.random.default_rng(2)
    for layer in model:
        if isinstance(layer, Factored):
            sides = layer.sides
            halves = [draw.standard_normal((size, size)) for size in (sides.inputs, sides.outputs)]
            sides.join(layer.factors.value, *(half @ half.T for half in halves))
    x, y = batch(0)
    for each in (plain, model):
        loss, out = SoftmaxCrossEntropy(), x
        for layer in each:
            out = layer.forward(out)
        loss.forward(out, y)
        dy = loss.backward(1 / ROWS)
        for layer in reversed(each):
            dy = layer.backward(dy)
    for one, other in zip(plain, model, strict=True):
        if isinstance(other, Factored) and one.weight.value.size < 5_000:  # a larger one has a matrix of up to 2 GB
            whole = np.kron(*other.sides.split(other.factors.value))
            weight = one.weight.grad if one.weight.grad.ndim == 2 else one.weight.grad.reshape(len(one.bias.grad), -1).T
            expected = (whole @ np.vstack([weight, one.bias.grad]).reshape(-1)).reshape(-1, len(one.bias.grad))
            found = other.layer.weight.grad
            found = found if found.ndim == 2 else found.reshape(len(found), -1).T
            np.testing.assert_allclose(np.vstack([found, other.layer.bias.grad]), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize("kind", [ALL_MODELS[name] for name in ("mlp", "cnn") if name in ALL_MODELS])
def test_any_number_of_ranks_trains_as_one(kind, ranks):
    """Also with parts of a batch that are not equal: 12 rows on 5 ranks."""
    how = {"kind": kind, "dtype": np.float64, "algorithm": "ordered"}
    ((alone, _),) = run_loopback(1, partial(trained, **how))
    for found, _ in run_loopback(ranks, partial(trained, update="sharded", **how)):
        for name, value in found.items():
            np.testing.assert_allclose(value, alone[name], rtol=1e-6, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_same_bits_whoever_inverts_under_all_schedules(ranks):
    how = {"algorithm": "ring", "fusion": "layers:2", "optimizer": KFAC(0.05, weight_decay=0.1)}
    found = set()
    for update, schedule in product(("full", "sharded"), SCHEDULES if ranks == 3 else ("dear", "dear-eager")):
        runs = run_loopback(ranks, partial(trained, update=update, schedule=schedule, **how))
        found |= {digest for _, digest in runs}
    assert len(found) == 1


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"wire": "bf16"}, {"debug": True}], ids=str)
def test_and_with_what_else_may_be_chosen(options):
    runs = [run_loopback(3, partial(trained, update=update, **options)) for update in ("full", "sharded")]
    assert len({digest for ranks in runs for _, digest in ranks}) == 1


def test_wherever_the_line_is_cut():
    how, cuts = {"algorithm": "ordered", "update": "sharded"}, ("none", "25MB", "tensors")
    found = [run_loopback(3, partial(trained, cuts=each, **how)) for each in (cuts, cuts[1:], ())]
    assert len({digest for ranks in found for _, digest in ranks}) == 1


def test_a_checkpoint_goes_on_with_other_owners(tmp_path):
    file = tmp_path / "state.npz"

    def run(transport, begin, end, *, resume=False, **options):
        model, options = layers(dtype=np.float64), {"optimizer": KFAC(0.05), "algorithm": "ordered"} | options
        with Session(model, SoftmaxCrossEntropy(), transport, **options) as it:
            if resume:
                it.resume(file)
            for iteration in range(begin, end):
                it.step(*batch(iteration, transport.rank, transport.size), total=ROWS)
            it.save(file)
            return {each.name: each.value.copy() for each in it.parameters}

    whole, *_ = run_loopback(3, lambda each: run(each, 0, 4))
    run_loopback(4, lambda each: run(each, 0, 2, update="sharded"))
    found, *_ = run_loopback(2, lambda each: run(each, 2, 4, resume=True, update="sharded"))
    for name, value in whole.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-9, err_msg=name)


def test_layers_within_a_residual_have_factors_and_shared_or_frozen_ones_have_none():
    draw = np.random.default_rng(0)
    weight = partial(draw.standard_normal, (3, 3))
    frozen, shared, own = (Dense(name, weight()) for name in ("frozen", "shared", "own"))
    frozen.weight.trained = False
    other = Dense("other", weight())
    other.parameters = other.weight, other.bias = shared.weight, other.bias
    found = KFAC().adapted([Residual([own, Relu()]), frozen, shared, other])
    names = [each.name for layer in found for each in layer.parameters if each.optimizer]
    assert names == ["own.factors"]


def test_it_learns_in_fewer_iterations():
    """The digits, 60 iterations of 256 examples; the whole comparison is in docs/benchmarks/variants.md."""

    def loss(**choices):
        config = Config.of({"model": "mlp", "batch": 256, "iterations": 60, **choices})
        return np.mean(run_world(lambda world: train(config, world), threads=2)["loss"][-5:])

    assert loss(optimizer="kfac", update="sharded") < 0.5 * loss(optimizer="sgd", lr=0.3)


@pytest.mark.parametrize(
    ("options", "said"),
    installed(
        ({"clip": 1.0}, "optimizer KFAC sends other sums beside gradients: leave out clip, loss_scale and statistic"),
        ({"loss_scale": "dynamic"}, "leave out clip, loss_scale and statistic"),
        ({"wire": "int8"}, "of all ranks in each iteration: the route 'full over int8' does not bring them all"),
        ({"wire": "noise:1%"}, "the route 'full over noise:1%' does not bring them all"),
        ({"schedule": "local:4"}, "the route 'local:4' does not bring them all"),
    ),
)
def test_what_would_lose_a_part_of_a_factor_is_refused(options, said):
    with pytest.raises(AgreedError, match=said):
        run_loopback(2, partial(trained, **options))


def test_a_model_without_rows_is_refused():
    with pytest.raises(AgreedError, match="optimizer KFAC has nothing to do: no layer has a method rows"):
        run_loopback(2, lambda each: Session([Relu()], SoftmaxCrossEntropy(), each, optimizer=KFAC()))


@pytest.mark.parametrize(("constants", "said"), [
    ({"damping": 0.0}, "damping must be above zero, not 0"),
    ({"damping": -1.0}, "damping must be finite and not negative, not -1"),
    ({"factor_decay": 1.0}, "factor_decay must be below 1, not 1"),
])  # fmt: skip
def test_constants_are_checked(constants, said):
    with pytest.raises(ValueError, match=said):
        KFAC(**constants)
