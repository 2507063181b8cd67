"""Functions of JAX as layers, beside a plain loop of JAX."""

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="layers of JAX need jax (our extra 'jax')")

import jax.numpy as jnp  # noqa: E402

from dear_mpi.collectives.transports.loopback import run_loopback  # noqa: E402
from dear_mpi.contrib.jax.layers import JaxLayer, JaxLoss  # noqa: E402
from dear_mpi.kernels.dtypes import DTYPES  # noqa: E402
from dear_mpi.kernels.optimizers import SGD  # noqa: E402
from dear_mpi.models.data import Batches, load_data  # noqa: E402
from dear_mpi.models.layer import Parameter  # noqa: E402
from dear_mpi.training import Session  # noqa: E402
from dear_mpi.training.schedules import SCHEDULES  # noqa: E402
from tests.training_checks import on_all  # noqa: E402

ITERATIONS = 30


def stem(p, x):
    return jnp.tanh(x.reshape(len(x), -1) @ p["w"] + p["b"])


def residual(p, x):
    (left, right), scale = p
    return x + scale * jnp.tanh(x @ left) * (x @ right)


def head(p, x):
    return x @ p


def cross_entropy(outputs, targets):
    return -jnp.take_along_axis(jax.nn.log_softmax(outputs), targets[:, None], axis=1).sum()


def values():
    """Parameters of the three layers: a dictionary, a tuple of tuples, an array."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(0, shape[0] ** -0.5, shape).astype("f4")  # noqa: E731
    return [
        {"w": draw(64, 32), "b": np.zeros(32, "f4")},
        ((draw(32, 32), draw(32, 32)), np.ones(32, "f4")),
        draw(32, 10),
    ]


def layers():
    functions = {"stem": stem, "residual": residual, "head": head}
    return [JaxLayer(name, *each) for (name, *each) in zip(functions, functions.values(), values(), strict=True)]


def parts(rank, size):
    pytest.importorskip("sklearn", reason="the digits need scikit-learn (our extra 'data')")
    batches = Batches(load_data("digits", DTYPES["fp32"], 0).train, 48, rank=rank, size=size, seed=1)
    return [batches.part(iteration) for iteration in range(ITERATIONS)]


def plain_losses():
    """Gradient descent by JAX alone, on the whole batches."""

    @jax.jit
    def step(p, x, y):
        def mean(p):
            outputs = head(p[2], residual(p[1], stem(p[0], x)))
            return cross_entropy(outputs, y) / len(y)

        loss, gradients = jax.value_and_grad(mean)(p)
        return loss, jax.tree_util.tree_map(lambda value, gradient: value - 0.1 * gradient, p, gradients)

    p, losses = values(), []
    for x, y in parts(0, 1):
        loss, p = step(p, x, y)
        losses.append(float(loss))
    return losses


@pytest.mark.parametrize(("ranks", "schedules"), [(1, ["dear"]), (2, [*SCHEDULES]), (3, ["sequential", "dear"])])
def test_the_digits_have_the_losses_of_a_plain_loop(ranks, schedules):
    def body(transport, schedule):
        options = {"schedule": schedule, "optimizer": SGD(0.1), "algorithm": "ordered", "fusion": "4kB"}
        with Session(layers(), JaxLoss(cross_entropy), transport, **options) as session:
            losses = [session.step(x, y) for x, y in parts(transport.rank, ranks)]
            session.flush()
            return losses, session.parameters_sha256()

    answers = [each for name in schedules for each in on_all(lambda transport, s=name: body(transport, s), ranks)]
    assert len({digest for _, digest in answers}) == 1
    expected = plain_losses()
    np.testing.assert_allclose(answers[0][0], expected, rtol=1e-4)
    assert expected[-1] < 0.8 * expected[0]


def test_parameters_are_named_by_their_place():
    names = [[each.name for each in layer.parameters] for layer in layers()]
    assert names == [["stem['b']", "stem['w']"], ["residual[0][0]", "residual[0][1]", "residual[1]"], ["head"]]


def test_a_function_is_compiled_once():
    calls = []

    def counted(p, x):
        calls.append(x.shape)
        return x @ p

    def body(transport):
        mine = [JaxLayer("one", counted, np.eye(4, dtype="f4"))]
        with Session(mine, JaxLoss(cross_entropy), transport) as session:
            for _ in range(4):
                session.step(np.ones((3, 4), "f4"), np.zeros(3, "i4"))

    run_loopback(1, body)
    assert len(calls) == 1


def test_layers_may_be_tied_frozen_used_twice_and_given_integers():
    """A table of rows is the head as well; a frozen layer in between runs twice."""

    def rows(p, x):
        return p["t"][x].sum(1)

    def middle_of(p, x):
        return jnp.tanh(x @ p)

    def head_of(p, x):
        return x @ p.T

    def body(transport, schedule):
        rng = np.random.default_rng(3)
        table = rng.normal(size=(5, 4)).astype("f4")
        first = JaxLayer("rows", rows, {"t": table})
        middle = JaxLayer("middle", middle_of, rng.normal(size=(4, 4)).astype("f4"))
        middle.parameters[0].trained = False
        last = JaxLayer("head", head_of, first.parameters[0])
        options = {"calls": [0, 1, 1, 2], "schedule": schedule, "optimizer": SGD(0.1), "fusion": "none"}
        with Session([first, middle, last], JaxLoss(cross_entropy), transport, **options) as session:
            x = np.random.default_rng(transport.rank).integers(0, 5, (10, 6, 3))
            losses = [session.step(each, each[:, 0] % 5) for each in x]
            session.flush()
            return losses[-1] < losses[0], session.parameters_sha256()

    found = {each for name in SCHEDULES for each in on_all(lambda transport, s=name: body(transport, s), 2)}
    assert len(found) == 1
    assert found.pop()[0]


def test_gradients_of_tied_and_repeated_layers_are_right():
    """Beside jax.grad of the whole."""
    table = np.random.default_rng(3).normal(size=(5, 4)).astype("f4")
    x, y = np.array([[0, 1], [2, 4], [3, 3]]), np.array([1, 2, 4])
    mean = lambda t: cross_entropy(jnp.tanh(t[x].sum(1)) @ t.T, y) / 3  # noqa: E731
    expected = table - 0.5 * np.asarray(jax.grad(mean)(table))

    def body(transport):
        first = JaxLayer("rows", lambda p, x: p[x].sum(1), table)
        last = JaxLayer("head", lambda p, x: x @ p.T, first.parameters[0])
        mine = [first, JaxLayer("tanh", lambda p, x: jnp.tanh(x)), last]
        with Session(mine, JaxLoss(cross_entropy), transport, optimizer=SGD(0.5)) as session:
            session.step(x, y)
            session.flush()
            return first.parameters[0].value.copy()

    (found,) = on_all(body, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(ValueError, match=r"parameter a\['w'\] is of float64, which JAX makes float32: give it as that"):
        JaxLayer("a", stem, {"w": np.ones(3)})
    with pytest.raises(ValueError, match="layer a: function must take parameters and an input, not be 'tanh'"):
        JaxLayer("a", "tanh")
    with pytest.raises(ValueError, match="loss must be a function of outputs and targets, not None"):
        JaxLoss(None)
    with pytest.raises(ValueError, match="loss must be one number, the sum over its examples"):
        JaxLoss(lambda outputs, targets: outputs).forward(np.ones(2, "f4"), np.ones(2, "f4"))

    def body(transport, mine):
        Session(mine(transport.rank), JaxLoss(cross_entropy), transport)

    nothing = on_all(lambda transport: body(transport, lambda rank: [JaxLayer("tanh", lambda p, x: jnp.tanh(x))]), 2)
    assert nothing == ["session: a model must have a parameter that is trained, with an element"] * 2
    unequal = on_all(
        lambda transport: body(transport, lambda rank: [JaxLayer("a", head, np.ones((4, 4 + rank), "f4"))]), 2
    )
    assert unequal[0] == unequal[1]
    assert "session: model must be the same on all ranks" in unequal[0]
    assert isinstance(layers()[2].parameters[0], Parameter)
