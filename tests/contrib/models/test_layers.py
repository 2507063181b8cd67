"""Layers of images and text: the checks of ``tests/layer_checks.py``, forward against plain formulas, and refusals."""

import math
from itertools import product

import numpy as np
import pytest

from dear_mpi.contrib.models.layers import CausalSelfAttention, Conv2d, Embedding, LayerNorm
from dear_mpi.contrib.models.networks import cnn, gpt
from dear_mpi.models.layer import is_split
from dear_mpi.models.layers import Dense, Gelu, Residual
from dear_mpi.ranks.world import run_world
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from dear_mpi.training.runs.train import train
from tests.layer_checks import CHECKS, check_model, gradients, make, random, tokens
from tests.training_checks import README, settings


def attention(width, heads):
    return CausalSelfAttention("a", qkv=random(width, 3 * width), out=random(width, width), heads=heads)


def conv(filters, channels, kernel, **geometry):
    return Conv2d("c", random(filters, channels, kernel, kernel), **geometry)


def branch():
    return Residual([LayerNorm("n", (4,), float), Dense("d1", random(4, 6)), Gelu(), Dense("d2", random(6, 4))])


CASES = {
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
    "residual": lambda: (branch(), random(2, 3, 4)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("check", CHECKS)
def test_layer(check, case):
    check(case)


def test_what_is_split():
    split = {type(layer) for layer, _ in (case() for case in CASES.values()) if is_split(layer)}
    assert split == {Conv2d, CausalSelfAttention, Residual}


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


def test_models():
    check_model(cnn, (5, 4), 3, random(3, 5, 4), np.arange(3))
    check_model(gpt, (6,), 11, tokens(3, 6, 11), tokens(3, 6, 11)[::-1])


def embedded(x):
    return CASES["embedding"]()[0].forward(x)


RNG, FP32 = np.random.default_rng(0), np.dtype(np.float32)
MISTAKES = {
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
    "x must have shape (N, T) with T at most 6, not (2, 7)": lambda: embedded(tokens(2, 7, 5)),
    "shape of a sample for cnn must be (H, W) or (C, H, W), not (64,)": lambda: cnn((64,), 10, RNG, FP32),
    "shape of a sample for gpt must be (T,), a window of tokens, not (8, 8)": lambda: gpt((8, 8), 10, RNG, FP32),
    "the numbers that e.tokens is given must be from 0 to 4, not from -1": lambda: embedded(tokens(4, 6, 5) - 1),
    "the numbers that e.tokens is given must be from 0 to 4, not from 0 to 5": lambda: embedded(
        tokens(4, 6, 5) * 0 + [0, 1, 2, 3, 4, 5]
    ),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_explained(message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is compared, not as a pattern)
        MISTAKES[message]()
    assert message in str(error.value)


# The models train by name, as built-in ones do; and what their presets and refusals are.


def test_presets_and_refusals():
    cnn, gpt = (Config.of({"model": name}) for name in ("cnn", "gpt"))
    assert (cnn.batch, cnn.iterations, cnn.fusion, cnn.optimizer) == (32, 300, "layers:2", "adam")
    assert (gpt.batch, gpt.iterations, gpt.fusion, gpt.optimizer) == (16, 600, "none", "adam")
    assert Config.of({"model": "gpt", "context": 8}).context == 8
    for given in ({"model": "cnn", "context": 8}, {"model": "gpt", "forward_time": 0.1}):
        with pytest.raises(ValueError, match=f"{list(given)[1]} does not apply to the model '{given['model']}'"):
            Config.of(given)
    with pytest.raises(ValueError, match="model 'gtp' is unknown: did you mean 'gpt'"):
        Config.of({"model": "gtp"})


@pytest.mark.parametrize(("choices", "said"), [
    ({"model": "gpt"}, "model 'gpt' takes only text"),
    ({"model": "cnn", "data": README}, "model 'cnn' takes no text"),
])  # fmt: skip
def test_data_that_a_model_does_not_take_is_refused(choices, said):
    with pytest.raises(ValueError, match=said):
        run_world(lambda world: train(Config.of(settings(**choices)), world), threads=1)


def test_the_number_of_ranks_does_not_change_what_cnn_computes():
    """In float64, unequal parts of batches included (10 examples on 3 ranks), to 1e-10 of one process alone."""

    def parameters(world):
        with Job(Config.of(settings(model="cnn", dtype="fp64", batch=10)), world, ["dear"]) as job:
            for iteration in range(30):
                job.group.trainers["dear"].iteration(*job.batch(iteration))
            job.group.trainers["dear"].schedule.flush()
        return np.concatenate([parameter.value.ravel() for parameter in job.parameters])

    alone = run_world(parameters, threads=1)
    for threads in (2, 3, 4, 5):
        together = run_world(parameters, threads=threads)
        assert np.abs(together - alone).max() <= 1e-10 * np.abs(alone).max(), threads


def test_gpt_learns_a_text():
    """The decoder learns to guess the project's own README: below 2.3 nats per byte, from 5.5 = log 256.

    Who knows the last byte alone, and how often which byte follows it, needs 2.6. One batch is 0.3 off the mean.
    """
    config = Config.of({"model": "gpt", "data": README, "fusion": "layers:2", "context": 16, "iterations": 200})
    loss = run_world(lambda world: train(config, world), threads=1)["loss"]
    assert loss[0] > 5 > 2.3 > np.mean(loss[-20:])
