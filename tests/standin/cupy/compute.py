"""One operation of the stand-in: NumPy computes, ``order`` learns what was read and written.

Inputs are unwrapped, the NumPy function is called, its results are wrapped: a result that lies in an input's memory is
a view and costs nothing; any other becomes a new allocation, in the memory layout that NumPy chose, so that later sums
add in the same order as NumPy's.
"""

import operator

import numpy as np

from cupy import order, storage
from cupy.cuda.stream import current_lane
from cupy.storage import here

# Set by array.py, which needs this module.
ndarray = None


def span(array):
    """(shadow, first byte, one past the last) of a device array."""
    return array._shadow, *storage.bounds(array._host)


def check_devices(arrays):
    """Raises ValueError for an array of another device than the current one."""
    for array in arrays:
        if array._shadow.device != here.device:
            raise ValueError(f"array is on device {array._shadow.device}, the current device is {here.device}")


def unwrap(value, found, *, numpy_too=False):
    """``value`` with every device array in it replaced by its host array; these are put into ``found``.

    Raises:
        TypeError: a NumPy array is mixed in, where CuPy does not allow it.
    """
    if isinstance(value, ndarray):
        found.append(value)
        return value._host
    if isinstance(value, np.ndarray) and not numpy_too:
        raise TypeError(f"Unsupported type {type(value)}: NumPy and CuPy arrays do not mix")
    if isinstance(value, list | tuple):
        return type(value)(unwrap(item, found, numpy_too=numpy_too) for item in value)
    if isinstance(value, dict):
        return {name: unwrap(item, found, numpy_too=numpy_too) for name, item in value.items()}
    return value


def new(shape, dtype, layout="C"):
    dtype = np.dtype(dtype)
    shape = (shape,) if isinstance(shape, int | np.integer) else tuple(map(operator.index, shape))
    nbytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
    allocation = storage.Allocation(nbytes, "device", here.device, current_lane())
    return ndarray._over(allocation.bytes().view(dtype).reshape(shape, order=layout), allocation.shadow, None)


def adopt(result, lane=None):
    """A new device array with the values and the order of axes in memory of a NumPy array."""
    axes = sorted(range(result.ndim), key=lambda axis: -abs(result.strides[axis]))
    array = new([result.shape[axis] for axis in axes], result.dtype)
    array._host = array._host.transpose(np.argsort(axes)) if axes else array._host
    array._host[...] = result
    return array


def compute(name, function, args, kwargs=None, *, writes=(), reads=None, index=False):
    """Call ``function`` on host arrays as an operation of the current stream.

    Args:
        writes: device arrays that it writes, whether or not they are among the arguments.
        reads: those that it reads; all in the arguments, except those of ``out=``, unless it is given.
        index: the arguments are an index, in which NumPy arrays are allowed.

    Raises:
        order.RaceError: something that it touches has not been waited for.
    """
    found = []
    args = unwrap(tuple(args), found, numpy_too=index)
    kwargs = dict(kwargs or {})
    outs = kwargs.get("out")
    outs = outs if isinstance(outs, tuple) else () if outs is None else (outs,)
    if any(not isinstance(out, ndarray) for out in outs):
        raise TypeError(f"out of {name} must be a CuPy array, not {type(outs[0])}")
    writes = [*writes, *outs]
    hosts = unwrap({key: value for key, value in kwargs.items() if key != "out"}, found)
    if outs:
        hosts["out"] = tuple(out._host for out in outs) if len(outs) > 1 else outs[0]._host
    accesses = [(*span(array), False) for array in (found if reads is None else reads)]
    check_devices([*found, *(reads or ()), *writes])
    if writes:
        order.operation(name, current_lane(), accesses + [(*span(array), True) for array in writes])
    with np.errstate(all="ignore"):
        result = function(*args, **hosts)
    fresh = []
    wrapped = wrap(result, [*found, *outs], fresh)
    if fresh:
        accesses = [] if writes else accesses
        order.operation(name, current_lane(), accesses + [(*span(array), True) for array in fresh])
    return wrapped


def wrap(result, sources, fresh):
    """Results as device arrays; the new ones are put into ``fresh``."""
    if isinstance(result, list | tuple):
        items = [wrap(item, sources, fresh) for item in result]
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
    if isinstance(result, np.generic | bool | int | float | complex):
        result = np.asarray(result)
    if not isinstance(result, np.ndarray):
        return result
    for source in sources:
        if result is source._host:
            return source
    address = result.__array_interface__["data"][0]
    for source in sources:
        shadow = source._shadow
        if shadow.base <= address < shadow.base + shadow.nbytes or (result.size == 0 and result.base is source._host):
            return ndarray._over(result, shadow, source)
    fresh.append(adopt(result))
    return fresh[-1]
