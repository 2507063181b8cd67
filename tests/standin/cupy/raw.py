"""Kernels from CUDA source, compiled by the host's compiler through tests/shim and run at once.

For the project's own kernels tests/standin/footprints.py says exactly which bytes a launch reads and writes. What any
other kernel touches is guessed from its arguments, on the safe side:

- A device array is read and written entirely; only read where the source declares the parameter ``const T*``.
- An array that is not of floats may be a table of addresses. It is itself only read, and each of its 8-byte words that
  lies in live device or pinned memory is followed. So is an integer argument that does.
- What an address leads to counts from there to the end of the allocation, read and written (only read for
  ``const T* const*``). In a slab or in pinned memory, which several arrays share, only the first 16 bytes count: a race
  further inside is missed.
"""

import importlib
import re
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cupy import compute as machine
from cupy import order, storage
from cupy.array import ndarray
from cupy.cuda.memory import MemoryPointer
from cupy.cuda.stream import current_lane

SHARED_BYTES = 16

launches = []  # every launch of a kernel from source, for tests that count them


class Launch(NamedTuple):
    """One kernel launch; ``name`` is the name expression."""

    name: str
    grid: tuple
    block: tuple


class RawModule:
    def __init__(self, code=None, *, path=None, options=(), backend="nvrtc", name_expressions=None, jitify=False):
        self.code = Path(path).read_text(encoding="utf-8") if code is None else code
        self.options, self.name_expressions = tuple(options), name_expressions
        defines = [option[2:].replace("=", " ", 1) for option in self.options if option.startswith("-D")]
        self.text = "".join(f"#define {define}\n" for define in defines) + self.code

    def compile(self, log_stream=None):
        """Kernels are compiled one by one, at their first launch."""

    def get_function(self, name):
        if "<" in name and name not in (self.name_expressions or ()):
            raise ValueError(f"kernel {name} must be among the module's name_expressions, {self.name_expressions}")
        return RawKernel(self.text, name)


class RawKernel:
    """A kernel, called as ``kernel(grid, block, args)``."""

    def __init__(self, code, name, options=(), backend="nvrtc"):
        self.code, self.name, self.function = code, name, None
        self.constness = constness(code, name)

    def __call__(self, grid, block, args, *, shared_mem=0):
        if not (isinstance(grid, tuple) and isinstance(block, tuple)):
            raise TypeError("grid and block of a kernel must be tuples")
        lane = current_lane()
        machine.check_devices(arg for arg in args if isinstance(arg, ndarray))
        accesses = list(self.accesses(args))
        order.operation(f"kernel {self.name}", lane, accesses)
        launches.append(Launch(self.name, grid, block))
        if self.function is None:
            self.function = project("shim.build").kernel_from_source(self.code, self.name)
        self.function(grid, block, tuple(map(plain, args)))

    def accesses(self, args):
        """(shadow, start, stop, write) of what a launch touches.

        Raises:
            ValueError: a footprint leaves its allocation, or lies in memory that no device reaches.
        """
        footprint = project("standin.footprints").FOOTPRINTS.get(self.name.partition("<")[0])
        if footprint is None:
            for number, arg in enumerate(args):
                yield from self.touched(number, arg)
            return
        for address, nbytes, write in footprint(self.name, *args):
            shadow = storage.find(address)
            if nbytes and (shadow is None or address + nbytes > shadow.base + shadow.nbytes):
                raise ValueError(f"kernel {self.name} touches {nbytes} bytes at {address:#x}: not one live allocation")
            if nbytes:
                yield shadow, address, address + nbytes, write

    def touched(self, number, arg):
        levels = self.constness[number] if number < len(self.constness) else ()
        if isinstance(arg, ndarray):
            if arg.size == 0:
                return
            table = arg.dtype.kind in "iuV" and arg.nbytes % 8 == 0 and arg.flags.c_contiguous and is_words(arg)
            leads = [span for word in words(arg) if (span := reached(word)) is not None] if table else []
            yield *machine.span(arg), not (leads or (levels and levels[-1]))
            yield from ((*span, not (len(levels) == 2 and levels[0])) for span in leads)
        elif isinstance(arg, MemoryPointer | int | np.integer) and not isinstance(arg, bool):
            span = reached(int(arg))
            if span is not None:
                yield *span, not (levels and levels[-1])


def is_words(array):
    """Addresses are stored on 8 bytes: an int64, or a record that may hold some; but bf16 is of kind V too."""
    return array.dtype.itemsize % 8 == 0


def words(array):
    return np.unique(array._host.reshape(-1).view("u1").view("u8")).tolist()


def reached(address):
    """(shadow, start, stop) of what an address may lead to."""
    shadow = storage.find(address)
    if shadow is None:
        return None
    end = shadow.base + shadow.nbytes
    return shadow, address, end if shadow.kind == "device" else min(end, address + SHARED_BYTES)


def plain(arg):
    """An argument as the shim takes it: an address, or a scalar with its type."""
    if isinstance(arg, ndarray):
        return arg.data.ptr
    if isinstance(arg, MemoryPointer):
        return arg.ptr
    if isinstance(arg, np.ndarray):
        raise TypeError(f"Unsupported type {type(arg)}: a kernel takes device arrays")
    return arg


def constness(code, name):
    """For each parameter of a kernel, whether the targets of its pointers are const, outermost type first.

    ``const T* const* p`` gives (True, True), ``float* p`` (False,), ``int n`` (). Empty where the kernel is not found.
    """
    base = re.escape(name.partition("<")[0].rpartition("::")[2].strip())
    found = re.search(rf"__global__[^;{{}}]*?\b{base}\s*\(([^{{;]*)\)\s*\{{", code)
    if found is None:
        return ()
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", found[1], flags=re.DOTALL)
    while (shorter := re.sub(r"<[^<>]*>", "", text)) != text:
        text = shorter  # commas of template arguments
    levels = [parameter.split("*")[:-1] for parameter in text.split(",")]
    return tuple(tuple(bool(re.search(r"\bconst\b", part)) for part in parts) for parts in levels)


def project(name):
    """A module of the project's tests; the folder that holds them is found where it is not importable."""
    root = str(Path(__file__).resolve().parents[3])
    if root not in sys.path:
        sys.path.append(root)
    return importlib.import_module(f"tests.{name}")
