"""The arithmetic inside a reduction: every result is the exact one, rounded once to the arrays' type."""

import operator
from functools import reduce
from itertools import product

import numpy as np
import pytest

from dear_mpi.kernels.calls import combiner, copier
from dear_mpi.kernels.dtypes import DTYPES, compute_dtype, is_floating
from dear_mpi.kernels.reference import COMBINE_BLOCK, OPS, allocate

TYPES = {**DTYPES, "int32": np.dtype(np.int32), "int64": np.dtype(np.int64)}
EXACT = {"sum": operator.add, "prod": operator.mul, "min": min, "max": max}  # of Python's numbers
EXACT_BITS = {"band": operator.and_, "bor": operator.or_, "bxor": operator.xor}


def some(dtype, seed, shape=(101,)):
    """Fractions, or for integer types numbers that fp64 could not hold."""
    rng = np.random.default_rng(seed)
    if is_floating(dtype):
        return (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 6, shape)).astype(dtype)
    top = 8 * dtype.itemsize - 2
    return rng.integers(-(2**top), 2**top, shape, dtype)


def numbers(array):
    return array.astype(np.float64).tolist() if is_floating(array.dtype) else array.tolist()


@pytest.mark.parametrize("op", EXACT)
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_every_op_and_type(op, dtype):
    """Rounding fp64's result once more is harmless: fp64 has more than twice the bits of the narrower types."""
    dst, src = some(dtype, 1), some(dtype, 2)
    if op == "prod" and not is_floating(dtype):
        dst, src = dst % 1000, src % 1000  # the products of the others would wrap
    before = src.copy()
    expected = [EXACT[op](a, b) for a, b in zip(numbers(dst), numbers(src), strict=True)]
    combiner(dst, (), [src], op)()
    assert dst.tobytes() == np.array(expected).astype(dtype).tobytes()
    assert src.tobytes() == before.tobytes()


@pytest.mark.parametrize("op", EXACT_BITS)
@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint16"])
def test_every_bitwise_op(op, dtype):
    arrays = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 99, (3, 101)).astype(dtype)
    dst = arrays[1].copy()
    combiner(dst, arrays[:1], arrays[2:], op)()
    assert dst.tolist() == [reduce(EXACT_BITS[op], terms) for terms in arrays.T.tolist()]


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_nan_passes_through_min_and_max(op, dtype):
    dst, src = (np.array(values, dtype) for values in ([np.nan, 1, np.nan, 1], [1, np.nan, np.nan, 1]))
    with np.errstate(invalid="ignore"):
        combiner(dst, (), [src], op)()
    assert np.isnan(dst).tolist() == [True, True, True, False]


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_any_shape(shape):
    dst = np.full(shape, 2.0)
    combiner(dst, (), [np.full(shape, 3.0)], "prod")()
    np.testing.assert_array_equal(dst, np.full(shape, 6.0))


def left_to_right(terms, op):
    """In fp32 for the two-byte types, one term at a time, rounded once at the end."""
    wide = compute_dtype(terms[0].dtype) if is_floating(terms[0].dtype) else terms[0].dtype
    total = terms[0].astype(wide)
    for term in terms[1:]:
        total = OPS[op](total, term.astype(wide))
    return total.astype(terms[0].dtype)


@pytest.mark.parametrize("op", EXACT)
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(("number", "place"), [(1, 0), (1, 1), (2, 0), (2, 1), (3, 3), (6, 2)])
def test_several_sources_from_left_to_right(op, dtype, number, place):
    """Twice, as a bound call reads anew; in more blocks than one; sources are only read."""
    terms = [some(dtype, seed, COMBINE_BLOCK + 3) for seed in range(number + 1)]
    before = [term.tobytes() for term in terms]
    call = combiner(terms[place], terms[:place], terms[place + 1 :], op)
    for _ in range(2):
        with np.errstate(over="ignore"):  # of products in fp16
            expected = left_to_right(terms, op).tobytes()
            call()
        assert terms[place].tobytes() == expected
        before[place] = expected
        assert [term.tobytes() for term in terms] == before


@pytest.mark.parametrize(("name", "bits"), [("fp16", 11), ("bf16", 8)])
def test_a_sum_in_two_bytes_is_rounded_once(name, bits):
    """Half a unit in the last place twice: rounded after each step to even, neither would be left of it."""
    half = 2.0**-bits
    one, *halves = (np.full(5, value, DTYPES[name]) for value in (1.0, half, half))
    combiner(one, (), halves)()
    assert one.astype(float).tolist() == [1 + 2 * half] * 5


def test_gaps_in_one_axis_are_walked_over_and_in_several_refused():
    whole, ones = np.zeros((4, 6)), np.ones((4, 3))
    combiner(whole[0, ::2], [ones[0]], [ones[0]])()
    np.testing.assert_array_equal(whole[0], [2, 0, 2, 0, 2, 0])
    with pytest.raises(ValueError, match="must be contiguous, not of strides"):
        combiner(whole[:, ::2], [ones], [ones])


@pytest.mark.parametrize("ahead", [0, 1, 2, 4, 8, 16, 31, 32, 48, 4095])
@pytest.mark.parametrize("dtype", [*TYPES.values(), np.dtype(np.int8)], ids=str)
def test_copier_keeps_every_bit_wherever_arrays_are_in_their_pages(dtype, ahead):
    """Where memcpy would be slow, something else copies: NaNs of any payload, signed zeros, all bits."""
    rng, count = np.random.default_rng(0), 1000
    memory = allocate(3 * 4096 + count * dtype.itemsize)
    source = rng.integers(0, 256, count * dtype.itemsize, np.uint8)
    place = 4096 + ahead - ahead % dtype.itemsize
    target = memory[place : place + source.size].view(dtype)
    aligned = allocate(source.size)
    aligned[:] = source
    copier(target, aligned.view(dtype))()
    assert target.tobytes() == source.tobytes()


@pytest.mark.parametrize("scale", [1.0, 1 / 3, -2.0])
@pytest.mark.parametrize(("source", "target"), list(product(DTYPES, DTYPES)))
def test_copier_multiplies_in_the_wider_type(source, target, scale):
    src, dst = some(DTYPES[source], 3), np.zeros(101, DTYPES[target])
    wide = compute_dtype(src.dtype, dst.dtype)
    call = copier(dst, src, scale)
    for _ in range(2):
        call()
        expected = (src.astype(wide) * wide.type(scale)).astype(dst.dtype)
        assert dst.tobytes() == expected.tobytes()
        src[:] = src[::-1].copy()


ERRORS = {
    "op 'smu' is unknown: did you mean 'sum'? Allowed: sum, prod, min, max": (np.zeros(3), np.zeros(3), "smu"),
    "same shape and dtype, not float64[4] and float64[3]": (np.zeros(3), np.zeros(4), "sum"),
    "same shape and dtype, not float64[1] and float64[3]": (np.zeros(3), np.zeros(1), "sum"),
    "same shape and dtype, not float32[3] and float64[3]": (np.zeros(3), np.zeros(3, np.float32), "sum"),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors(message):
    dst, src, op = ERRORS[message]
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is compared as it is, not as a pattern)
        combiner(dst, (), [src], op)()
    assert message in str(error.value)
    assert not dst.any()
