"""Define the supported number types; floating formats have their command-line names.

bf16 comes from ``ml_dtypes``. Casts round to nearest even; only fp64 to bf16 rounds twice.
"""

from typing import Any

import ml_dtypes
import numpy as np

# Name, NumPy type, type of kernels/cuda/elements.cuh, in its order.
FORMATS: list[tuple[str, Any, str]] = [
    ("fp64", np.float64, "double"),
    ("fp32", np.float32, "float"),
    ("fp16", np.float16, "Half"),
    ("bf16", ml_dtypes.bfloat16, "Bfloat16"),
]
DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(numpy_type) for name, numpy_type, _ in FORMATS}

# NumPy's and CUDA's names. Integers are only combined.
SIGNED = {"int8": "signed char", "int16": "short", "int32": "int", "int64": "long long"}
UNSIGNED = {f"u{name}": f"unsigned {c_type.removeprefix('signed ')}" for name, c_type in SIGNED.items()}
C_TYPES = {np.dtype(numpy_type).name: c_type for _, numpy_type, c_type in FORMATS} | SIGNED | UNSIGNED
TYPES = DTYPES | {name: np.dtype(name) for name in (*SIGNED, *UNSIGNED)}


def is_floating(dtype: np.dtype[Any]) -> bool:
    """For NumPy, bf16 is not an ``np.floating``."""
    return dtype in DTYPES.values()


def compute_dtype(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    return DTYPES["fp64"] if DTYPES["fp64"] in dtypes else DTYPES["fp32"]


def name_of(dtype: np.dtype[Any]) -> str:
    return next(name for name, each in DTYPES.items() if each == dtype)
