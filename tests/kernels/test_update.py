"""The optimisers' arithmetic against their formulas, written plainly in float64 on whole arrays."""

import numpy as np
import pytest

from dear_mpi.kernels.dtypes import DTYPES, compute_dtype
from dear_mpi.kernels.pack import pack
from dear_mpi.kernels.pack_plan import PackPlan
from dear_mpi.kernels.reference import BLOCK
from dear_mpi.kernels.rules import SGD, Adam
from dear_mpi.kernels.update import unpack_update

ITERATIONS = 4
SIZES = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7]

# The rule of each iteration, counted from 1.
RULES = {
    "sgd": lambda iteration: SGD(0.1),
    "sgd, decay": lambda iteration: SGD(0.1, weight_decay=0.3),
    "momentum": lambda iteration: SGD(0.1, 0.9),
    "momentum, decay": lambda iteration: SGD(0.1, 0.9, weight_decay=0.3),
    "nesterov": lambda iteration: SGD(0.1, 0.9, True),
    "nesterov, decay": lambda iteration: SGD(0.1, 0.9, True, 0.3),
    "adam": lambda iteration: Adam(0.1, iteration),
    "adam, decay": lambda iteration: Adam(0.1, iteration, weight_decay=0.3),
    "adam, other constants": lambda iteration: Adam(0.1, iteration, beta1=0.5, beta2=0.7, epsilon=0.2),
}


def formula(rule, value, grad, slots):
    """The new value and the new slots."""
    grad = grad + rule.weight_decay * value
    if isinstance(rule, Adam):
        mean = rule.beta1 * slots[0] + (1 - rule.beta1) * grad
        square = rule.beta2 * slots[1] + (1 - rule.beta2) * grad**2
        unbiased_mean = mean / (1 - rule.beta1**rule.iteration)
        unbiased_square = square / (1 - rule.beta2**rule.iteration)
        return value - rule.lr * unbiased_mean / (np.sqrt(unbiased_square) + rule.epsilon), [mean, square]
    if not rule.momentum:
        return value - rule.lr * grad, []
    velocity = rule.momentum * slots[0] + grad
    return value - rule.lr * (grad + rule.momentum * velocity if rule.nesterov else velocity), [velocity]


def slots_of(name, value):
    count = 2 if "adam" in name else int("momentum" in name or "nesterov" in name)
    return [np.zeros(value.shape, compute_dtype(value.dtype)) for _ in range(count)]


def start(shapes, dtype):
    return [np.random.default_rng([1, number]).standard_normal(shape).astype(dtype) for number, shape in shapes.items()]


def grads(shapes, dtype, iteration):
    """Those of one iteration; they depend on the tensor, not on its bucket."""
    rngs = [np.random.default_rng([2, number, iteration]) for number in shapes]
    return [rng.standard_normal(shape).astype(dtype) for rng, shape in zip(rngs, shapes.values(), strict=True)]


def train(name, shapes, *, dtype="fp32", wire="fp32", scale=1.0):
    """Values and slots of tensors ``{number: shape}`` that share a bucket, after a few iterations."""
    values = start(shapes, DTYPES[dtype])
    slots = [slots_of(name, value) for value in values]
    plan = PackPlan.of(list(shapes.values()), DTYPES[wire], 3)
    bucket = np.full(plan.padded, np.nan, plan.dtype)
    for iteration in range(1, ITERATIONS + 1):
        pack(grads(shapes, plan.dtype, iteration), bucket, plan)
        before = bucket.tobytes()
        unpack_update(bucket, plan, values, slots, RULES[name](iteration), scale=scale)
        assert bucket.tobytes() == before, "gradients are only read"
    return values, slots


def expected(name, shapes, *, dtype="fp32", wire="fp32", scale=1.0):
    """The same in float64."""
    values = [value.astype(np.float64) for value in start(shapes, DTYPES[dtype])]
    slots = [slots_of(name, value) for value in values]
    for iteration in range(1, ITERATIONS + 1):
        for number, grad in enumerate(grads(shapes, DTYPES[wire], iteration)):
            step = scale * grad.astype(np.float64)
            values[number], slots[number] = formula(RULES[name](iteration), values[number], step, slots[number])
    return values, slots


def check(name, shapes, rtol, **choices):
    got, wanted = train(name, shapes, **choices), expected(name, shapes, **choices)
    assert {value.dtype for value in got[0]} == {DTYPES[choices.get("dtype", "fp32")]}
    for got_arrays, wanted_arrays in [(got[0], wanted[0]), *zip(got[1], wanted[1], strict=True)]:
        for array, reference in zip(got_arrays, wanted_arrays, strict=True):
            np.testing.assert_allclose(array.astype(np.float64), reference, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("size", SIZES)
def test_formula(name, size):
    check(name, {0: (size,)}, 1e-13, dtype="fp64", wire="fp64")


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("wire", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("scale", [1.0, 1 / 3])
def test_narrow_gradients_and_scale(name, wire, scale):
    """What the wire rounded is not rounded again: parameters are right to the accuracy of fp32."""
    check(name, {0: (BLOCK + 1,), 1: (), 2: (3, 5)}, 3e-5, wire=wire, scale=scale)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("dtype", "rtol"), [("fp16", 0.02), ("bf16", 0.1)])
def test_narrow_parameters(name, dtype, rtol):
    check(name, {0: (40, 7)}, rtol, dtype=dtype, wire=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_adam_leaves_a_parameter_without_gradient_alone(dtype):
    """Its moments are zero, and what keeps 0 / 0 away, epsilon, is less than fp16 can hold."""
    value = np.ones(3, DTYPES[dtype])
    plan = PackPlan.of([(3,)], DTYPES[dtype], 1)
    slots = slots_of("adam", value)
    with np.errstate(all="ignore"):
        unpack_update(np.zeros(plan.padded, plan.dtype), plan, [value], [slots], RULES["adam"](1))
    assert value.astype(float).tolist() == [1, 1, 1]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("wire", ["fp32", "bf16"])
def test_grouping_does_not_change_a_bit(name, wire):
    shapes = {0: (5,), 1: (BLOCK + 1,), 2: (0,), 3: (), 4: (3, 7)}

    def in_groups(*groups):
        """The bytes of every tensor's value, then of its slots."""
        found = {}
        for group in groups:
            values, slots = train(name, {number: shapes[number] for number in group}, wire=wire, scale=0.3)
            for number, value, state in zip(group, values, slots, strict=True):
                found[number] = [array.tobytes() for array in (value, *state)]
        return [found[number] for number in shapes]

    together = in_groups([0, 1, 2, 3, 4])
    assert in_groups([0], [1], [2], [3], [4]) == together
    assert in_groups([4, 1], [3, 2, 0]) == together


@pytest.mark.parametrize("values", [[], [np.zeros(3)] * 2])
def test_one_value_per_tensor(values):
    plan = PackPlan.of([(3,)], DTYPES["fp32"], 1)
    with pytest.raises(ValueError, match="tensors must have the shapes of the plan"):
        unpack_update(np.zeros(plan.padded, np.float32), plan, values, [[]] * len(values), SGD(0.1))
