"""The layout of buckets, and every cast into and out of them: bit for bit against roundings done by arithmetic."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_dtypes import finfo

from dear_mpi.kernels.dtypes import DTYPES, compute_dtype
from dear_mpi.kernels.pack import packer, unpacker
from dear_mpi.kernels.pack_plan import PackPlan

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


def bucket_of(plan):
    return np.full(plan.padded, PADDING, plan.dtype)


def bits(arrays):
    return [array.tobytes() for array in arrays]


@given(shapes=SHAPES, dtype=st.sampled_from(list(DTYPES.values())), chunks=st.integers(1, 9))
def test_layout(shapes, dtype, chunks):
    plan = PackPlan.of(shapes, dtype, chunks)
    vector, row = 16 // dtype.itemsize, chunks * 128 // dtype.itemsize
    ends = [offset + math.prod(shape) for offset, shape in zip(plan.offsets, shapes, strict=True)]
    assert all(offset % vector == 0 for offset in plan.offsets)
    assert all(0 <= begin - end < vector for begin, end in zip(plan.offsets, [0, *ends], strict=False))
    assert plan.padded % row == 0
    assert 0 <= plan.padded - max(ends, default=0) < row
    assert plan.nbytes == plan.padded * dtype.itemsize


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("chunks", [1, 3])
def test_no_row_too_many(dtype, chunks):
    row = chunks * 128 // dtype.itemsize
    lengths = {count: PackPlan.of([(count,)], dtype, chunks).padded for count in (0, 1, row - 1, row, row + 1)}
    assert lengths == {0: 0, 1: row, row - 1: row, row: row, row + 1: 2 * row}


@given(shapes=SHAPES)
def test_views_have_the_shapes_and_lie_side_by_side(shapes):
    plan = PackPlan.of(shapes, DTYPES["fp32"], 2)
    bucket = np.zeros(plan.padded, np.float32)
    views = plan.views(bucket)
    for view in views:
        view += 1
    assert [view.shape for view in views] == shapes
    assert bucket.sum() == sum(map(math.prod, shapes))
    assert bucket.max(initial=0) <= 1, "two views share an element"


@pytest.mark.parametrize(("source", "wire"), PAIRS)
@settings(max_examples=20)
@given(shapes=SHAPES, scale=SCALES, seed=SEEDS)
def test_pack(source, wire, shapes, scale, seed):
    tensors = random_tensors(shapes, source, seed)
    plan = PackPlan.of(shapes, DTYPES[wire], 3)
    bucket, expected = bucket_of(plan), np.full(plan.padded, PADDING)
    for tensor, offset in zip(tensors, plan.offsets, strict=True):
        expected[offset : offset + tensor.size] = scaled(tensor, scale, source, wire).ravel()
    with np.errstate(over="ignore"):
        packer(tensors, bucket, plan, scale=scale)()
    assert bucket.tobytes() == expected.astype(bucket.dtype).tobytes()
    assert bits(tensors) == bits(random_tensors(shapes, source, seed)), "tensors are only read"


@pytest.mark.parametrize(("wire", "target"), PAIRS)
@settings(max_examples=20)
@given(shapes=SHAPES, scale=SCALES, seed=SEEDS)
def test_unpack(wire, target, shapes, scale, seed):
    plan = PackPlan.of(shapes, DTYPES[wire], 3)
    (bucket,) = random_tensors([(plan.padded,)], wire, seed)
    before = bucket.tobytes()
    tensors = [np.full(shape, np.nan, DTYPES[target]) for shape in shapes]
    with np.errstate(over="ignore"):
        unpacker(bucket, tensors, plan, scale=scale)()
    expected = [scaled(view, scale, wire, target).astype(DTYPES[target]) for view in plan.views(bucket)]
    assert bits(tensors) == bits(expected)
    assert bucket.tobytes() == before, "the bucket is only read"


@pytest.mark.parametrize(
    ("source", "wire"), [(a, b) for a, b in PAIRS if FORMATS[a][0] > FORMATS[b][0] and (a, b) != ("fp64", "bf16")]
)
def test_a_cast_rounds_once(source, wire):
    """A number just above the middle of two goes up; rounded to fp32 first, it would be the middle, and go down."""
    just_above = np.array([1 + 2.0 ** -FORMATS[wire][0] + 2.0 ** (1 - FORMATS[source][0])]).astype(DTYPES[source])
    plan = PackPlan.of([(1,)], DTYPES[wire], 1)
    bucket = bucket_of(plan)
    packer([just_above], bucket, plan)()
    assert float(bucket[0]) == 1 + 2.0 ** (1 - FORMATS[wire][0])


@pytest.mark.parametrize(
    ("source", "wire"),
    [(a, b) for a, b in PAIRS if FORMATS[a][0] <= FORMATS[b][0] and FORMATS[a][1] >= FORMATS[b][1]],
)
def test_round_trip_through_a_format_that_holds_the_other(source, wire):
    shapes = [(3, 5), (), (0, 2), (17,)]
    tensors = random_tensors(shapes, source, 0)
    plan = PackPlan.of(shapes, DTYPES[wire], 4)
    bucket, back = bucket_of(plan), [np.empty_like(tensor) for tensor in tensors]
    packer(tensors, bucket, plan)()
    unpacker(bucket, back, plan)()
    assert bits(back) == bits(tensors)


STRIDED = {
    "transposed": lambda x: x.T,
    "reversed": lambda x: x[::-1],
    "every second": lambda x: x[:, ::2],
    "broadcast": lambda x: np.broadcast_to(x[0], x.shape),
}


@pytest.mark.parametrize("kind", STRIDED)
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_tensors_need_not_be_contiguous(kind, scale):
    tensor = STRIDED[kind](np.arange(42.0).reshape(6, 7))
    assert not tensor.flags.c_contiguous
    plan = PackPlan.of([tensor.shape], DTYPES["fp32"], 2)
    bucket, expected = bucket_of(plan), bucket_of(plan)
    packer([tensor], bucket, plan, scale=scale)()
    packer([tensor.copy()], expected, plan, scale=scale)()
    assert bucket.tobytes() == expected.tobytes()
    if tensor.flags.writeable:
        unpacker(bucket, [tensor], plan, scale=2)()
        np.testing.assert_array_equal(tensor, 2 * plan.views(bucket)[0])


PLAN = PackPlan.of([(3,), (2, 2)], DTYPES["fp32"], 2)
BUCKET = np.zeros(PLAN.padded, np.float32)
ERRORS = {
    "chunks must be at least 1, not 0": lambda move: PackPlan.of([(3,)], DTYPES["fp32"], 0),
    "bucket must be float32[64], not float32[63]": lambda move: move([np.zeros(3), np.zeros((2, 2))], BUCKET[1:]),
    "bucket must be float32[64], not float32[8, 8]": lambda move: PLAN.views(BUCKET.reshape(8, 8)),
    "the plan, ((3,), (2, 2)), not ((3,), (4,))": lambda move: move([np.zeros(3), np.zeros(4)], BUCKET),
    "the plan, ((3,), (2, 2)), not ((3,),)": lambda move: move([np.zeros(3)], BUCKET),
}
MOVES = {
    "pack": lambda tensors, bucket: packer(tensors, bucket, PLAN)(),
    "unpack": lambda tensors, bucket: unpacker(bucket, tensors, PLAN)(),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("message", ERRORS)
def test_errors(message, move):
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is compared as it is, not as a pattern)
        ERRORS[message](MOVES[move])
    assert message in str(error.value)


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_products_are_formed_in_fp32_unless_one_side_is_fp64(one, other):
    assert compute_dtype(DTYPES[one], DTYPES[other]) == ("float64" if "fp64" in (one, other) else "float32")
