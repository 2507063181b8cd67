"""A checkpoint's file, which is there as a whole or not at all."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.reporting.files import older, replacing, set_aside, tidy


def stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which an array is kept: its own, or unsigned integers where NumPy's files do not know it."""
    return dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")


def write(path: Path, arrays: dict[str, Array]) -> None:
    """Write a snapshot; the file that was there becomes FILE.old.

    Raises:
        ValueError: it cannot be written.
    """
    with replacing("checkpoint", path) as partial:
        tidy(path)
        with partial.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        set_aside(path)


def read(path: Path) -> dict[str, Array]:
    """A snapshot from a file, or from FILE.old where a run was ended before the new file was in place.

    Raises:
        ValueError: there is no file, or it is damaged.
    """
    found = path if path.exists() else older(path)
    if not found.exists():
        raise ValueError(f"checkpoint {str(path)!r} is not there: --save FILE --every N writes one")
    try:
        with found.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        hint = f": the one before it is {str(older(path))!r}" if found == path and older(path).exists() else ""
        what = "it is no npz file" if "pickled" in str(error) else error
        raise ValueError(f"checkpoint {str(found)!r} is damaged ({what}){hint}") from None
