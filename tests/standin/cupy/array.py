"""``cupy.ndarray`` of the stand-in: a NumPy array that only device operations may touch."""

import numpy as np

from cupy import compute as machine
from cupy import order, storage
from cupy.compute import compute
from cupy.cuda.device import Device
from cupy.cuda.memory import Memory, MemoryPointer
from cupy.cuda.stream import current_lane, get_current_stream
from cupy.operators import give_operators

IMPLICIT = "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct one explicitly."


class ndarray:
    """A device array; CuPy's interface as far as NumPy's methods of the same names reach, and ``get`` and ``set``."""

    __array_priority__ = 100
    __hash__ = None

    def __init__(self, shape, dtype=float, memptr=None, strides=None, order="C"):
        dtype = np.dtype(dtype)
        if memptr is None:
            made = machine.new(shape, dtype, order)
            self._host, self._shadow, self.base = made._host, made._shadow, None
            return
        allocation = memptr.mem.allocation
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self._host = np.ndarray(shape, dtype, allocation.bytes(), memptr.ptr - memptr.mem.ptr, strides, order)
        self._shadow, self.base = allocation.shadow, None

    @classmethod
    def _over(cls, host, shadow, base):
        array = cls.__new__(cls)
        array._host, array._shadow, array.base = host, shadow, base
        return array

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    size = property(lambda self: self._host.size)
    ndim = property(lambda self: self._host.ndim)
    nbytes = property(lambda self: self._host.nbytes)
    itemsize = property(lambda self: self._host.itemsize)
    strides = property(lambda self: self._host.strides)
    flags = property(lambda self: self._host.flags)
    device = property(lambda self: Device(self._shadow.device))
    T = property(lambda self: self.transpose())

    @property
    def data(self):
        owner = self._host
        while isinstance(owner, np.ndarray):
            owner = owner.base
        return MemoryPointer(Memory.over(owner), self._host.__array_interface__["data"][0] - self._shadow.base)

    @property
    def __cuda_array_interface__(self):
        host = self._host
        return {
            "shape": host.shape, "typestr": host.dtype.str, "descr": host.dtype.descr, "version": 3,
            "strides": None if host.flags.c_contiguous else host.strides,
            "data": (self.data.ptr if host.size else 0, False), "stream": get_current_stream().ptr or 1,
        }  # fmt: skip

    # To the host and back.

    def get(self, stream=None, order="C", out=None, blocking=True):
        """A copy on the host, or in ``out``; without ``blocking`` it is on its way when this returns."""
        lane = current_lane() if stream is None else stream.lane
        accesses = [(*machine.span(self), False)]
        if out is None:
            out = np.empty(self.shape, self.dtype, order)
        elif not isinstance(out, np.ndarray) or (out.shape, out.dtype) != (self.shape, self.dtype):
            raise TypeError(f"out must be a NumPy array {self.dtype}{list(self.shape)}")
        elif (pinned := storage.span(out)) is not None:
            accesses.append((*pinned, True))
        run(f"get of {self.dtype}{list(self.shape)}", lane, accesses, blocking)
        out[...] = self._host
        return out

    def set(self, arr, stream=None):
        """Copy a NumPy array here; the host's memory may be changed at once, unless it is pinned."""
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if (arr.shape, arr.dtype) != (self.shape, self.dtype):
            raise ValueError(f"cannot set {arr.dtype}{list(arr.shape)} to {self.dtype}{list(self.shape)}")
        pinned = storage.span(arr)
        accesses = [(*pinned, False)] if pinned else []
        lane = current_lane() if stream is None else stream.lane
        run("set", lane, [*accesses, (*machine.span(self), True)], False)
        self._host[...] = arr

    def item(self, *index):
        return self.get().item(*index)

    def tolist(self):
        return self.get().tolist()

    def tobytes(self, order="C"):
        return self.get().tobytes(order)

    def __array__(self, dtype=None, copy=None):
        raise TypeError(IMPLICIT)

    def __reduce__(self):
        from cupy import array

        return array, (self.get(),)

    def __copy__(self):
        return self.copy()

    def __deepcopy__(self, memo):
        return self.copy()

    # NumPy's dispatch: np.zeros_like(device array) makes a device array, as with CuPy.

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        if method != "__call__":
            return NotImplemented
        return compute(ufunc.__name__, ufunc, inputs, kwargs)

    def __array_function__(self, func, types, args, kwargs):
        import cupy

        if any(not issubclass(kind, ndarray | np.ndarray) for kind in types):
            return NotImplemented
        return getattr(cupy, func.__name__)(*args, **kwargs)

    # Views where NumPy gives one, copies otherwise.

    def reshape(self, *shape, order="C"):
        return compute("reshape", lambda host: host.reshape(*shape, order=order), [self])

    def ravel(self, order="C"):
        return compute("ravel", lambda host: host.ravel(order), [self])

    def transpose(self, *axes):
        return compute("transpose", lambda host: host.transpose(*axes), [self])

    def view(self, dtype=None):
        return ndarray._over(self._host.view() if dtype is None else self._host.view(dtype), self._shadow, self)

    def astype(self, dtype, order="K", casting=None, subok=None, copy=True):
        if not copy and self.dtype == np.dtype(dtype):
            return self
        return compute("astype", lambda host: host.astype(dtype, order=order), [self])

    def copy(self, order="C"):
        return compute("copy", lambda host: host.copy(order), [self])

    def flatten(self, order="C"):
        return compute("flatten", lambda host: host.flatten(order), [self])

    def fill(self, value):
        self[...] = value

    def __len__(self):
        return len(self._host)

    def __iter__(self):
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index):
        if is_plain(index):
            return ndarray._over(self._host[with_ellipsis(index)], self._shadow, self)
        picked = compute("take", lambda key: self._host[key], [index], reads=[self, *arrays_in(index)], index=True)
        if has_mask(index):  # the shape of the result depends on values: CuPy waits for them
            get_current_stream().synchronize()
        return picked

    def __setitem__(self, index, value):
        if not isinstance(value, ndarray):
            value = np.asarray(machine.unwrap(value, []))[()]
        elif is_plain(index) and same_place(self[index], value):
            return  # the end of x[index] += y
        read = [value] if isinstance(value, ndarray) else []
        if is_plain(index):
            compute("setitem", lambda: assign(self[index], ..., value), [], writes=[self[index]], reads=read)
        else:
            read += arrays_in(index)
            compute("put", lambda key: assign(self, key, value), [index], writes=[self], reads=read, index=True)

    def __repr__(self):
        return repr(self.get())

    def __str__(self):
        return str(self.get())

    def __format__(self, spec):
        return format(self.get().item() if self.ndim == 0 else self.get(), spec)


def run(name, lane, accesses, blocking):
    """An operation whose values the caller moves, and that the host waits for where it is ``blocking``."""
    order.operation(name, lane, accesses)
    if blocking:
        order.host_joins(lane.clock)


def is_plain(index):
    parts = index if isinstance(index, tuple) else (index,)
    kinds = (int, np.integer, slice, type(None), type(Ellipsis))
    return all(isinstance(part, kinds) and not isinstance(part, bool) for part in parts)


def with_ellipsis(index):
    """The same index; with whole numbers alone too it gives a view, of no axes, and not a copy of the element."""
    parts = index if isinstance(index, tuple) else (index,)
    return parts if any(part is Ellipsis for part in parts) else (*parts, Ellipsis)


def arrays_in(index):
    found = []
    machine.unwrap(index, found, numpy_too=True)
    return found


def has_mask(index):
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, bool) or getattr(getattr(part, "dtype", None), "kind", "") == "b" for part in parts)


def same_place(one, other):
    first, second = one._host, other._host
    here, there = (host.__array_interface__["data"][0] for host in (first, second))
    return (here, first.shape, first.strides, first.dtype) == (there, second.shape, second.strides, second.dtype)


def assign(target, index, value):
    target._host[index] = value._host if isinstance(value, ndarray) else value


give_operators(ndarray)
machine.ndarray = ndarray
