"""What must hold of the CUDA kernels behind the shim: the bits of the NumPy reference, and nothing written beside them.

pytest runs these checks one by one; ``python -m tests.shim.checks FILE`` runs those of a file in a process under
AddressSanitizer and UBSan (see ``build.sanitizer_environment``). Arrays end where their memory ends, so that a read or
write behind them is seen.
"""

import math
import sys
from functools import partial
from itertools import cycle, product

import numpy as np
from ml_dtypes import finfo

from dear_mpi.kernels.calls import combiner, packer, unpacker, updater
from dear_mpi.kernels.dtypes import C_TYPES, DTYPES, compute_dtype
from dear_mpi.kernels.launch_tables import KINDS, block_table, row_table
from dear_mpi.kernels.optimizers import SGD, Adam, AdamW
from dear_mpi.kernels.reference import OPS
from tests.kernels.buckets import room, views
from tests.shim import build

THREADS = 256
FLOATING = dict(zip(DTYPES, build.FLOATING, strict=True))
INTEGERS = {name: c_type for name, c_type in C_TYPES.items() if c_type in build.INTEGERS}
TYPES = {**DTYPES, **{name: np.dtype(name) for name in INTEGERS}}
SIZES = [0, 1, 7, 8, 9, 255, 256, 257, 4097, 8201, 8203]
# With parts of 40 most threads of a block have nothing to do; in parts of 8192 each format is walked in whole batches.
PARTS = [40, 1024, 1 << 13]
SCALES = [1.0, 1 / 3, -2.5, 0.0, 600.0, 1e-9]
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan, 1.0, -1.0]
# The edges of the formats: overflow, the smallest numbers, ties, and ties that rounding twice would miss.
SPECIAL += [65504, 65519.99, 65520, -65520, 3.4028234e38, 3.3961775e38, 3.39e38, 1e300, -1e300, 5e-324, 1e-45, 1e-40]
SPECIAL += [6e-8, 2.98e-8, 2**-25, 2**-25 * (1 + 2**-40), 2**-24, 6.1e-5, 2**-14 - 2**-25, 1.17549e-38, 9.2e-41]
SPECIAL += [1 + 2**-11, 1 + 2**-11 + 2**-40, 1 + 3 * 2**-11, 1 + 3 * 2**-11 - 2**-40, 1 + 2**-8, 1 + 2**-8 + 2**-40]
SPECIAL += [1 + 3 * 2**-8, 1 + 3 * 2**-8 - 2**-40, 1 + 2**-24, 1 + 2**-24 + 2**-50, 1 / 3]
# Each with an iteration.
OPTIMIZERS = {
    "sgd": (SGD(), 1),
    "sgd, decay": (SGD(weight_decay=0.3), 1),
    "momentum": (SGD(momentum=0.9), 1),
    "momentum, decay": (SGD(momentum=0.9, weight_decay=0.3), 1),
    "nesterov": (SGD(momentum=0.9, nesterov=True), 1),
    "nesterov, decay": (SGD(momentum=0.9, nesterov=True, weight_decay=0.3), 1),
    "adam": (Adam(0.1), 1),
    "adam, later": (Adam(1e-3), 1000),
    "adam, decay": (Adam(0.1, weight_decay=0.3), 3),
    "adamw": (AdamW(0.1), 2),
    "adam, other constants": (Adam(0.1, beta1=0.5, beta2=0.7, epsilon=0.2), 2),
}
OPTIMIZERS |= {name: (each, 2) for name, each in build.WITH_KERNELS.items() if name not in OPTIMIZERS}


def assert_same(got, wanted, zeros=False):
    """Bit for bit, but any NaN for a NaN; ``zeros``: and any zero for a zero."""
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    unsigned = np.dtype(f"u{got.itemsize}")
    same = got.view(unsigned) == wanted.view(unsigned)
    if got.dtype.name in KINDS:
        same |= np.isnan(got) & np.isnan(wanted)
    if zeros:
        same |= (got == 0) & (wanted == 0)
    wrong = np.flatnonzero(~same)[:5]
    assert same.all(), f"{got.dtype} at {wrong} of {got.size}: got {got[wrong]}, not {wanted[wrong]}"


def placed(count, dtype, offset=0):
    """An array that starts ``offset`` elements behind a multiple of 16 bytes and ends with its memory."""
    spare = 16 // dtype.itemsize
    whole = np.empty(spare + offset + count, dtype)
    to_aligned = -whole.ctypes.data % 16 // dtype.itemsize
    # Memory of NumPy is aligned to 16 bytes everywhere that we know; where it is not, the end may lie further in.
    return whole[(to_aligned or spare) + offset :][:count]


def filled(count, name, rng, offset=0):
    """Special values among random bits: these are numbers of all magnitudes, with some infinities and NaN."""
    dtype = TYPES[name]
    array = placed(count, dtype, offset)
    array.view(np.uint8)[...] = rng.integers(0, 256, array.nbytes, np.uint8)
    if name in DTYPES:
        some = rng.random(count)
        array[some < 0.4] = rng.standard_normal(np.count_nonzero(some < 0.4)).astype(dtype)
        array[some > 0.8] = rng.choice(SPECIAL, np.count_nonzero(some > 0.8)).astype(dtype)
    return array


def ordinary(count, name, rng, offset=0):
    array = placed(count, DTYPES[name], offset)
    array[...] = rng.standard_normal(count).astype(array.dtype)
    return array


def bucket_for(arrays, wire, rng, offset):
    return filled(room([array.shape for array in arrays], DTYPES[wire]), wire, rng, offset)


def mixture(sizes, rng, make=filled):
    """A tensor of every format for each size, in turn aligned and not (of the two largest sizes one each)."""
    offsets = cycle([0, 1, 0, 2, 0, 3])
    return [make(size, name, rng, next(offsets)) for name, size in product(DTYPES, sizes)]


def launch(run, blocks, *args):
    if len(blocks):
        run((len(blocks),), (THREADS,), args)


def views_of(bucket, arrays):
    return views(bucket, [array.shape for array in arrays])


def check_pack(kernel, wire, scale, part, offset=0, arrays=None):
    """Tensors of all formats into a bucket, which is elsewhere left as it was."""
    rng = np.random.default_rng(1)
    arrays = mixture(SIZES, rng) if arrays is None else arrays
    got = bucket_for(arrays, wire, rng, offset)
    wanted = got.copy()
    packer(arrays, views_of(wanted, arrays), scale=scale)()
    before = [array.tobytes() for array in arrays]
    table, blocks = row_table(arrays, views_of(got, arrays)), block_table([array.size for array in arrays], part)
    launch(kernel("pack.cu", f"pack<{FLOATING[wire]}>"), blocks, table, blocks, scale)
    assert_same(got, wanted)
    assert [array.tobytes() for array in arrays] == before, "tensors are only read"


def check_unpack(kernel, wire, scale, part, offset=0, arrays=None):
    rng = np.random.default_rng(2)
    arrays = mixture(SIZES, rng) if arrays is None else arrays
    bucket = bucket_for(arrays, wire, rng, offset)
    wanted, before = [array.copy() for array in arrays], bucket.tobytes()
    unpacker(views_of(bucket, arrays), wanted, scale=scale)()
    table, blocks = row_table(arrays, views_of(bucket, arrays)), block_table([array.size for array in arrays], part)
    launch(kernel("pack.cu", f"unpack<{FLOATING[wire]}>"), blocks, table, blocks, scale)
    for array, reference_array in zip(arrays, wanted, strict=True):
        assert_same(array, reference_array)
    assert bucket.tobytes() == before, "the bucket is only read"


def check_every_number(kernel, narrow):
    """All numbers of a format of at most two bytes, cast to every format and back, and all ties between them."""
    bits = 8 * DTYPES[narrow].itemsize
    every = np.arange(1 << bits, dtype=f"uint{bits}").view(DTYPES[narrow])
    for other in DTYPES:
        check_pack(kernel, other, 1.0, 1 << 12, arrays=[every])
        wide = every.astype(DTYPES[other])
        check_pack(kernel, narrow, 1.0, 1 << 12, arrays=[wide])
    for name in ("fp32", "fp64"):
        low, high = every[:-1].astype(DTYPES[name]), every[1:].astype(DTYPES[name])
        tie = low + (high - low) / 2
        beside = [np.nextafter(tie, tie.dtype.type(end)) for end in (-np.inf, np.inf)]
        check_pack(kernel, narrow, 1.0, 1 << 12, arrays=[tie, *beside])


def check_lists(kernel, seeds):
    """Random lists of small tensors through random buckets and back."""
    for seed in range(*seeds):
        rng = np.random.default_rng([3, seed])
        names = rng.choice(list(DTYPES), rng.integers(0, 9))
        arrays = [filled(int(rng.choice([0, 1, 8, rng.integers(60)])), name, rng, rng.integers(0, 3)) for name in names]
        wire, scale, part = rng.choice(list(DTYPES)), float(rng.choice(SCALES)), 8 * int(rng.integers(1, 9))
        offset = int(rng.integers(0, 3))
        check_pack(kernel, wire, scale, part, offset, arrays)
        check_unpack(kernel, wire, scale, part, offset, arrays)


def check_finite(kernel, wire):
    """The flag falls for one bad gradient anywhere, and never rises."""
    optimizer, _ = OPTIMIZERS["sgd"]
    run = kernel("update.cu", build.update_expression("fp32", wire, optimizer))
    largest = min(float(finfo(DTYPES[wire]).max), 3.0e38)  # what is larger would not fit into fp32
    cases = [(1.0, True), (largest, True), (math.inf, False), (-math.inf, False), (math.nan, False)]
    for (value, is_finite), position, at_first in product(cases, (0, 5, 999, 1000), (True, False)):
        arrays, finite = [np.ones(1001, DTYPES[dtype]) for dtype in ("fp32", wire)], np.array([at_first])
        arrays[1][position] = value
        launch_update(run, optimizer, 1, arrays, 1001, 512, finite=finite)
        assert finite[0] == (is_finite and at_first), f"{value} at {position}, flag {at_first}"
        launch_update(run, optimizer, 1, arrays, 1001, 512)


def check_accumulate(kernel, name, op):
    """Every combination of size, alignment and part; integers wrap, NaN passes min and max."""
    run = kernel("accumulate.cu", f"accumulate<{(FLOATING | INTEGERS)[name]}, {op.capitalize()}>")
    rng = np.random.default_rng(4)
    cases = [(size, part) for size, part in product([*SIZES, 20000], PARTS) if size < 40 * part]
    for (size, part), offsets in product(cases, [(0, 0), (1, 1), (0, 1), (3, 0)]):
        dst, src = (filled(size, name, rng, offset) for offset in offsets)
        wanted, before = dst.copy(), src.tobytes()
        combiner(wanted, (), [src], op)()
        launch(run, range(-(-size // part)), dst, dst, src, size, part)
        assert_same(dst, wanted, zeros=op in ("min", "max"))  # NumPy leaves it to the processor which zero is less
        assert src.tobytes() == before, "src is only read"


# Of each array, in elements: all aligned, the same for all, and one that differs: dst, or one of the others.
OFFSETS = [(0,) * 8, (1,) * 8, (1,) + (0,) * 7, (0,) * 7 + (3,), (0, 0, 1, 0, 2, 0, 0, 0)]


def check_accumulate_all(kernel, name, op):
    """One to seven sources, dst first, last or amid them, of sizes and alignments in turn."""
    run = kernel("accumulate.cu", f"accumulate_all<{(FLOATING | INTEGERS)[name]}, {op.capitalize()}>")
    rng, turns = np.random.default_rng(9), zip(cycle(OFFSETS), cycle([257, 4097, 9, 1030, 1, 2061]))
    places = [(1, 0), (1, 1), (2, 1), (3, 0), (4, 4), (5, 2), (6, 3), (7, 7), (7, 0), (7, 5)]
    for (number, place), (offsets, size), part in zip(places, turns, cycle(PARTS)):
        terms = [filled(size, name, rng, offset) for offset in offsets[: number + 1]]
        dst, wanted, before = terms[place], terms[place].copy(), [term.tobytes() for term in terms]
        combiner(wanted, terms[:place], terms[place + 1 :], op)()
        table = np.array([term.ctypes.data for term in terms])
        launch(run, range(-(-size // part)), dst, table, np.int32(len(terms)), size, part)
        assert_same(dst, wanted, zeros=op in ("min", "max"))
        before[place] = dst.tobytes()
        assert [term.tobytes() for term in terms] == before, "sources are only read"


def state_of(optimizer, value, rng, offsets):
    name = next(name for name in DTYPES if DTYPES[name] == compute_dtype(value.dtype))
    state = [ordinary(value.size, name, rng, offset) for offset in offsets[: optimizer.state_arrays]]
    for array in state[1:]:
        np.abs(array, out=array)  # a mean of squares
    return state


def launch_update(run, optimizer, iteration, arrays, count, part, *, scale=1.0, finite=None, first_block=0):
    """Launch an update of ``arrays``: values, gradients, state; each may be an address."""
    numbers = map(float, optimizer.kernel(iteration)[1])
    arguments = (*arrays, *[None] * (4 - len(arrays)), count, part, scale, finite, *numbers)
    if count:
        run((-(-count // part),), (THREADS,), arguments, first_block=first_block)


# Sizes, and offsets of values, gradients and both states: all aligned, none, and one that differs.
UPDATED = [(size, (0, 0, 0, 0)) for size in SIZES]
UPDATED += [(1030, offsets) for offsets in [(1, 1, 1, 1), (1, 0, 0, 0), (0, 3, 0, 0), (0, 0, 1, 0), (0, 0, 0, 2)]]


def check_update(kernel, name, dtype, wire):
    """Each array several times, so that state that was written is read; ordinary numbers, then special ones."""
    (optimizer, iteration), rng = OPTIMIZERS[name], np.random.default_rng(5)
    run = kernel("update.cu", build.update_expression(dtype, wire, optimizer))
    for (make, scale), (size, offsets) in product([(ordinary, 1 / 3), (filled, 1.0)], UPDATED):
        value = make(size, dtype, rng, offsets[0])
        state = state_of(optimizer, value, rng, offsets[2:])
        wanted, wanted_state = value.copy(), [array.copy() for array in state]
        for part in [part for part in PARTS if size < 40 * part]:
            grad = make(size, wire, rng, offsets[1])
            before = grad.tobytes()
            updater(grad, wanted, wanted_state, optimizer)(optimizer, iteration, scale)
            launch_update(run, optimizer, iteration, [value, grad, *state], size, part, scale=scale)
            for got, expected in zip([value, *state], [wanted, *wanted_state], strict=True):
                assert_same(got, expected)
            assert grad.tobytes() == before, "gradients are only read"


PART = 2048
BEYOND = (1 << 32) + PART  # elements: neither int nor unsigned int can count them


def biased(array):
    """Where an array begins whose element ``BEYOND`` is the first one of this; nothing else of it is there."""
    return array.ctypes.data - BEYOND * array.itemsize


def check_pack_beyond_32_bits(kernel, name):
    """Only the last blocks of a launch over a tensor of which only the end exists."""
    rng = np.random.default_rng(6)
    tensor, bucket = filled(4097, name, rng), filled(4097, name, rng)
    table = np.array([[biased(tensor), biased(bucket), KINDS[tensor.dtype.name]]], np.int64)
    blocks = block_table([4097], PART)
    blocks["start"] += BEYOND
    launch(kernel("pack.cu", f"pack<{FLOATING[name]}>"), blocks, table, blocks, 1.0)
    assert_same(bucket, tensor)
    tensor[...] = 0
    launch(kernel("pack.cu", f"unpack<{FLOATING[name]}>"), blocks, table, blocks, 1.0)
    assert_same(tensor, bucket)


def check_update_beyond_32_bits(kernel, name):
    """Only the last blocks of a launch over arrays of which only the end exists."""
    (optimizer, iteration), rng = OPTIMIZERS["adam"], np.random.default_rng(7)
    value, grad = ordinary(4097, name, rng), ordinary(4097, name, rng)
    state = state_of(optimizer, value, rng, (0, 0))
    wanted, wanted_state = value.copy(), [array.copy() for array in state]
    updater(grad, wanted, wanted_state, optimizer)(optimizer, iteration, 1.0)
    run, ends = kernel("update.cu", build.update_expression(name, name, optimizer)), map(biased, (value, grad, *state))
    launch_update(run, optimizer, iteration, list(ends), BEYOND + 4097, PART, first_block=BEYOND // PART)
    for got, expected in zip([value, *state], [wanted, *wanted_state], strict=True):
        assert_same(got, expected)


def check_accumulate_beyond_32_bits(kernel, name):
    """A block finds its elements by its number; those of the blocks before are not there."""
    rng = np.random.default_rng(8)
    dst, src = filled(4097, name, rng), filled(4097, name, rng)
    wanted = dst.copy()
    combiner(wanted, (), [src])()
    run = kernel("accumulate.cu", f"accumulate<{FLOATING[name]}, Sum>")
    first, count = BEYOND // PART, BEYOND + 4097
    arguments = (biased(dst), biased(dst), biased(src), count, PART)
    run((-(-count // PART),), (THREADS,), arguments, first_block=first)
    assert_same(dst, wanted)
    run = kernel("accumulate.cu", f"accumulate_all<{FLOATING[name]}, Sum>")
    combiner(wanted, [src], [src])()
    table = np.array([biased(src), biased(dst), biased(src)])
    run((-(-count // PART),), (THREADS,), (biased(dst), table, np.int32(3), count, PART), first_block=first)
    assert_same(dst, wanted)


def pack_checks():
    found = {}
    for number, (wire, scale) in enumerate(product(DTYPES, SCALES)):
        part = PARTS[number % len(PARTS)]
        for offset in (0, 1):
            name = f"{wire}, scale {scale:.3g}, parts of {part}, offset {offset}"
            found[f"pack to {name}"] = partial(check_pack, wire=wire, scale=scale, part=part, offset=offset)
            found[f"unpack from {name}"] = partial(check_unpack, wire=wire, scale=scale, part=part, offset=offset)
    for narrow in (name for name, dtype in DTYPES.items() if dtype.itemsize <= 2):
        found[f"every {narrow}"] = partial(check_every_number, narrow=narrow)
    for first in range(0, 400, 100):
        found[f"lists from {first}"] = partial(check_lists, seeds=(first, first + 100))
    for name in DTYPES:
        found[f"beyond 2^32, {name}"] = partial(check_pack_beyond_32_bits, name=name)
    return found


def accumulate_checks():
    found = {f"beyond 2^32, {name}": partial(check_accumulate_beyond_32_bits, name=name) for name in DTYPES}
    for name, op in product(TYPES, OPS):
        found[f"{op} of {name}"] = partial(check_accumulate, name=name, op=op)
        found[f"{op} of several {name}"] = partial(check_accumulate_all, name=name, op=op)
    return found


def update_checks():
    found = {f"beyond 2^32, {name}": partial(check_update_beyond_32_bits, name=name) for name in DTYPES}
    found |= {f"finite {name}": partial(check_finite, wire=name) for name in DTYPES}
    for (dtype, wire, built), (name, (optimizer, _)) in product(build.UPDATES, OPTIMIZERS.items()):
        if optimizer.kernel(1)[0] == built.kernel(1)[0]:
            found[f"{name}, {wire} to {dtype}"] = partial(check_update, name=name, dtype=dtype, wire=wire)
    return found


# By file and name; each is called with a function like ``build.kernel``.
CHECKS = {"pack.cu": pack_checks(), "accumulate.cu": accumulate_checks(), "update.cu": update_checks()}


def is_further(check):
    """Whether sanitizers leave it out: its kernel is not built for them, or others read and write as it does."""
    given, function = check.keywords, check.func
    if function in (check_accumulate, check_accumulate_all):
        types = f"{(FLOATING | INTEGERS)[given['name']]}, {given['op'].capitalize()}"
        return f"{function.__name__.removeprefix('check_')}<{types}>" in build.FURTHER
    if function is check_update:
        optimizer, _ = OPTIMIZERS[given["name"]]
        return build.update_expression(given["dtype"], given["wire"], optimizer) in build.FURTHER
    if function is check_lists:
        return given["seeds"][0] > 0
    return given["scale"] not in SCALES[:3] if "scale" in given else given.get("name", "fp32") != "fp32"


FURTHER = {name for found in CHECKS.values() for name, check in found.items() if build.FURTHER and is_further(check)}


def one_too_long(kernel):
    array = placed(64, DTYPES["fp32"])
    blocks = block_table([array.size + 1], PART)
    launch(kernel("pack.cu", "pack<float>"), blocks, row_table([array], [array]), blocks, 1.0)


def between_elements(kernel):
    memory = np.zeros(64, np.uint8)
    launch(kernel("accumulate.cu", "accumulate<float, Sum>"), range(1), memory[1:], memory[1:], memory[33:], 4, 8)


# Mistakes that a sanitizer must see, each with a word of its report: otherwise its silence would mean nothing.
PLANTED = {one_too_long: "heap-buffer-overflow", between_elements: "misaligned address"}


def main(wanted):
    """The checks of a file, or a planted mistake by its name."""
    found = {name: check for name, check in CHECKS.get(wanted, {}).items() if name not in FURTHER}
    found = found or {function.__name__: function for function in PLANTED if function.__name__ == wanted}
    with np.errstate(all="ignore"):
        for check in found.values():
            check(partial(build.kernel, sanitize=True))
    print(f"done: {len(found)}")


if __name__ == "__main__":
    main(sys.argv[1])
