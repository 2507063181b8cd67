"""The functions of the module ``cupy``: NumPy's of the same name through ``compute``, and the few that differ.

More names are there than CuPy has, and no argument is refused that CuPy lacks: the GPU has the last word.
"""

import types

import numpy as np

from cupy import compute as machine
from cupy import storage
from cupy.array import ndarray, run
from cupy.compute import compute
from cupy.cuda.stream import current_lane

# About arrays, not with their elements: answered on the host, without an operation.
ABOUT = {
    "broadcast_shapes", "can_cast", "finfo", "iinfo", "isscalar", "issubdtype", "may_share_memory", "ndim",
    "promote_types", "result_type", "shape", "shares_memory", "size",
}  # fmt: skip

# They write their first argument.
WRITING = {"copyto", "fill_diagonal", "put", "put_along_axis", "putmask", "place"}

# The size of their result depends on values, so that CuPy waits for the stream.
WAITING = {"argwhere", "extract", "flatnonzero", "nonzero", "unique"}


def lookup(name):
    """``cupy.<name>``: a constant or a type of NumPy, or its function as an operation of the current stream."""
    found = getattr(np, name)
    if isinstance(found, type | types.ModuleType) or not callable(found):
        if isinstance(found, types.ModuleType):
            raise AttributeError(f"the stand-in has no cupy.{name}")
        return found
    if name in ABOUT:
        return lambda *args, **kwargs: found(*machine.unwrap(args, []), **machine.unwrap(kwargs, []))

    def function(*args, **kwargs):
        result = compute(name, found, args, kwargs, writes=args[:1] if name in WRITING else ())
        if name in WAITING:
            from cupy.cuda import get_current_stream

            get_current_stream().synchronize()
        return result

    function.__name__ = name
    return function


def array(obj, dtype=None, copy=True, order="K", subok=False, ndmin=0, *, blocking=False):
    """A new device array; from NumPy's the values go through the current stream."""
    if isinstance(obj, ndarray) or machine.ndarray in map(type, flat(obj)):
        return compute("array", lambda host: np.array(host, dtype, copy=copy or None, order=order, ndmin=ndmin), [obj])
    host = np.array(obj, dtype, order=order, ndmin=ndmin)
    made = machine.adopt(host)
    pinned = storage.span(obj) if isinstance(obj, np.ndarray) else None
    source = [(*pinned, False)] if pinned else []
    run("asarray", current_lane(), [*source, (*machine.span(made), True)], blocking)
    return made


def flat(obj):
    if isinstance(obj, list | tuple):
        for item in obj:
            yield from flat(item)
    else:
        yield obj


def asarray(a, dtype=None, order=None, *, blocking=False):
    """A device array with these values: ``a`` itself where it is one already."""
    if isinstance(a, ndarray) and dtype in (None, a.dtype) and order in (None, "K", "A"):
        return a
    return array(a, dtype, copy=False, order=order or "K", blocking=blocking)


def ascontiguousarray(a, dtype=None):
    if isinstance(a, ndarray):
        return compute("ascontiguousarray", lambda host: np.ascontiguousarray(host, dtype), [a])
    return array(np.ascontiguousarray(a, dtype))


def asnumpy(a, stream=None, order="C", out=None, *, blocking=True):
    """A NumPy array with the values of ``a``, which may be one already."""
    return a.get(stream, order, out, blocking) if isinstance(a, ndarray) else np.asarray(a, order=order)


def empty(shape, dtype=float, order="C"):
    """Nothing is written, so nothing is ordered; floats are not a number until they are written."""
    return machine.new(shape, dtype, order)


def empty_like(prototype, dtype=None, order="K", subok=None, shape=None):
    like = np.empty_like(prototype._host, dtype, order, shape=shape)
    axes = sorted(range(like.ndim), key=lambda axis: -like.strides[axis])
    made = machine.new([like.shape[axis] for axis in axes], like.dtype)
    made._host = made._host.transpose(np.argsort(axes)) if axes else made._host
    return made


def filled_like(name):
    """zeros_like, ones_like and full_like read nothing but the shape."""

    def function(a, *args, **kwargs):
        return compute(name, getattr(np, name), (a, *args), kwargs, reads=[])

    function.__name__ = name
    return function


zeros_like, ones_like, full_like = map(filled_like, ("zeros_like", "ones_like", "full_like"))


def get_array_module(*args):
    """The stand-in where one of the arguments is a device array, else NumPy."""
    import cupy

    return cupy if any(isinstance(arg, ndarray) for arg in args) else np
