"""What every layer and model promises: backward is the derivative of forward, in place, for any split of a batch."""

import math

import numpy as np
import pytest

from dear_mpi.models.layer import is_split
from dear_mpi.models.layers import SoftmaxCrossEntropy


def random(*shape):
    return np.random.default_rng(math.prod(shape) + len(shape)).standard_normal(shape)


def tokens(batch, window, vocabulary):
    return np.random.default_rng(batch * window).integers(0, vocabulary, (batch, window))


def make(case, dtype=np.float64):
    """A layer with no parameter left at 0 or 1, where a wrong gradient could hide, and its input."""
    layer, x = case()
    for parameter in layer.parameters:
        parameter.value = (parameter.value + 0.5 * random(*parameter.value.shape, 1)[..., 0]).astype(dtype)
        parameter.grad = parameter.grad.astype(dtype)
    return layer, x.astype(dtype) if x.dtype.kind == "f" else x


def differences(function, array, step=1e-5):
    """The gradient of a scalar function of ``array``, by moving one element at a time."""
    gradient = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        kept, values = array[index], []
        for sign in (1, -1):
            array[index] = kept + sign * step
            values.append(function())
        array[index] = kept
        gradient[index] = (values[0] - values[1]) / (2 * step)
    return gradient


def relative_error(got, expected):
    assert got.shape == expected.shape
    return np.abs(got - expected).max() / np.abs(expected).max()


def gradients(layer, x, dy):
    layer.forward(x)
    dx = layer.backward(dy)
    return dx, [parameter.grad.copy() for parameter in layer.parameters]


def agrees_with_differences(case):
    layer, x = make(case)
    dy = random(*layer.forward(x).shape)
    dx, grads = gradients(layer, x, dy)

    def objective():
        return float((layer.forward(x) * dy).sum())

    if x.dtype.kind == "f":
        assert relative_error(dx, differences(objective, x)) < 1e-6
    for parameter, grad in zip(layer.parameters, grads, strict=True):
        assert relative_error(grad, differences(objective, parameter.value)) < 1e-6, parameter.name


def keeps_dtypes_and_has_halves_with_the_bits_of_the_whole(case):
    for dtype in (np.float32, np.float64):
        layer, x = make(case, dtype)
        y = layer.forward(x)
        dy = random(*y.shape).astype(dtype)
        dx, grads = gradients(layer, x, dy)
        assert {y.dtype, dx.dtype} == {np.dtype(dtype)}
        if is_split(layer):
            for parameter in layer.parameters:
                parameter.grad.fill(np.nan)
            layer.forward(x)
            assert layer.backward_input(dy).tobytes() == dx.tobytes()
            layer.backward_weights()
            assert [each.grad.tobytes() for each in layer.parameters] == [grad.tobytes() for grad in grads]


def writes_gradients_into_the_bucket(case):
    layer, x = make(case)
    dy = random(*layer.forward(x).shape)
    expected = gradients(layer, x, dy)[1]
    bucket, start, views = np.full(sum(grad.size for grad in expected) + 2, np.nan), 1, []
    for parameter in layer.parameters:
        stop = start + parameter.grad.size
        parameter.grad = bucket[start:stop].reshape(parameter.grad.shape)
        views.append(parameter.grad)
        start = stop
    layer.backward(dy)
    assert all(parameter.grad is view for parameter, view in zip(layer.parameters, views, strict=True))
    np.testing.assert_array_equal(bucket[1:-1], np.concatenate([grad.ravel() for grad in expected] or [[]]))
    assert np.isnan(bucket[[0, -1]]).all(), "wrote beyond the gradient"


def takes_a_batch_in_parts(case):
    """Also parts without samples, whose gradients are zero whatever was in their place before."""
    layer, x = make(case)
    dy = random(*layer.forward(x).shape)
    dx, grads = gradients(layer, x, dy)
    parts = []
    for rows in (slice(0, 0), slice(0, 1), slice(1, None)):
        for parameter in layer.parameters:
            parameter.grad.fill(np.nan)
        parts.append(gradients(layer, x[rows], dy[rows]))
    for grad, *of_parts in zip(grads, *(part[1] for part in parts), strict=True):
        assert not of_parts[0].any()
        np.testing.assert_allclose(sum(of_parts), grad, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(np.concatenate([part[0] for part in parts]), dx, rtol=1e-12, atol=1e-13)


CHECKS = (
    agrees_with_differences,
    keeps_dtypes_and_has_halves_with_the_bits_of_the_whole,
    writes_gradients_into_the_bucket,
    takes_a_batch_in_parts,
)


def run(layers, x):
    for layer in layers:
        x = layer.forward(x)
    return x


def check_model(network, shape, classes, x, targets):
    """Gradients along one random direction per parameter; equal weights for a seed and all dtypes."""

    def built(seed, dtype):
        return network(shape, classes, np.random.default_rng(seed), np.dtype(dtype))

    def weights(seed, dtype):
        return [parameter.value for layer in built(seed, dtype) for parameter in layer.parameters]

    layers, loss, step = built(3, float), SoftmaxCrossEntropy(), 1e-6  # small: some of many Relus are near their kink
    loss.forward(run(layers, x), targets)
    dx = loss.backward(1 / targets.size)
    for layer in reversed(layers):
        dx = layer.backward(dx)
    for parameter in (parameter for layer in layers for parameter in layer.parameters):
        kept, direction = parameter.value.copy(), random(*parameter.value.shape)
        values = []
        for sign in (1, -1):
            parameter.value[...] = kept + sign * step * direction
            values.append(loss.forward(run(layers, x), targets) / targets.size)
        parameter.value[...] = kept
        expected = (values[0] - values[1]) / (2 * step)
        assert (parameter.grad * direction).sum() == pytest.approx(expected, rel=1e-6, abs=1e-9), parameter.name
    for one, same, rounded in zip(weights(0, "float64"), weights(0, "float64"), weights(0, "float32"), strict=True):
        assert one.tobytes() == same.tobytes()
        assert one.astype(np.float32).tobytes() == rounded.tobytes()
    assert any((one != other).any() for one, other in zip(weights(0, float), weights(1, float), strict=True))
