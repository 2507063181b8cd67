"""The optimisers' arithmetic against their formulas, written plainly in float64 on whole arrays."""

from itertools import pairwise

import numpy as np
import pytest

from dear_mpi.kernels.calls import updater
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.optimizers import OPTIMIZERS, SGD, Adam, AdamW, Lamb, Muon
from dear_mpi.kernels.reference import BLOCK

ITERATIONS = 4
SIZES = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7]

CASES = {
    "sgd": SGD(),
    "sgd, decay": SGD(weight_decay=0.3),
    "momentum": SGD(momentum=0.9),
    "momentum, decay": SGD(momentum=0.9, weight_decay=0.3),
    "nesterov": SGD(momentum=0.9, nesterov=True),
    "nesterov, decay": SGD(momentum=0.9, nesterov=True, weight_decay=0.3),
    "adam": Adam(0.1),
    "adam, decay": Adam(0.1, weight_decay=0.3),
    "adamw": AdamW(0.1),
    "adamw, decay": AdamW(0.1, weight_decay=0.3, epsilon=0.2),
    "adam, other constants": Adam(0.1, beta1=0.5, beta2=0.7, epsilon=0.2),
}
PLAIN = tuple(CASES)  # with a formula below
CASES |= {name: kind() for name, kind in OPTIMIZERS.items() if kind.scope == "element" and name not in CASES}


def formula(optimizer, iteration, value, grad, state):
    """The new value and the new state."""
    if isinstance(optimizer, AdamW):
        value = value - optimizer.lr * optimizer.weight_decay * value
    else:
        grad = grad + optimizer.weight_decay * value
    if isinstance(optimizer, Adam):
        mean = optimizer.beta1 * state[0] + (1 - optimizer.beta1) * grad
        square = optimizer.beta2 * state[1] + (1 - optimizer.beta2) * grad**2
        unbiased_mean = mean / (1 - optimizer.beta1**iteration)
        unbiased_square = square / (1 - optimizer.beta2**iteration)
        return value - optimizer.lr * unbiased_mean / (np.sqrt(unbiased_square) + optimizer.epsilon), [mean, square]
    if not optimizer.momentum:
        return value - optimizer.lr * grad, []
    velocity = optimizer.momentum * state[0] + grad
    step = grad + optimizer.momentum * velocity if optimizer.nesterov else velocity
    return value - optimizer.lr * step, [velocity]


def start(size, dtype):
    return np.random.default_rng(1).standard_normal(size).astype(DTYPES[dtype])


def gradients(size, dtype, iteration):
    return np.random.default_rng([2, iteration]).standard_normal(size).astype(DTYPES[dtype])


def train(name, size, *, dtype="fp32", wire="fp32", scale=1.0, cuts=()):
    """Values, then state, after a few iterations; each piece between two cuts is updated by a call of its own."""
    values, grads, optimizer = start(size, dtype), np.empty(size, DTYPES[wire]), CASES[name]
    state, pieces = optimizer.new_state(values), [slice(*ends) for ends in pairwise([0, *cuts, size])]
    calls = [updater(grads[piece], values[piece], [array[piece] for array in state], optimizer) for piece in pieces]
    for iteration in range(1, ITERATIONS + 1):
        grads[...] = gradients(size, wire, iteration)
        before = grads.tobytes()
        for call in calls:
            call(optimizer, iteration, scale)
        assert grads.tobytes() == before, "gradients are only read"
    return [values, *state]


def expected(name, size, *, dtype="fp32", wire="fp32", scale=1.0):
    """The same in float64."""
    value, optimizer = start(size, dtype).astype(np.float64), CASES[name]
    state = optimizer.new_state(value)
    for iteration in range(1, ITERATIONS + 1):
        grad = scale * gradients(size, wire, iteration).astype(np.float64)
        value, state = formula(optimizer, iteration, value, grad, state)
    return [value, *state]


def check(name, size, rtol, **choices):
    got, wanted = train(name, size, **choices), expected(name, size, **choices)
    assert got[0].dtype == DTYPES[choices.get("dtype", "fp32")]
    for array, reference in zip(got, wanted, strict=True):
        np.testing.assert_allclose(array.astype(np.float64), reference, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("size", SIZES)
def test_formula(name, size):
    check(name, size, 1e-13, dtype="fp64", wire="fp64")


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("wire", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("scale", [1.0, 1 / 3])
def test_narrow_gradients_and_scale(name, wire, scale):
    """What the wire rounded is not rounded again: parameters are right to the accuracy of fp32."""
    check(name, BLOCK + 16, 3e-5, wire=wire, scale=scale)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize(("dtype", "rtol"), [("fp16", 0.02), ("bf16", 0.1)])
def test_narrow_parameters(name, dtype, rtol):
    check(name, 280, rtol, dtype=dtype, wire=dtype)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("wire", ["fp32", "bf16"])
def test_cuts_do_not_change_a_bit(name, wire):
    size = BLOCK + 28

    def in_pieces(*cuts):
        return [array.tobytes() for array in train(name, size, wire=wire, scale=0.3, cuts=cuts)]

    assert in_pieces(5, BLOCK + 6, BLOCK + 6, BLOCK + 7) == in_pieces()
    assert in_pieces(size - 3, size) == in_pieces()


def zeros(size=3, dtype=np.float32):
    return np.zeros(size, dtype)


@pytest.mark.parametrize(
    ("grads", "values", "state", "message"),
    [
        (zeros((2, 3)), zeros(6), 2, "grads must be flat, without gaps, and of float64, .*, not float32[2, 3]"),
        (zeros(), zeros(6)[::2], 2, "values must be flat, .* bfloat16, not float32[3] with gaps"),
        (zeros(3, np.int32), zeros(), 2, "grads must be flat, .* bfloat16, not int32[3]"),
        (zeros(), zeros(4), 2, "grads and values must be of one length, not float32[3] and float32[4]"),
        (zeros(), zeros(), 1, "state of Adam must be float32[3] and float32[3], not float32[3]"),
        (zeros(), zeros(), 0, "state of Adam must be float32[3] and float32[3], not no array"),
        (zeros(), zeros(3, np.float64), 2, "state of Adam must be float64[3] and float64[3], not float32[3] and"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(grads, values, state, message):
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        updater(grads, values, [zeros() for _ in range(state)], CASES["adam"])


@pytest.mark.parametrize(
    ("value", "wire", "dtype", "scale", "expected"),
    [
        (1.0, "fp16", "fp32", 1.0, True),
        (np.nan, "fp32", "fp32", 1.0, False),
        (np.inf, "fp16", "fp32", 1.0, False),
        (-np.inf, "bf16", "fp64", 0.5, False),
        (65504.0, "fp16", "fp16", 2.0, True),  # formed in fp32
        (1e300, "fp64", "fp32", 1.0, False),
    ],
)
@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK])
def test_finite_flag(value, wire, dtype, scale, expected, place):
    grads, values, finite = np.ones(BLOCK + 1, DTYPES[wire]), np.ones(BLOCK + 1, DTYPES[dtype]), np.array([True])
    grads[place] = value
    call = updater(grads, values, [], SGD(), finite=finite)
    with np.errstate(all="ignore"):
        call(SGD(), 1, scale)
        assert finite[0] == expected
        grads[place] = 1
        call(SGD(), 2, scale)
    assert finite[0] == expected, "the flag stays as it is"


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("size", [1, 7, 3 * BLOCK + 7], ids=["one", "few", "more than a block"])
def test_lamb_takes_steps_as_long_as_the_tensor(size, dtype):
    optimizer = Lamb(0.1, weight_decay=0.3)
    values, grads = start(size, dtype), np.empty(size, DTYPES[dtype])
    state = optimizer.new_state(values)
    call = updater(grads, values, state, optimizer)
    value, kept = values.astype(np.float64), [np.zeros(size), np.zeros(size)]
    for iteration in range(1, ITERATIONS + 1):
        grads[...] = gradients(size, dtype, iteration)
        call(optimizer, iteration, 1.0)
        moved, kept = formula(Adam(1.0), iteration, np.zeros(size), grads.astype(np.float64), kept)
        step = -moved + optimizer.weight_decay * value
        value = value - optimizer.lr * np.linalg.norm(value) / np.linalg.norm(step) * step
        np.testing.assert_allclose(values, value, rtol=1e-12 if dtype == "fp64" else 1e-4, atol=1e-5)


def newton_schulz(matrix):
    """Five steps on the singular values, which is what they do."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    s = s / (np.linalg.norm(s) + 1e-7)
    for _ in range(5):
        s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
    return u * s @ v


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("shape", [(8, 8), (12, 5), (5, 12), (1, 7), (7, 1), (6, 3, 2, 2)], ids=str)
def test_muon_orthogonalises_the_momentum_of_matrices(shape, dtype):
    optimizer = Muon(0.1, weight_decay=0.3)
    size = int(np.prod(shape))
    values, grads = start(size, dtype).reshape(shape), np.empty(shape, DTYPES[dtype])
    state = optimizer.new_state(values)
    call = updater(grads, values, state, optimizer)
    value, mean = values.astype(np.float64).reshape(len(values), -1), 0.0
    for iteration in range(1, ITERATIONS + 1):
        grads[...] = gradients(size, dtype, iteration).reshape(shape)
        call(optimizer, iteration, 1.0)
        grad = grads.astype(np.float64).reshape(value.shape)
        mean = 0.95 * mean + 0.05 * grad
        step = newton_schulz(0.05 * grad + 0.95 * mean) * max(1, value.shape[0] / value.shape[1]) ** 0.5
        value = value * (1 - 0.1 * 0.3) - 0.1 * step
        close = {"rtol": 1e-10, "atol": 1e-12} if dtype == "fp64" else {"rtol": 1e-4, "atol": 1e-5}
        np.testing.assert_allclose(values.reshape(value.shape), value, **close)
    np.testing.assert_allclose(state[0].reshape(value.shape), mean, rtol=1e-5, atol=1e-6)
    assert not state[1].any(), "Adam's second moment is of no use to a matrix"


@pytest.mark.parametrize("shape", [(), (9,), (0, 4), (3, 2, 2)], ids=str)
def test_muon_takes_all_else_by_adamw(shape):
    muon, adamw = Muon(0.1, weight_decay=0.3), AdamW(0.15 * 0.1, beta2=0.95, weight_decay=0.3)
    grads = np.ones(shape) * 0.3
    found = []
    for optimizer in (muon, adamw):
        values = np.full(shape, 2.0)
        state = optimizer.new_state(values)
        for iteration in range(1, ITERATIONS + 1):
            optimizer.update(iteration, values, grads.copy(), state)
        found.append(values)
    assert (found[0] == found[1]).all()


def test_a_matrix_may_lie_transposed_in_memory():
    values, grads = start(12, "fp64").reshape(3, 4), gradients(12, "fp64", 1).reshape(3, 4)
    turned, state = values.T.copy(), Muon().new_state(np.empty((4, 3)))
    updater(grads, values, Muon().new_state(values), Muon())(Muon(), 1, 1.0)
    updater(np.asfortranarray(grads), turned.T, [array.T for array in state], Muon())(Muon(), 1, 1.0)
    np.testing.assert_allclose(turned.T, values, rtol=1e-12)


@pytest.mark.parametrize(
    ("constants", "said"), [({"momentum": 1.0}, "momentum must be"), ({"vector_rate": 0.0}, "vector_rate")]
)
def test_muon_refuses_constants(constants, said):
    with pytest.raises(ValueError, match=said):
        Muon(**constants)
