"""The CUDA kernels as functions that run on this machine's processor: g++ compiles their sources behind a shim.

    run = kernel("accumulate.cu", "accumulate<float, Sum>")
    run((blocks,), (256,), (dst, dst, src, dst.size, part))

All kernels of a file go into one shared library, in ``build/shim``, named after a hash of all it was made from.
"""

import ctypes
import hashlib
import os
import subprocess
import tempfile
from functools import cache
from itertools import product, starmap
from pathlib import Path

import numpy as np

from dear_mpi.kernels.dtypes import C_TYPES, DTYPES
from dear_mpi.kernels.optimizers import OPTIMIZERS as EVERY_OPTIMIZER
from dear_mpi.kernels.optimizers import SGD, Optimizer

SHIM = Path(__file__).with_name("cuda_shim.h")
ROOT = SHIM.parents[2]
CUDA = ROOT / "kernels" / "cuda"
LIBRARIES = ROOT / "build" / "shim"  # of make clean, and ignored by git

COMPILER = "g++"  # 12 or later: it knows _Float16
FLAGS = ["-std=c++17", "-shared", "-fPIC", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
SANITIZE = ["-Og", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
INCLUDE = '#include "elements.cuh"'

FLOATING = [C_TYPES[dtype.name] for dtype in DTYPES.values()]
INTEGERS = [c_type for c_type in C_TYPES.values() if c_type not in FLOATING]
OPS = ["Sum", "Prod", "Min", "Max"]


# The updates that are built, by the names of formats: (of values, of gradients, optimizer). Training has values of fp32
# and any gradients, which all optimizers take; every other pair of formats has one of them, each in turn.
WITH_KERNELS = {name: kind() for name, kind in EVERY_OPTIMIZER.items() if kind.kernel is not Optimizer.kernel}
OPTIMIZERS = [*(WITH_KERNELS[name] for name in sorted(WITH_KERNELS)), SGD(momentum=0.9)]
UPDATES = [
    (value, grad, optimizer)
    for (i, value), (j, grad), (k, optimizer) in product(*map(enumerate, (DTYPES, DTYPES, OPTIMIZERS)))
    if value == "fp32" or (i - j + k) % len(OPTIMIZERS) == 0
]


def update_expression(value, grad, optimizer):
    """The name expression of an optimizer's kernel for values and gradients of these formats."""
    name, numbers = optimizer.kernel(1)
    types = [C_TYPES[DTYPES[dtype].name] for dtype in (value, grad)]
    return f"update<{', '.join([*types, name, *['double'] * len(numbers)])}>"


# Every kernel that is launched, by the name expression under which CuPy finds it; of updates enough to try everything
# (another one is built when it is asked for).
EXPRESSIONS = {
    "pack.cu": [f"{name}<{bucket}>" for name, bucket in product(["pack", "unpack"], FLOATING)],
    "accumulate.cu": [
        f"{name}<{dtype}, {op}>"
        for name, dtype, op in product(["accumulate", "accumulate_all"], FLOATING + INTEGERS, OPS)
    ],
    "update.cu": list(starmap(update_expression, UPDATES)),
}

# What the build for the sanitizers leaves out, since it takes long: instances that read and write as others of the same
# template do. With EVERY=1 none is left out.
FURTHER = {
    f"{name}<{dtype}, {op}>"
    for name, (i, dtype), (j, op) in product(
        ("accumulate", "accumulate_all"), enumerate(FLOATING + INTEGERS), enumerate(OPS)
    )
    if (i + j) % 2 == 0 or dtype in set(INTEGERS) - {"int"}
}
FURTHER |= {
    update_expression(value, grad, optimizer)
    for value, grad, optimizer in UPDATES
    if (optimizer not in (SGD(), OPTIMIZERS[[*DTYPES].index(grad) - 1]) if value == "fp32" else value != grad)
}
FURTHER = set() if os.environ.get("EVERY") else FURTHER


def source(file):
    """The text of a file with what it includes pasted in, as it is handed to CuPy."""
    return (CUDA / file).read_text("utf-8").replace(INCLUDE, (CUDA / "elements.cuh").read_text("utf-8"))


def kernel(file, expression, *, sanitize=False):
    """A function ``run(grid, block, args)`` that launches a kernel of a file in ``kernels/cuda``."""
    return kernel_from_source(source(file), expression, sanitize=sanitize)


@cache
def kernel_from_source(text, expression, *, sanitize=False):
    """The same from a text that includes nothing.

    ``args`` are passed as CuPy passes them: arrays and None as pointers, a Python int in 8 bytes, a float as a double,
    NumPy's scalars as they are. Blocks before ``first_block`` are left out, for arrays of which only the end exists.

    Raises:
        ValueError: the grid or the block is empty, which CUDA refuses as well.
        TypeError: the arguments are not as many, or not as long, as the kernel's parameters.
    """
    names = next((names for names in EXPRESSIONS.values() if expression in names), [expression])
    names = [name for name in names if not (sanitize and name in FURTHER)]
    loaded, number = load(library(text, names, sanitize)), names.index(expression)
    launch = getattr(loaded, f"launch_{number}")
    launch.restype = None
    buffer = (ctypes.c_int * 64)()
    sizes = buffer[: getattr(loaded, f"sizes_{number}")(buffer)]

    def run(grid, block, args, *, first_block=0):
        if 0 in (*grid, *block):
            raise ValueError(f"{expression}: grid {grid} and block {block} must not be empty")
        values = [argument(arg) for arg in args]
        if [ctypes.sizeof(value) for value in values] != sizes:
            raise TypeError(f"{expression}: parameters have {sizes} bytes, arguments are {args}")
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        launch(dimensions(grid), dimensions(block), pointers, ctypes.c_ulonglong(first_block))

    return run


def dimensions(extents):
    return (ctypes.c_uint * 3)(*extents, *[1] * (3 - len(extents)))


def argument(value):
    if value is None:
        return ctypes.c_void_p(None)
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    return ctypes.create_string_buffer(data := np.asarray(value).tobytes(), len(data))


@cache
def load(path):
    return ctypes.CDLL(str(path))


def library(text, names, sanitize):
    """The path of these kernels' library; it is built unless another test, maybe of another process, has done so."""
    exports = [f"SHIM_EXPORT({number}, {name})" for number, name in enumerate(names)]
    text = "\n".join([SHIM.read_text("utf-8"), text, *exports, ""])
    command = [COMPILER, *FLAGS, *(SANITIZE if sanitize else ["-O1"])]
    path = LIBRARIES / f"{hashlib.sha256(repr((command, text)).encode()).hexdigest()[:24]}.so"
    if not path.exists():
        LIBRARIES.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=LIBRARIES) as folder:
            unit, built = Path(folder) / "unit.cpp", Path(folder) / "unit.so"
            unit.write_text(text, "utf-8")
            subprocess.run([*command, "-o", built, unit], check=True)
            os.replace(built, path)  # in one go: no process sees half of it
    return path


def sanitizer_environment():
    """The environment of a Python process that loads sanitized kernels."""
    runtime = subprocess.run([COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    leaks_of_python = {"ASAN_OPTIONS": "detect_leaks=0"}
    return {
        **os.environ,
        "LD_PRELOAD": runtime.stdout.strip(),
        "UBSAN_OPTIONS": "print_stacktrace=1",
        **leaks_of_python,
    }
