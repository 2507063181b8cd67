"""Layers, the perceptron and the loss of core: the checks of ``tests/layer_checks.py``, formulas, and refusals."""

import math

import numpy as np
import pytest

from dear_mpi.models.layer import is_split
from dear_mpi.models.layers import Dense, Gelu, Relu, Reshape, Residual, SoftmaxCrossEntropy
from dear_mpi.models.networks import mlp
from tests.layer_checks import CHECKS, check_model, differences, random, relative_error, tokens


def branch():
    return Residual([Gelu(), Dense("d1", random(4, 6)), Gelu(), Dense("d2", random(6, 4))])


# A new layer, and an input whose first axis is the samples.
CASES = {
    "dense": lambda: (Dense("d", random(5, 3)), random(4, 5)),
    "dense of one input": lambda: (Dense("d", random(1, 2)), random(3, 1)),
    "dense over tokens": lambda: (Dense("d", random(3, 4)), random(2, 5, 3)),
    "relu": lambda: (Relu(), random(3, 4, 2)),
    "gelu": lambda: (Gelu(), 2 * random(3, 5)),
    "flatten": lambda: (Reshape((8,)), random(3, 2, 4)),
    "reshape": lambda: (Reshape((1, 2, 4)), random(3, 8)),
    "residual": lambda: (branch(), random(2, 3, 4)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("check", CHECKS)
def test_layer(check, case):
    check(case)


def test_what_is_split():
    assert {name for name, case in CASES.items() if is_split(case()[0])} == {*list(CASES)[:3], "residual"}

    class Other(Dense):
        def backward(self, dy):
            return 2 * super().backward(dy)

    class Both(Other):
        def backward_input(self, dy):
            return 2 * super().backward_input(dy)

    class Own(Relu):
        backward_input = Relu.backward

        def backward_weights(self): ...

    plain, patched = Dense("a", random(2, 2)), Dense("a", random(2, 2))
    patched.backward = plain.backward
    found = [is_split(each) for each in (plain, patched, Other("a", random(2, 2)), Both("a", random(2, 2)), Own())]
    assert found == [True, False, False, False, True], "the halves of the others are not those of their backward"


def test_activations_follow_their_formulas():
    x = np.array([-3.0, -0.5, 0.0, 0.5, 3.0])
    np.testing.assert_array_equal(Relu().forward(x), [0, 0, 0, 0.5, 3])
    tanh_form = [0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x]
    np.testing.assert_allclose(Gelu().forward(x), tanh_form, rtol=1e-14)


@pytest.mark.parametrize("shape", [(6,), (2, 5), (1,)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_loss_is_the_negative_log_likelihood(shape, dtype):
    logits, targets = random(*shape, 4).astype(dtype), np.arange(math.prod(shape)).reshape(shape) % 4
    loss = SoftmaxCrossEntropy()
    p = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum(axis=-1, keepdims=True)
    onehot = np.eye(4)[targets]
    total = loss.forward(logits, targets)
    assert (total.shape, total.dtype) == ((), np.float64)
    assert total == pytest.approx(-np.log(p[onehot == 1]).sum(), rel=1e-6 if dtype is np.float32 else 1e-13)
    dlogits = loss.backward(0.25)
    assert dlogits.dtype == dtype
    np.testing.assert_allclose(dlogits, (p - onehot) * 0.25, atol=1e-7 if dtype is np.float32 else 1e-15)


def test_loss_is_stable_for_any_layout_and_takes_a_part_without_samples():
    logits, targets, loss = random(5, 2, 3).transpose(1, 0, 2), tokens(2, 5, 3), SoftmaxCrossEntropy()
    loss.forward(logits, targets)
    dlogits = loss.backward(1 / 10)
    assert relative_error(dlogits, differences(lambda: loss.forward(logits, targets) / 10, logits)) < 1e-6
    assert loss.forward(np.array([[1e4, -1e4]]), np.array([1])) == 2e4
    np.testing.assert_array_equal(loss.backward(1.0), [[1, -1]])
    assert loss.forward(np.zeros((0, 3)), np.zeros(0, int)) == 0.0
    assert loss.backward(1.0).shape == (0, 3)


def test_mlp():
    check_model(mlp, (3, 4), 3, random(3, 3, 4), np.arange(3))


@pytest.mark.parametrize(("targets", "said"), [
    (np.zeros(2, int), "targets must have shape (4,), one per row of logits, not (2,)"),
    (np.full(4, -1), "targets must be from 0 to 4, not from -1 to -1"),  # NumPy would take the last one
    (np.array([0, 5, 1, 2]), "targets must be from 0 to 4, not from 0 to 5"),
    (np.array([0, 1 << 40, 1, 2]), "targets must be from 0 to 4, not from 0 to"),
    (np.zeros(4), "targets must be whole numbers, not of type float64"),
])  # fmt: skip
def test_wrong_targets_are_refused(targets, said):
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is compared, not as a pattern)
        SoftmaxCrossEntropy().forward(random(4, 5), targets)
    assert said in str(error.value)


def test_a_weight_that_is_no_matrix_is_refused():
    with pytest.raises(ValueError, match=r"weight of d must have shape \(inputs, outputs\), not \(2, 3, 4\)"):
        Dense("d", random(2, 3, 4))
