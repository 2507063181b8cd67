"""Read a data set by the name that ``--data`` gives: ``digits``, ``FILE.npz`` or ``FILE.txt``."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.models.data.dataset import ArrayExamples, Dataset, TextExamples, split

SPLIT_SEED = 0  # not the user's seed: runs with other seeds are tested on the same examples
TEST_SHARE_OF_TEXT = 0.1
MOST_CLASSES = 100_000  # a label is the number of an output, so one huge label would be a huge model


def load_data(name: str, dtype: np.dtype[Any], context: int) -> Dataset:
    """Load a data set.

    Args:
        name: ``digits`` (1797 images of 8 x 8, needs scikit-learn), a ``.npz`` with arrays ``x`` (n, ...) and
            ``y`` (n,) of labels from 0, or any other file, which is read as bytes of text.
        dtype: the type of image inputs; text stays integer.
        context: the number of bytes in a window of text.

    Raises:
        ValueError: the name is unknown, or the file is missing, malformed, or too small.
    """
    if name == "digits":
        return load_digits(dtype)
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"data {name!r} is neither a file nor a known name. Allowed: digits, FILE.npz, FILE.txt")
    return load_arrays(path, dtype) if path.suffix == ".npz" else load_text(path, context)


def load_digits(dtype: np.dtype[Any]) -> Dataset:
    """The handwritten digits of scikit-learn, scaled to 0..1."""
    try:
        from sklearn import datasets
    except ImportError:
        raise ValueError("data 'digits' needs scikit-learn: pip install scikit-learn (our extra 'data')") from None
    images, labels = datasets.load_digits(return_X_y=True)
    return from_arrays(images.reshape(-1, 8, 8).astype(dtype) / 16, labels)


def load_arrays(path: Path, dtype: np.dtype[Any]) -> Dataset:
    """A user's arrays ``x`` and ``y``."""
    try:
        x, y = read_arrays(path)
        if len(x) != len(y):
            raise ValueError(f"x and y must have the same length, not {len(x)} and {len(y)}")
        if y.ndim != 1 or y.dtype.kind not in "iu" or len(y) < 2 or y.min() < 0 or y.max() >= MOST_CLASSES:
            allowed = f"two or more labels from 0 to {MOST_CLASSES - 1}"
            raise ValueError(f"y must hold {allowed}, not {y.dtype}{list(y.shape)}")
        with np.errstate(over="ignore"):
            cast = x.astype(dtype) if x.dtype.kind in "iuf" else None
        if cast is None or x.ndim < 2 or not np.isfinite(cast).all():
            raise ValueError(f"x must hold finite numbers (n, ...), not {x.dtype}{list(x.shape)}")
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError) as error:
        raise ValueError(f"data {str(path)!r} is no good: {error}") from None
    return from_arrays(cast, y)


def read_arrays(path: Path) -> tuple[Array, Array]:
    """The two arrays, as they are."""
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError("it is no .npz file, as numpy.savez writes it")
        file.seek(0)
        with np.load(file) as archive:
            for key in ("x", "y"):
                if key not in archive:
                    raise ValueError(f"it has no array {key!r}, but {', '.join(archive)}")
            x, y = archive["x"], archive["y"]
    if not x.ndim or not y.ndim:
        raise ValueError("x and y must have an axis")
    return x, y


def from_arrays(x: Array, y: Array) -> Dataset:
    """Split labelled arrays."""
    train, test = split(len(x), SPLIT_SEED)
    y = y.astype(np.int64)
    return Dataset(
        ArrayExamples(x[train], y[train]), ArrayExamples(x[test], y[test]), tuple(x.shape[1:]), int(y.max()) + 1
    )


def load_text(path: Path, context: int) -> Dataset:
    """A file as bytes; the last tenth is tested on."""
    try:
        text = np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as error:
        raise ValueError(f"data {str(path)!r} cannot be read: {error}") from None
    border = len(text) - max(context + 1, round(len(text) * TEST_SHARE_OF_TEXT))
    if border < context + 1:
        raise ValueError(f"data {str(path)!r} has {len(text)} bytes; a context of {context} needs {2 * context + 2}")
    return Dataset(
        TextExamples(text[:border], context), TextExamples(text[border:], context, stride=context), (context,), 256
    )
