import hashlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from dear_mpi.kernels.array import Array, array_module, to_host
from dear_mpi.kernels.calls import copier
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.launch_tables import address
from dear_mpi.models.layer import Layer, Parameter
from dear_mpi.training.flat_buffer.bucket import Layout

Call: TypeAlias = Callable[[], object]
READ = 1 << 18  # elements compared at a time


def flat_dtype(layers: Sequence[Layer]) -> np.dtype[Any]:
    """Return trained parameters' widest type; ValueError: no element."""
    parameters = [parameter for layer in layers for parameter in trained(layer)]
    if not any(parameter.value.size for parameter in parameters):
        raise ValueError("a model must have a parameter that is trained, with an element")
    found = {parameter.value.dtype: parameter.name for parameter in parameters}
    for dtype, name in found.items():
        if dtype not in DTYPES.values():
            raise ValueError(f"parameter {name} must have one of the types {', '.join(DTYPES)}, not {dtype}")
    wide = [dtype for dtype in found if dtype.itemsize > 2]
    return np.result_type(*wide) if wide else next(iter(found)) if len(found) == 1 else DTYPES["fp32"]


def trained(layer: Layer) -> list[Parameter]:
    """List trained parameters; ValueError for a duplicate, or a value that is no array."""
    found = [parameter for parameter in layer.parameters if parameter.trained]
    for parameter in found:
        if not hasattr(parameter.value, "strides") or not hasattr(parameter.value, "flags"):
            raise ValueError(f"the value of parameter {parameter.name} must be an array, not {parameter.value!r}")
        if found.count(parameter) > 1:
            raise ValueError(f"parameter {parameter.name} is listed twice in a layer ({type(layer).__name__})")
    return found


def of_tensors(calls: Sequence[Layer], layout: Layout) -> list[Parameter]:
    found: dict[int, Parameter] = {}
    for layer, tensors in zip(calls, layout.calls, strict=True):
        for parameter, tensor in zip(trained(layer), tensors, strict=True):
            found.setdefault(tensor, parameter)
    return list(found.values())


def layout_of(calls: Sequence[Layer], wire: np.dtype[Any], ranks: int, *, whole: bool = False) -> Layout:
    """Lay out layers in forward order; parameters in the same memory are tied.

    ValueError if they share only a part of it.
    """
    check_overlaps(calls)
    keys = [[(key_of(parameter), parameter.value.shape) for parameter in trained(layer)] for layer in calls]
    return Layout.of(keys, itemsize=wire.itemsize, ranks=ranks, value_size=flat_dtype(calls).itemsize, whole=whole)


def key_of(parameter: Parameter) -> tuple[Any, ...]:
    """Return a key that tied parameters share; an empty parameter equals only itself."""
    value = parameter.value
    return (*bounds(value), value.nbytes, value.strides) if value.size else (id(parameter),)


def check_overlaps(layers: Sequence[Layer]) -> None:
    """Parameters must share all or none of their memory; tied ones are all trained or all frozen."""
    spans = {
        (*key_of(each), each.trained): (each.value, f"{each.name} of layer {number} ({type(layer).__name__})")
        for number, layer in enumerate(layers)
        for each in layer.parameters
        if each.value.size
    }
    reaching: list[tuple[int, Array, str]] = []  # earlier ones that end after this one's start
    for (start, end, *_), (other, name) in sorted(spans.items(), key=lambda item: item[0]):
        reaching = [each for each in reaching if each[0] > start]
        for _, array, owner in reaching:
            # On the host, strided views may interleave.
            if not isinstance(array, np.ndarray) or np.shares_memory(array, other):
                what = "tied parameters must share all of it, in the same shape, and be trained, both or neither"
                raise ValueError(f"{owner} and {name} share a part of their memory: {what}")
        reaching.append((end, other, name))


def bounds(array: Array) -> tuple[int, int]:
    start = array.ctypes.data if isinstance(array, np.ndarray) else address(array)
    steps = [(count - 1) * stride for count, stride in zip(array.shape, array.strides, strict=True)]
    return start + sum(min(step, 0) for step in steps), start + sum(max(step, 0) for step in steps) + array.itemsize


def held(array: Array) -> bool:
    """Tell whether code other than the caller holds its memory."""
    root = array if array.base is None else array.base
    own = 4 if array.base is None else 3  # names here and in the caller, and the argument
    return isinstance(root, np.ndarray) and array.flags.writeable and sys.getrefcount(root) > own


def readers(buffer: Array, own: Array) -> list[Call]:
    """Return calls that copy an owner's in-place changes to the flat buffer.

    In a narrower type, an unchanged value equals the buffer's, rounded; the buffer keeps its more exact one.
    """
    if buffer.dtype == own.dtype:
        return [copier(buffer, own)]
    xp: Any = array_module(buffer)
    rounded, wide = (xp.empty(min(buffer.size, READ), array.dtype) for array in (own, buffer))
    bits = np.dtype(f"u{own.itemsize}")

    def reader(start: int) -> Call:
        theirs, mine = own[start : start + READ], buffer[start : start + READ]
        down, up = copier(rounded[: theirs.size], mine), copier(wide[: theirs.size], theirs)

        def read() -> None:
            down()
            up()
            changed = rounded[: theirs.size].view(bits) != theirs.view(bits)
            xp.copyto(mine, wide[: theirs.size], where=changed)

        return read

    return [reader(start) for start in range(0, buffer.size, READ)]


def sha256(arrays: Iterable[Array]) -> str:
    """Return the SHA-256 of the bytes of some arrays, in order."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(to_host(array)).view("u1").data)
    return digest.hexdigest()
