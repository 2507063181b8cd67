"""The number types that the kernels know: floating formats by the names used on the command line, and integers.

bf16 comes from ``ml_dtypes``: NumPy has no such type, MPI has none either. Sums and casts round to nearest even; only
fp64 to bf16 goes through fp32, and so rounds twice.
"""

from typing import Any

import ml_dtypes
import numpy as np

# A floating format in a line: its name, NumPy's type, and the type of kernels/cuda/elements.cuh, which numbers the
# formats in this order.
FORMATS: list[tuple[str, Any, str]] = [
    ("fp64", np.float64, "double"),
    ("fp32", np.float32, "float"),
    ("fp16", np.float16, "Half"),
    ("bf16", ml_dtypes.bfloat16, "Bfloat16"),
]
DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(numpy_type) for name, numpy_type, _ in FORMATS}

# NumPy's name of a type, and the CUDA kernels' name of it. Integers are only combined, never scaled or cast.
SIGNED = {"int8": "signed char", "int16": "short", "int32": "int", "int64": "long long"}
UNSIGNED = {f"u{name}": f"unsigned {c_type.removeprefix('signed ')}" for name, c_type in SIGNED.items()}
C_TYPES = {np.dtype(numpy_type).name: c_type for _, numpy_type, c_type in FORMATS} | SIGNED | UNSIGNED
TYPES = DTYPES | {name: np.dtype(name) for name in (*SIGNED, *UNSIGNED)}  # all, by name


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether the kernels can scale this type (to NumPy, bf16 is no ``np.floating``)."""
    return dtype in DTYPES.values()


def compute_dtype(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which values of these types are scaled: fp32, or fp64 where one of them is fp64."""
    return DTYPES["fp64"] if DTYPES["fp64"] in dtypes else DTYPES["fp32"]


def name_of(dtype: np.dtype[Any]) -> str:
    return next(name for name, each in DTYPES.items() if each == dtype)
