"""Load training examples in one global order for all ranks, which depends only on the seed.

epoch 0: a permutation of all examples | epoch 1: another one | ...
|---- batch 0 ----|---- batch 1 ----|---- batch 2 ----| ...        batches run on across epochs
| rank 0 | rank 1 |                                                     equal parts, or by rank speeds
"""

import threading
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from dear_mpi.collectives.program.program import Partition
from dear_mpi.kernels.array import Array

SPLIT_SEED = 0  # of any seed: all runs are tested on the same examples
TEST_SHARE = 0.2
TEST_SHARE_OF_TEXT = 0.1
MOST_CLASSES = 100_000  # one huge label makes a huge model
MOST_PASSES = 1000  # over the data set, for a batch
READING = threading.Lock()
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Examples:
    """Rows of ``x`` (of a text: windows, views of its bytes) with labels; ``arrays``: all data once, to compare."""

    x: Array
    y: Array
    arrays: tuple[Array, ...]

    def __len__(self) -> int:
        return len(self.x)

    def take(self, indices: Indices) -> tuple[Array, Array]:
        x, y = self.x[indices], self.y[indices]
        return x.astype(np.int64) if x.dtype.kind == "u" else x, y.astype(np.int64, copy=False)


@dataclass(frozen=True)
class Dataset:
    train: Examples
    test: Examples
    shape: tuple[int, ...]
    classes: int


class Batches:
    """A rank's shares of a job's batches; ``batch`` counts examples on all ranks."""

    def __init__(self, examples: Examples, batch: int, *, rank: int, size: int, seed: int) -> None:
        if batch < size:
            raise ValueError(f"batch must be at least the number of ranks, {size}, not {batch}")
        if not len(examples):
            raise ValueError("the data set has no examples to train on")
        if batch > (most := MOST_PASSES * len(examples)):
            raise ValueError(f"batch must be at most {most}, {MOST_PASSES} times the data set, not {batch}")
        self.examples, self.batch, self.seed = examples, batch, seed
        self.rank, self.size = rank, size

    def part(self, iteration: int, weights: Sequence[float] | None = None) -> tuple[Array, Array]:
        """Return an iteration's inputs and targets; a share by ``weights`` may be empty."""
        own = Partition.of(self.batch, self.size, weights).shard(self.rank)
        start, stop = iteration * self.batch + own.start, iteration * self.batch + own.stop
        count = len(self.examples)
        epochs = range(start // count, max(-(-stop // count), start // count + 1))
        order = np.concatenate([order_of(self.seed, epoch, count) for epoch in epochs])
        return self.examples.take(order[start - epochs.start * count : stop - epochs.start * count])


@lru_cache(maxsize=4)  # a share may straddle two epochs; threads share the cache
def order_of(seed: int, epoch: int, count: int) -> Indices:
    return np.random.default_rng([seed, epoch]).permutation(count)


def load_data(name: str, dtype: np.dtype[Any], context: int) -> Dataset:
    """Load ``digits`` (needs scikit-learn), a ``.npz`` with ``x`` (n, ...) and labels ``y`` (n,), or a text's bytes.

    ``dtype`` is for images, ``context`` bytes for a window of text. ValueError: missing, malformed or too small.
    """
    if name == "digits":
        return load_digits(dtype)
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"data {name!r} is neither a file nor a known name. Allowed: digits, FILE.npz, FILE.txt")
    return load_arrays(path, dtype) if path.suffix == ".npz" else load_text(path, context)


@lru_cache  # shared by ranks that are threads
def load_digits(dtype: np.dtype[Any]) -> Dataset:
    images, labels = read_digits()
    return from_arrays(images.reshape(-1, 8, 8).astype(dtype) / 16, labels)


def load_arrays(path: Path, dtype: np.dtype[Any]) -> Dataset:
    try:
        x, y = read_arrays(path)
        if y.ndim != 1 or y.dtype.kind not in "iu" or len(y) < 2 or y.min() < 0 or y.max() >= MOST_CLASSES:
            allowed = f"two or more labels from 0 to {MOST_CLASSES - 1}"
            raise ValueError(f"y must hold {allowed}, not {y.dtype}{list(y.shape)}")
        with np.errstate(over="ignore"):
            cast = x.astype(dtype) if x.dtype.kind in "iuf" else None
        if cast is None or x.ndim < 2 or not x.size or not np.isfinite(cast).all():
            allowed = "finite numbers (n, ...), one or more in each row"
            raise ValueError(f"x must hold {allowed}, not {x.dtype}{list(x.shape)}")
        if len(x) != len(y):
            raise ValueError(f"x and y must have the same length, not {len(x)} and {len(y)}")
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError) as error:
        raise ValueError(f"data {str(path)!r} is no good: {error}") from None
    return from_arrays(cast, y)


def read_arrays(path: Path) -> tuple[Array, Array]:
    # Parsing headers with ast fails at random in several threads ("SystemError: AST constructor
    # recursion depth mismatch", seen with Python 3.11.7).
    with READING, path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError("it is no .npz file, as numpy.savez writes it")
        file.seek(0)
        with np.load(file) as archive:
            for key in ("x", "y"):
                if key not in archive:
                    raise ValueError(f"it has no array {key!r}, but {', '.join(archive)}")
            return archive["x"], archive["y"]


def from_arrays(x: Array, y: Array) -> Dataset:
    parts = [(x[rows], y[rows].astype(np.int64)) for rows in split(len(x))]
    train, test = (Examples(*arrays, arrays) for arrays in parts)
    return Dataset(train, test, x.shape[1:], int(y.max()) + 1)


def split(count: int) -> tuple[Indices, Indices]:
    order = np.random.default_rng(SPLIT_SEED).permutation(count)
    tested = min(count - 1, max(1, round(count * TEST_SHARE)))
    return order[tested:], order[:tested]


def load_text(path: Path, context: int) -> Dataset:
    """Load a text; targets are next bytes. The last tenth is for tests, each byte once."""
    try:
        text = np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as error:
        raise ValueError(f"data {str(path)!r} cannot be read: {error}") from None
    border = len(text) - max(context + 1, round(len(text) * TEST_SHARE_OF_TEXT))
    if border < context + 1:
        raise ValueError(f"data {str(path)!r} has {len(text)} bytes; a context of {context} needs {2 * context + 2}")
    return Dataset(windows_of(text[:border], context), windows_of(text[border:], context, context), (context,), 256)


def windows_of(text: Array, context: int, stride: int = 1) -> Examples:
    windows = sliding_window_view(text, context + 1)[::stride]
    return Examples(windows[:, :-1], windows[:, 1:], (text,))


PLACE = "datasets/data/digits.csv.gz"  # a line per image: 64 points, digit


def read_digits() -> tuple[Array, Array]:
    """Read images (1797, 64) of 0 to 16, and labels, without importing scikit-learn (a second)."""
    found = find_spec("sklearn")  # imports nothing
    if found is None:
        raise ValueError("data 'digits' needs scikit-learn: pip install scikit-learn (our extra 'data')")
    for folder in found.submodule_search_locations or ():
        if (file := Path(folder) / PLACE).is_file():
            table = np.loadtxt(file, delimiter=",")
            return table[:, :-1], table[:, -1].astype(int)
    from sklearn import datasets

    images, labels = datasets.load_digits(return_X_y=True)
    return images, labels
