"""Whole models on CuPy arrays against the same on NumPy's."""

import cupy
import numpy as np
import pytest

from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.models.networks import ALL_MODELS

INPUTS = {
    "mlp": ((8, 8), 10, lambda rng: rng.standard_normal((6, 8, 8))),
    "cnn": ((8, 8), 10, lambda rng: rng.standard_normal((6, 8, 8))),
    "gpt": ((12,), 50, lambda rng: rng.integers(0, 50, (6, 12))),
}
TOLERANCE = {"float32": 2e-4, "float64": 1e-11}


def gradients(layers, x, targets):
    loss = SoftmaxCrossEntropy()
    for layer in layers:
        x = layer.forward(x)
    total, dy = loss.forward(x, targets), loss.backward(0.1)
    for layer in reversed(layers):
        dy = layer.backward(dy)
    return float(total), [parameter.grad for layer in layers for parameter in layer.parameters]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("model", [name for name in INPUTS if name in ALL_MODELS])
def test_gradients_are_those_of_the_host(model, dtype):
    shape, classes, draw = INPUTS[model]
    x = draw(np.random.default_rng(0))
    x = x if model == "gpt" else x.astype(dtype)
    targets = np.random.default_rng(1).integers(0, classes, (6, 12) if model == "gpt" else 6)
    here, there = (ALL_MODELS[model](shape, classes, np.random.default_rng(2), np.dtype(dtype)) for _ in range(2))
    for layer in there:
        for parameter in layer.parameters:
            parameter.value, parameter.grad = cupy.asarray(parameter.value), cupy.asarray(parameter.grad)
    loss, expected = gradients(here, x, targets)
    loss_there, found = gradients(there, cupy.asarray(x), cupy.asarray(targets))
    rtol = TOLERANCE[dtype]
    assert loss_there == pytest.approx(loss, rel=rtol)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.get(), other, rtol=rtol, atol=rtol * np.abs(other).max())
