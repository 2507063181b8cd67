"""The optimisers' arithmetic against their formulas, written plainly in float64 on whole arrays."""

import numpy as np
import pytest

from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.optimizers import SGD, Adam, AdamW
from dear_mpi.kernels.pack import packer
from dear_mpi.kernels.pack_plan import PackPlan
from dear_mpi.kernels.reference import BLOCK
from dear_mpi.kernels.update import updater

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


def start(shapes, dtype):
    return [np.random.default_rng([1, number]).standard_normal(shape).astype(dtype) for number, shape in shapes.items()]


def grads(shapes, dtype, iteration):
    """Those of one iteration; they depend on the tensor, not on its bucket."""
    rngs = [np.random.default_rng([2, number, iteration]) for number in shapes]
    return [rng.standard_normal(shape).astype(dtype) for rng, shape in zip(rngs, shapes.values(), strict=True)]


def train(name, shapes, *, dtype="fp32", wire="fp32", scale=1.0):
    """Values and state of tensors ``{number: shape}`` that share a bucket, after a few iterations."""
    values, optimizer = start(shapes, DTYPES[dtype]), CASES[name]
    state = [optimizer.new_state(value) for value in values]
    plan = PackPlan.of(list(shapes.values()), DTYPES[wire], 3)
    bucket = np.full(plan.padded, np.nan, plan.dtype)
    call = updater(bucket, plan, values, state, optimizer)
    for iteration in range(1, ITERATIONS + 1):
        packer(grads(shapes, plan.dtype, iteration), bucket, plan)()
        before = bucket.tobytes()
        call(optimizer, iteration, scale)
        assert bucket.tobytes() == before, "gradients are only read"
    return values, state


def expected(name, shapes, *, dtype="fp32", wire="fp32", scale=1.0):
    """The same in float64."""
    values, optimizer = [value.astype(np.float64) for value in start(shapes, DTYPES[dtype])], CASES[name]
    state = [optimizer.new_state(value) for value in values]
    for iteration in range(1, ITERATIONS + 1):
        for number, grad in enumerate(grads(shapes, DTYPES[wire], iteration)):
            wide = scale * grad.astype(np.float64)
            values[number], state[number] = formula(optimizer, iteration, values[number], wide, state[number])
    return values, state


def check(name, shapes, rtol, **choices):
    got, wanted = train(name, shapes, **choices), expected(name, shapes, **choices)
    assert {value.dtype for value in got[0]} == {DTYPES[choices.get("dtype", "fp32")]}
    for got_arrays, wanted_arrays in [(got[0], wanted[0]), *zip(got[1], wanted[1], strict=True)]:
        for array, reference in zip(got_arrays, wanted_arrays, strict=True):
            np.testing.assert_allclose(array.astype(np.float64), reference, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", SIZES)
def test_formula(name, size):
    check(name, {0: (size,)}, 1e-13, dtype="fp64", wire="fp64")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("wire", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("scale", [1.0, 1 / 3])
def test_narrow_gradients_and_scale(name, wire, scale):
    """What the wire rounded is not rounded again: parameters are right to the accuracy of fp32."""
    check(name, {0: (BLOCK + 1,), 1: (), 2: (3, 5)}, 3e-5, wire=wire, scale=scale)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("dtype", "rtol"), [("fp16", 0.02), ("bf16", 0.1)])
def test_narrow_parameters(name, dtype, rtol):
    check(name, {0: (40, 7)}, rtol, dtype=dtype, wire=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_adam_leaves_a_parameter_without_gradient_alone(dtype):
    """Its moments are zero, and what keeps 0 / 0 away, epsilon, is less than fp16 can hold."""
    value = np.ones(3, DTYPES[dtype])
    plan = PackPlan.of([(3,)], DTYPES[dtype], 1)
    optimizer = CASES["adam"]
    state = [optimizer.new_state(value)]
    with np.errstate(all="ignore"):
        updater(np.zeros(plan.padded, plan.dtype), plan, [value], state, optimizer)(optimizer, 1, 1.0)
    assert value.astype(float).tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("wire", ["fp32", "bf16"])
def test_grouping_does_not_change_a_bit(name, wire):
    shapes = {0: (5,), 1: (BLOCK + 1,), 2: (0,), 3: (), 4: (3, 7)}

    def in_groups(*groups):
        """The bytes of every tensor's value, then of its state."""
        found = {}
        for group in groups:
            values, state = train(name, {number: shapes[number] for number in group}, wire=wire, scale=0.3)
            for number, value, own in zip(group, values, state, strict=True):
                found[number] = [array.tobytes() for array in (value, *own)]
        return [found[number] for number in shapes]

    together = in_groups([0, 1, 2, 3, 4])
    assert in_groups([0], [1], [2], [3], [4]) == together
    assert in_groups([4, 1], [3, 2, 0]) == together


@pytest.mark.parametrize("values", [[], [np.zeros(3)] * 2])
def test_one_value_per_tensor(values):
    plan = PackPlan.of([(3,)], DTYPES["fp32"], 1)
    with pytest.raises(ValueError, match="tensors must have the shapes of the plan"):
        updater(np.zeros(plan.padded, np.float32), plan, values, [[]] * len(values), SGD())


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
    plan = PackPlan.of([(3,), (BLOCK + 1,)], DTYPES[wire], 2)
    bucket, finite = np.full(plan.padded, np.nan, plan.dtype), np.array([True])
    first, second = plan.views(bucket)
    first[...], second[...], second[place] = 1, 1, value
    call = updater(
        bucket, plan, [np.ones(shape, DTYPES[dtype]) for shape in plan.shapes], [[], []], SGD(), finite=finite
    )
    with np.errstate(all="ignore"):
        call(SGD(), 1, scale)
        assert finite[0] == expected, "padding does not count"
        second[place] = 1
        call(SGD(), 2, scale)
    assert finite[0] == expected, "the flag stays as it is"
