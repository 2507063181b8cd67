"""The floating-point formats that the kernels know, by the names used on the command line.

bf16 comes from ``ml_dtypes``: NumPy has no such type, MPI has none either. Sums and casts round to nearest even; only
fp64 to bf16 goes through fp32, and so rounds twice.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["DTYPES", "compute_dtype", "is_floating"]

DTYPES: dict[str, np.dtype[Any]] = {
    "fp64": np.dtype(np.float64),
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether the kernels can scale this type (bf16 is no ``np.floating`` to NumPy)."""
    return dtype in DTYPES.values()


def compute_dtype(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which values of these types are scaled: fp32, or fp64 where one of them is fp64.

    >>> compute_dtype(DTYPES["fp16"], DTYPES["bf16"]).name
    'float32'
    """
    return DTYPES["fp64"] if DTYPES["fp64"] in dtypes else DTYPES["fp32"]
