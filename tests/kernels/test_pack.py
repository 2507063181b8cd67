"""Every cast into a bucket and out of it: bit for bit against roundings done by arithmetic."""

import re
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_dtypes import finfo

from dear_mpi.kernels.calls import packer, unpacker
from dear_mpi.kernels.dtypes import DTYPES
from tests.kernels.buckets import room, views

# Bits of the significand, and the exponent e of the smallest normal number 0.5 * 2**e.
FORMATS = {name: (finfo(dtype).nmant + 1, finfo(dtype).minexp + 1) for name, dtype in DTYPES.items()}
PAIRS = list(product(DTYPES, DTYPES))
SHAPES = st.lists(st.lists(st.integers(0, 7), max_size=3).map(tuple), max_size=6)  # () is a scalar
SCALES = st.sampled_from([1.0, 1 / 3, -2.5, 0.0, 1e-3, 600.0])
SEEDS = st.integers(0, 2**32)
PADDING = 7.0


def rounded(x, name):
    """The nearest numbers of a format, ties to even, in float64."""
    bits, lowest = FORMATS[name]
    if name == "fp64":
        return x
    unit = np.maximum(np.frexp(x)[1], lowest) - bits
    y = np.ldexp(np.rint(np.ldexp(x, -unit)), unit)
    return np.where(np.abs(y) >= 2.0 ** (3 - lowest), np.copysign(np.inf, y), y)


def scaled(x, scale, source, target):
    """What a copy from one format to another must give, in float64: the product is rounded, then cast."""
    wide = "fp64" if "fp64" in (source, target) else "fp32"
    return rounded(rounded(x.astype(np.float64) * rounded(scale, wide), wide), target)


def random_tensors(shapes, dtype, seed):
    """Finite numbers of all magnitudes that fp16 has, the subnormal ones too."""
    rng = np.random.default_rng(seed)
    data = [np.ldexp(rng.standard_normal(shape), rng.integers(-26, 16, shape)) for shape in shapes]
    return [np.clip(x, -65e3, 65e3).astype(DTYPES[dtype]) for x in data]


def bucket_for(shapes, wire):
    return np.full(room(shapes, DTYPES[wire]), PADDING, DTYPES[wire])


def bits(arrays):
    return [array.tobytes() for array in arrays]


@pytest.mark.parametrize(("source", "wire"), PAIRS)
@settings(max_examples=20)
@given(shapes=SHAPES, scale=SCALES, seed=SEEDS)
def test_pack(source, wire, shapes, scale, seed):
    tensors = random_tensors(shapes, source, seed)
    bucket, expected = bucket_for(shapes, wire), bucket_for(shapes, wire)
    for tensor, view in zip(tensors, views(expected, shapes), strict=True):
        view[...] = scaled(tensor, scale, source, wire).astype(DTYPES[wire])
    with np.errstate(over="ignore"):
        packer(tensors, views(bucket, shapes), scale=scale)()
    assert bucket.tobytes() == expected.tobytes()
    assert bits(tensors) == bits(random_tensors(shapes, source, seed)), "tensors are only read"


@pytest.mark.parametrize(("wire", "target"), PAIRS)
@settings(max_examples=20)
@given(shapes=SHAPES, scale=SCALES, seed=SEEDS)
def test_unpack(wire, target, shapes, scale, seed):
    (bucket,) = random_tensors([(room(shapes, DTYPES[wire]),)], wire, seed)
    before = bucket.tobytes()
    tensors = [np.full(shape, np.nan, DTYPES[target]) for shape in shapes]
    with np.errstate(over="ignore"):
        unpacker(views(bucket, shapes), tensors, scale=scale)()
    expected = [scaled(view, scale, wire, target).astype(DTYPES[target]) for view in views(bucket, shapes)]
    assert bits(tensors) == bits(expected)
    assert bucket.tobytes() == before, "the bucket is only read"


@pytest.mark.parametrize(
    ("source", "wire"), [(a, b) for a, b in PAIRS if FORMATS[a][0] > FORMATS[b][0] and (a, b) != ("fp64", "bf16")]
)
def test_a_cast_rounds_once(source, wire):
    """A number just above the middle of two goes up; rounded to fp32 first, it would be the middle, and go down."""
    just_above = np.array([1 + 2.0 ** -FORMATS[wire][0] + 2.0 ** (1 - FORMATS[source][0])]).astype(DTYPES[source])
    bucket = np.zeros(1, DTYPES[wire])
    packer([just_above], [bucket])()
    assert float(bucket[0]) == 1 + 2.0 ** (1 - FORMATS[wire][0])


@pytest.mark.parametrize("shapes", [[(3,), (4,)], [(3,)], [(3,), (2, 2), (1,)]])
def test_tensors_that_do_not_fit_are_refused(shapes):
    bucket, tensors = views(np.zeros(32), [(3,), (2, 2)]), [np.zeros(shape) for shape in shapes]
    for move in (lambda: packer(tensors, bucket), lambda: unpacker(bucket, tensors)):
        with pytest.raises(ValueError, match=re.escape(f"views, [(3,), (2, 2)], not {shapes}")):
            move()
