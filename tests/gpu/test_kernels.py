"""The kernels through CuPy against the NumPy reference, bit for bit, in one launch each."""

import gc

import cupy
import numpy as np
import pytest

from dear_mpi.kernels.array import event_for
from dear_mpi.kernels.calls import combiner, copier, packer, unpacker, updater
from dear_mpi.kernels.cuda_backend import kernel
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.launch_tables import COMBINE_PART, PART
from dear_mpi.kernels.optimizers import SGD, Optimizer
from dear_mpi.kernels.slab import Slab
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.models.networks import ALL_MODELS
from tests.kernels.buckets import room, views
from tests.shim.build import UPDATES

SHAPES = [(5,), (PART + 1,), (0,), (), (3, 7), (2 * PART,), (129, 65)]
COUNTS = [0, 1, 7, 8, 9, COMBINE_PART - 1, COMBINE_PART + 1, 100_003]


def normal(shape, dtype, seed=0):
    return np.random.default_rng([seed, *np.atleast_1d(shape)]).standard_normal(shape).astype(dtype)


def assert_same_bits(device, host):
    assert device.get().tobytes() == np.ascontiguousarray(host).tobytes()


@pytest.fixture
def launches():
    """Counts the launches of the kernels that were compiled so far, if this CuPy counts them."""
    counted = getattr(cupy, "launches", None)
    return lambda: None if counted is None else len(counted)


@pytest.mark.parametrize("wire", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 1 / 3])
def test_pack_and_unpack(wire, dtype, scale, launches):
    count = room(SHAPES, DTYPES[wire])
    tensors = [normal(shape, DTYPES[dtype], seed) for seed, shape in enumerate(SHAPES)]
    bucket, there = np.zeros(count, DTYPES[wire]), Slab.beside(cupy.zeros(1)).zeros(count, DTYPES[wire])
    on_device = [cupy.asarray(tensor) for tensor in tensors]
    begin = launches()
    packer(on_device, views(there, SHAPES), scale=scale)()
    assert launches() == (None if begin is None else begin + 1)
    packer(tensors, views(bucket, SHAPES), scale=scale)()
    assert_same_bits(there, bucket)
    back = [cupy.zeros(shape, np.float32) for shape in SHAPES]
    unpacker(views(there, SHAPES), back, scale=scale)()
    expected = [np.zeros(shape, np.float32) for shape in SHAPES]
    unpacker(views(bucket, SHAPES), expected, scale=scale)()
    for one, other in zip(back, expected, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_is_told(value):
    grads, finite = cupy.zeros(PART + 3, np.float16), cupy.ones(1, np.bool_)
    call = updater(grads, cupy.zeros(PART + 3, np.float32), [], SGD(), finite=finite)
    call(SGD(), 1, 1.0)
    assert bool(finite[0])
    grads[PART + 1] = value
    call(SGD(), 2, 1.0)
    assert not bool(finite[0])


def test_tensors_of_several_types_share_a_launch(launches):
    shapes = [(100,)] * 4
    tensors = [normal(100, dtype, seed) for seed, dtype in enumerate(DTYPES.values())]
    bucket, there = np.zeros(416, np.float32), cupy.zeros(416, np.float32)
    packer(tensors, views(bucket, shapes))()
    packer([cupy.asarray(tensor) for tensor in tensors], views(there, shapes))()
    assert_same_bits(there, bucket)


def test_misaligned_views():
    whole = normal(PART + 6, np.float32)
    bucket, there = np.zeros(PART + 5, np.float32), cupy.zeros(PART + 5, np.float32)
    packer([whole[1:]], [bucket])()
    packer([cupy.asarray(whole)[1:]], [there])()
    assert_same_bits(there, bucket)


def test_a_tensor_with_gaps_is_refused():
    with pytest.raises(ValueError, match="must be contiguous, not of strides"):
        packer([cupy.zeros(10, np.float32)[::2]], [cupy.zeros(5, np.float32)])()


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", [*DTYPES, "int8", "int32", "uint64"])
@pytest.mark.parametrize("count", COUNTS)
def test_accumulate(op, dtype, count):
    dtype = DTYPES.get(dtype, np.dtype(dtype) if dtype not in DTYPES else None)
    dst, src = (np.abs(normal(count, np.float32, seed) * 20).astype(dtype) for seed in (1, 2))
    there = cupy.asarray(dst)
    combiner(there, (), [cupy.asarray(src)], op)()
    combiner(dst, (), [src], op)()
    assert_same_bits(there, dst)


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", [*DTYPES.values(), np.dtype(np.int32)], ids=str)
@pytest.mark.parametrize(("number", "place", "first"), [(1, 1, 0), (2, 1, 1), (4, 0, 0), (7, 5, 0)])
def test_several_sources_in_one_launch(op, dtype, number, place, first, launches):
    """Aligned and not; one of them is in pinned host memory."""
    count = COMBINE_PART + 3
    terms = [(normal(count, np.float32, seed) * 20).astype(dtype) for seed in range(number + 1)]
    there = [cupy.asarray(term)[first:] for term in terms]
    other = (place + 1) % len(terms)
    there[other] = Slab.pinned(cupy.zeros(1)).empty(count - first, dtype)
    terms = [term[first:] for term in terms]
    there[other][...] = terms[other]
    call = combiner(there[place], there[:place], there[place + 1 :], op)
    begin = launches()
    call()
    assert launches() == (None if begin is None else begin + 1)
    with np.errstate(over="ignore"):  # of products in fp16
        combiner(terms[place], terms[:place], terms[place + 1 :], op)()
    assert_same_bits(there[place], terms[place])


def test_several_sources_without_elements():
    none = cupy.zeros(0, np.float32)
    combiner(none, [none], [none])()


@pytest.mark.parametrize("count", COUNTS)
def test_pinned_host_memory_is_read_and_written(count, stream):
    """As a staged plan does: combined from pinned memory, and copied to it."""
    landed = Slab.pinned(cupy.zeros(1)).empty(count, DTYPES["fp32"])
    left = Slab.pinned(cupy.zeros(1)).empty(count, DTYPES["fp32"])
    landed[...] = normal(count, np.float32)
    there = cupy.ones(count, np.float32)
    combiner(there, (), [landed])()
    copier(left, there)()
    event = event_for(there)
    event.record()
    event.Wait()
    assert event.Test()
    assert left.tobytes() == (1 + normal(count, np.float32)).tobytes()


@pytest.mark.parametrize(
    ("dtype", "wire", "optimizer"),
    [pytest.param(*update, id=f"{update[1]} to {update[0]}, {update[2].kernel(1)[0]}") for update in UPDATES],
)
@pytest.mark.parametrize("first", [0, 1])
def test_update(dtype, wire, optimizer, first, launches):
    """Aligned and not."""
    arrays = [normal(2 * PART + 5, DTYPES[name], seed) for seed, name in enumerate((wire, dtype))]
    grads, values = (array[first:] for array in arrays)
    grads_there, values_there = (cupy.asarray(array)[first:] for array in arrays)
    state, state_there = optimizer.new_state(values), optimizer.new_state(values_there)
    update = updater(grads, values, state, optimizer)
    update_there = updater(grads_there, values_there, state_there, optimizer)
    begin = launches()
    for iteration in (1, 2, 3):
        update(optimizer, iteration, 0.25)
        update_there(optimizer, iteration, 0.25)
    assert launches() == (None if begin is None else begin + 3)
    for one, other in zip([values_there, *state_there], [values, *state], strict=True):
        assert_same_bits(one, other)


def test_an_update_of_nothing_launches_nothing(launches):
    none, begin = cupy.zeros(0, np.float32), launches()
    updater(none, none, [], SGD())(SGD(), 1, 1.0)
    assert launches() == begin


class Plain(Optimizer):
    """An optimizer of somebody who wrote no kernel."""

    def update(self, iteration, value, grad, state):
        value -= self.lr * grad


def test_an_optimizer_without_a_kernel_is_refused():
    with pytest.raises(ValueError, match="optimizer 'Plain' has no CUDA kernel: it trains only on the device cpu"):
        updater(cupy.zeros(3, np.float32), cupy.zeros(3, np.float32), [], Plain(0.1))


def test_kernels_are_compiled_once():
    assert kernel("pack.cu", "pack<float>") is kernel("pack.cu", "pack<float>")


def test_a_bound_copy_keeps_its_arrays():
    call = copier(Slab.beside(cupy.zeros(1)).zeros(1000, DTYPES["fp32"]), cupy.ones(1000, np.float32))
    gc.collect()
    call()
    cupy.cuda.get_current_stream().synchronize()


# Whole models on CuPy arrays against the same on NumPy's.

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
