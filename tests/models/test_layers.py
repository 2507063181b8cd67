"""Layers and models: forward against the plainest formula, backward against differences, and the promises of both.

Backward is proven right by central differences of forward, so forward has references of its own.
"""

import math
from itertools import product

import numpy as np
import pytest

from dear_mpi.models.layer import is_split
from dear_mpi.models.layers import (
    CausalSelfAttention,
    Conv2d,
    Dense,
    Embedding,
    Gelu,
    LayerNorm,
    Relu,
    Reshape,
    Residual,
    SoftmaxCrossEntropy,
)
from dear_mpi.models.networks import MODELS, cnn, gpt


def random(*shape):
    return np.random.default_rng(math.prod(shape) + len(shape)).standard_normal(shape)


def tokens(batch, window, vocabulary):
    return np.random.default_rng(batch * window).integers(0, vocabulary, (batch, window))


def attention(width, heads):
    return CausalSelfAttention("a", qkv=random(width, 3 * width), out=random(width, width), heads=heads)


def conv(filters, channels, kernel, **geometry):
    return Conv2d("c", random(filters, channels, kernel, kernel), **geometry)


def branch():
    return Residual([LayerNorm("n", (4,), float), Dense("d1", random(4, 6)), Gelu(), Dense("d2", random(6, 4))])


# A new layer, and an input whose first axis is the samples.
CASES = {
    "dense": lambda: (Dense("d", random(5, 3)), random(4, 5)),
    "dense of one input": lambda: (Dense("d", random(1, 2)), random(3, 1)),
    "dense over tokens": lambda: (Dense("d", random(3, 4)), random(2, 5, 3)),
    "conv 3x3, same space": lambda: (conv(4, 3, 3, padding=1), random(2, 3, 5, 5)),
    "conv 3x3, stride 2, odd space": lambda: (conv(3, 2, 3, stride=2, padding=1), random(2, 2, 7, 6)),
    "conv 5x5, stride 3": lambda: (conv(2, 1, 5, stride=3), random(3, 1, 9, 8)),
    "conv 2x2, last column unseen": lambda: (conv(2, 2, 2, stride=2), random(2, 2, 6, 5)),
    "conv 1x1, more padding than kernel": lambda: (conv(2, 3, 1, padding=2), random(2, 3, 2, 3)),
    "norm over tokens": lambda: (LayerNorm("n", (7,), float), random(2, 3, 7)),
    "norm over images": lambda: (LayerNorm("n", (3, 2, 4), float), random(3, 3, 2, 4)),
    "attention": lambda: (attention(6, 2), random(2, 5, 6)),
    "attention of one token and head": lambda: (attention(3, 1), random(3, 1, 3)),
    "embedding": lambda: (Embedding("e", tokens=random(5, 3), positions=random(6, 3)), tokens(4, 6, 5)),
    "embedding, short window": lambda: (Embedding("e", tokens=random(9, 2), positions=random(6, 2)), tokens(3, 4, 9)),
    "relu": lambda: (Relu(), random(3, 4, 2)),
    "gelu": lambda: (Gelu(), 2 * random(3, 5)),
    "flatten": lambda: (Reshape((8,)), random(3, 2, 4)),
    "reshape": lambda: (Reshape((1, 2, 4)), random(3, 8)),
    "residual": lambda: (branch(), random(2, 3, 4)),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def make(case):
    """A layer with no parameter left at 0 or 1, where a wrong gradient could hide."""
    layer, x = case()
    for parameter in layer.parameters:
        parameter.value += 0.5 * random(*parameter.value.shape, 1)[..., 0]
    return layer, x


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


@cases
def test_backward_agrees_with_differences(case):
    layer, x = make(case)
    dy = random(*layer.forward(x).shape)
    dx, grads = gradients(layer, x, dy)

    def objective():
        return float((layer.forward(x) * dy).sum())

    if x.dtype.kind == "f":
        assert relative_error(dx, differences(objective, x)) < 1e-6
    for parameter, grad in zip(layer.parameters, grads, strict=True):
        assert relative_error(grad, differences(objective, parameter.value)) < 1e-6, parameter.name


SPLIT = [name for name, case in CASES.items() if is_split(case()[0])]


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_halves_have_the_bits_of_the_whole(name, dtype):
    """Also where other layers run between them, and the first half is the only one that sees dy."""
    layer, x = make(CASES[name])
    for parameter in layer.parameters:
        parameter.value, parameter.grad = parameter.value.astype(dtype), parameter.grad.astype(dtype)
    x = x.astype(dtype)
    dy = random(*layer.forward(x).shape).astype(dtype)
    dx, grads = gradients(layer, x, dy)
    for parameter in layer.parameters:
        parameter.grad.fill(np.nan)
    layer.forward(x)
    assert layer.backward_input(dy).tobytes() == dx.tobytes()
    layer.backward_weights()
    assert [parameter.grad.tobytes() for parameter in layer.parameters] == [grad.tobytes() for grad in grads]


def test_what_is_split():
    assert {type(CASES[name]()[0]) for name in SPLIT} == {Dense, Conv2d, CausalSelfAttention, Residual}

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


@cases
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_is_kept(case, dtype):
    layer, x = make(case)
    for parameter in layer.parameters:
        parameter.value, parameter.grad = parameter.value.astype(dtype), parameter.grad.astype(dtype)
    y = layer.forward(x.astype(dtype) if x.dtype.kind == "f" else x)
    assert y.dtype == dtype
    assert layer.backward(np.ones_like(y)).dtype == dtype


@cases
def test_gradients_are_written_into_the_bucket(case):
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


@cases
def test_a_batch_may_be_split_in_any_way(case):
    """Also into parts without samples, whose gradients are zero whatever was in their place before."""
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


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("conv")])
def test_conv_is_a_sum_over_each_patch(name):
    layer, x = make(CASES[name])
    stride, pad, kernel = layer._stride, layer._padding, layer.weight.value.shape[2]
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    y = layer.forward(x)
    height, width = ((extent - kernel) // stride + 1 for extent in padded.shape[2:])
    assert y.shape == (len(x), len(layer.weight.value), height, width)
    for n, f, o, q in product(*map(range, y.shape)):
        patch = padded[n, :, o * stride : o * stride + kernel, q * stride : q * stride + kernel]
        expected = (patch * layer.weight.value[f]).sum() + layer.bias.value[f]
        assert y[n, f, o, q] == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_norm_normalises_each_sample_alone():
    layer = LayerNorm("n", (3, 2, 4), float)
    x = 100 + 50 * random(5, 3, 2, 4)
    y = layer.forward(x)
    np.testing.assert_allclose(y.mean(axis=(1, 2, 3)), 0, atol=1e-12)
    np.testing.assert_allclose(y.var(axis=(1, 2, 3)), 1, rtol=1e-6)
    assert not layer.forward(np.full_like(x, 7)).any(), "a constant sample has no deviation to divide by"
    layer.gain.value[...], layer.bias.value[...] = random(3, 2, 4), random(3, 2, 4) + 1
    np.testing.assert_allclose(layer.forward(x), y * layer.gain.value + layer.bias.value, rtol=1e-12)


def test_attention_averages_the_values_a_token_may_see():
    layer, x = make(CASES["attention"])
    qkv_weight, qkv_bias, out_weight, out_bias = (parameter.value for parameter in layer.parameters)
    expected = np.zeros_like(x)
    for b, t, h in product(range(2), range(5), range(2)):
        q, k, v = (
            x[b] @ qkv_weight[:, columns] + qkv_bias[columns]
            for columns in (slice(part * 6 + h * 3, part * 6 + h * 3 + 3) for part in range(3))
        )
        weights = np.exp([q[t] @ k[s] / math.sqrt(3) for s in range(t + 1)])
        expected[b, t] += (weights / weights.sum()) @ v[: t + 1] @ out_weight[h * 3 : h * 3 + 3]
    np.testing.assert_allclose(layer.forward(x), expected + out_bias, rtol=1e-10)


def test_attention_is_blind_to_the_future_and_survives_large_scores():
    layer, x = make(CASES["attention"])
    changed = x.copy()
    changed[:, 3:] *= 1e3
    np.testing.assert_allclose(layer.forward(changed)[:, :3], layer.forward(x)[:, :3], rtol=1e-12)
    assert np.isfinite(layer.forward(1e4 * x)).all()


def test_activations_follow_their_formulas():
    x = np.array([-3.0, -0.5, 0.0, 0.5, 3.0])
    np.testing.assert_array_equal(Relu().forward(x), [0, 0, 0, 0.5, 3])
    tanh_form = [0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x]
    np.testing.assert_allclose(Gelu().forward(x), tanh_form, rtol=1e-14)


def test_embedding_adds_two_rows_and_sums_gradients_in_a_fixed_order():
    layer, _ = make(CASES["embedding"])
    x = tokens(64, 6, 5)
    y = layer.forward(x)
    np.testing.assert_array_equal(y[7, 3], layer.tokens.value[x[7, 3]] + layer.positions.value[3])
    dy = random(*y.shape)
    first, second = (gradients(layer, x, dy) for _ in range(2))
    assert first[0].size == 0, "tokens have no gradient"
    assert [grad.tobytes() for grad in first[1]] == [grad.tobytes() for grad in second[1]]
    scattered = np.zeros_like(layer.tokens.value)
    np.add.at(scattered, x, dy)
    np.testing.assert_allclose(first[1][0], scattered, rtol=1e-11, atol=1e-11)


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


def test_loss_backward_agrees_with_differences_and_ignores_the_layout_of_the_logits():
    logits, targets, loss = random(5, 2, 3).transpose(1, 0, 2), tokens(2, 5, 3), SoftmaxCrossEntropy()
    loss.forward(logits, targets)
    dlogits = loss.backward(1 / 10)
    expected = differences(lambda: loss.forward(logits, targets) / 10, logits)
    assert relative_error(dlogits, expected) < 1e-6


def test_loss_is_stable_and_takes_a_part_without_samples():
    loss = SoftmaxCrossEntropy()
    assert loss.forward(np.array([[1e4, -1e4]]), np.array([1])) == 2e4
    np.testing.assert_array_equal(loss.backward(1.0), [[1, -1]])
    assert loss.forward(np.zeros((0, 3)), np.zeros(0, int)) == 0.0
    assert loss.backward(1.0).shape == (0, 3)


TINY = {"mlp": ((3, 4), 3), "cnn": ((5, 4), 3), "gpt": ((6,), 11)}


def run(layers, x):
    for layer in layers:
        x = layer.forward(x)
    return x


def example(name, count=3):
    shape, classes = TINY[name]
    if name == "gpt":
        return tokens(count, shape[0], classes), tokens(count, shape[0], classes)[::-1]
    return random(count, *shape), np.arange(count) % classes


def train_once(layers, x, targets):
    """The mean loss; gradients are left in the parameters."""
    loss = SoftmaxCrossEntropy()
    total = loss.forward(run(layers, x), targets)
    dx = loss.backward(1 / targets.size)
    for layer in reversed(layers):
        dx = layer.backward(dx)
    return total / targets.size


@pytest.mark.parametrize("name", MODELS)
def test_model_gradient_agrees_with_differences(name):
    """Along one random direction per parameter, through the whole model and the loss."""
    shape, classes = TINY[name]
    layers = MODELS[name](shape, classes, np.random.default_rng(3), np.dtype(float))
    x, targets = example(name)
    train_once(layers, x, targets)
    loss, step = SoftmaxCrossEntropy(), 1e-6  # small: some of many Relus are near their kink
    for parameter in (parameter for layer in layers for parameter in layer.parameters):
        kept, direction = parameter.value.copy(), random(*parameter.value.shape)
        values = []
        for sign in (1, -1):
            parameter.value[...] = kept + sign * step * direction
            values.append(loss.forward(run(layers, x), targets) / targets.size)
        parameter.value[...] = kept
        expected = (values[0] - values[1]) / (2 * step)
        assert (parameter.grad * direction).sum() == pytest.approx(expected, rel=1e-6, abs=1e-9), parameter.name


@pytest.mark.parametrize("name", MODELS)
def test_model_depends_on_the_seed_alone_and_not_on_the_dtype(name):
    shape, classes = TINY[name]

    def weights(seed, dtype):
        layers = MODELS[name](shape, classes, np.random.default_rng(seed), np.dtype(dtype))
        return np.concatenate([parameter.value.ravel() for layer in layers for parameter in layer.parameters])

    np.testing.assert_array_equal(weights(0, np.float64), weights(0, np.float64))
    np.testing.assert_array_equal(weights(0, np.float64).astype(np.float32), weights(0, np.float32))
    assert (weights(0, np.float64) != weights(1, np.float64)).any()


RNG = np.random.default_rng(0)
MISTAKES = {
    "weight of d must have shape (inputs, outputs), not (3,)": lambda: Dense("d", random(3)),
    "weight of c must have shape (filters, channels, K, K), not (2, 1, 3, 2)": lambda: Conv2d("c", random(2, 1, 3, 2)),
    "stride of c must be at least 1 and padding at least 0, not 0 and 0": lambda: conv(1, 1, 3, stride=0),
    "x must have shape (N, 2, H, W) with H and W at least 3 to meet c.weight, not (1, 2, 2, 8)": lambda: conv(
        1, 2, 3
    ).forward(random(1, 2, 2, 8)),
    "x must have shape (..., *(4,)) to meet n.gain, not (2, 1)": lambda: LayerNorm("n", (4,), float).forward(
        random(2, 1)
    ),
    "heads of a must divide the width 6, not be 4": lambda: attention(6, 4),
    "qkv of a must have shape (4, 12), not (4, 4)": lambda: CausalSelfAttention(
        "a", qkv=random(4, 4), out=random(4, 4), heads=2
    ),
    "positions of e must have rows of shape (3,), not (2,)": lambda: Embedding(
        "e", tokens=random(5, 3), positions=random(4, 2)
    ),
    "x must have shape (N, T) with T at most 6, not (2, 7)": lambda: CASES["embedding"]()[0].forward(tokens(2, 7, 5)),
    "targets must have shape (3,), one per row of logits, not (2,)": lambda: SoftmaxCrossEntropy().forward(
        random(3, 4), np.zeros(2, int)
    ),
    "shape of a sample for cnn must be (H, W) or (C, H, W), not (64,)": lambda: cnn(
        (64,), 10, RNG, np.dtype(np.float32)
    ),
    "shape of a sample for gpt must be (T,), a window of tokens, not (8, 8)": lambda: gpt(
        (8, 8), 10, RNG, np.dtype(np.float32)
    ),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_explained(message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is compared whole, not as a pattern)
        MISTAKES[message]()
    assert message in str(error.value)


@pytest.mark.parametrize("bad", [-1, 5, 1 << 40])
def test_numbers_that_nothing_stands_for_are_refused(bad):
    """NumPy would take -1 for the last one."""
    embedding, x = Embedding("e", tokens=random(5, 3), positions=random(6, 3)), tokens(4, 6, 5)
    logits, targets = random(4, 6, 5), tokens(4, 6, 5)
    embedding.forward(x)
    SoftmaxCrossEntropy().forward(logits, targets)
    x[2, 3] = targets[2, 3] = bad
    with pytest.raises(ValueError, match=r"the numbers that e.tokens is given must be from 0 to 4, not from"):
        embedding.forward(x)
    with pytest.raises(ValueError, match=r"targets must be from 0 to 4, not from"):
        SoftmaxCrossEntropy().forward(logits, targets)
    with pytest.raises(ValueError, match=r"targets must be whole numbers, not of type float64"):
        SoftmaxCrossEntropy().forward(logits, targets.astype(float))
