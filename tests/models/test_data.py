"""Data: one global order for any number of ranks, and a readable error for every file that is no good."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.models import data as data_module
from dear_mpi.models.data import Batches, Examples, load_data, load_digits

RANKS = st.integers(1, 5)
SEEDS = st.integers(0, 100)


def examples(count):
    return Examples(np.arange(count)[:, None], np.arange(count), ())


def part(count, batch, rank, size, seed, iteration):
    x, y = Batches(examples(count), batch, rank=rank, size=size, seed=seed).part(iteration)
    assert x.tolist() == y[:, None].tolist(), "labels belong to their inputs"
    return y.tolist()


def batches(count, batch, size, seed, iterations):
    """The whole batch of each iteration, from the parts of all ranks; every rank goes through all iterations."""
    ranks = [Batches(examples(count), batch, rank=rank, size=size, seed=seed) for rank in range(size)]
    return [np.concatenate([rank.part(i)[1] for rank in ranks]).tolist() for i in range(iterations)]


@given(size=RANKS, batch=st.integers(5, 20), count=st.integers(1, 30), seed=SEEDS)
def test_ranks_share_one_global_batch(size, batch, count, seed):
    assert batches(count, batch, size, seed, 6) == batches(count, batch, 1, seed, 6)


@given(size=RANKS, batch=st.integers(5, 20), count=st.integers(1, 30), seed=SEEDS)
def test_every_example_once_per_epoch(size, batch, count, seed):
    """Also where a batch straddles epochs, or is larger than all the data."""
    iterations = -(-3 * count // batch)
    order = [number for whole in batches(count, batch, size, seed, iterations) for number in whole]
    assert len(order) == iterations * batch
    for begin in range(0, 3 * count, count):
        assert sorted(order[begin : begin + count]) == list(range(count))


@given(seed=SEEDS, later=st.integers(0, 12))
def test_a_part_depends_on_its_iteration_alone(seed, later):
    """Not on those that were drawn before: what is kept of past epochs is never what is wrong."""
    used = Batches(examples(7), 5, rank=1, size=2, seed=seed)
    for iteration in (4, 11, 0, later):
        assert used.part(iteration)[1].tolist() == part(7, 5, 1, 2, seed, iteration)


def test_the_seed_fixes_the_order_and_each_epoch_has_another_one():
    first, second, other = (batches(50, 50, 1, seed, 2) for seed in (1, 1, 2))
    assert first == second != other
    assert first[0] != first[1]
    assert first[0] != list(range(50))


@pytest.mark.parametrize(("count", "batch", "size", "message"), [
    (9, 2, 3, "batch must be at least the number of ranks, 3, not 2"),
    (0, 4, 2, "the data set has no examples to train on"),
    (9, 9001, 2, "batch must be at most 9000, 1000 times the data set, not 9001"),
])  # fmt: skip
def test_errors_of_batches(count, batch, size, message):
    with pytest.raises(ValueError, match=message):
        Batches(examples(count), batch, rank=0, size=size, seed=0)


@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
def test_digits(dtype):
    data = load_data("digits", DTYPES[dtype], 0)
    parts = [data_part.take(np.arange(len(data_part))) for data_part in (data.train, data.test)]
    assert sum(len(y) for _, y in parts) == 1797
    assert (data.shape, data.classes) == ((8, 8), 10)
    for x, y in parts:
        assert (x.dtype, x.shape) == (DTYPES[dtype], (len(y), 8, 8))
        assert (x.min(), x.max(), set(y.tolist())) == (0, 1, set(range(10)))


def test_without_scikit_learn(monkeypatch):
    load_digits.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ValueError, match=r"data 'digits' needs scikit-learn: pip install scikit-learn"):
        load_data("digits", DTYPES["fp32"], 0)


@pytest.mark.parametrize("place", [data_module.PLACE, "not here"])
def test_digits_are_those_that_scikit_learn_gives(place, monkeypatch):
    datasets = pytest.importorskip("sklearn.datasets")
    monkeypatch.setattr(data_module, "PLACE", place)
    for found, theirs in zip(data_module.read_digits(), datasets.load_digits(return_X_y=True), strict=True):
        assert (found.dtype, found.tolist()) == (theirs.dtype, theirs.tolist())


X, Y = np.arange(60.0).reshape(10, 2, 3), np.arange(10) % 4


def load(path):
    return load_data(str(path), DTYPES["fp32"], 8)


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.float64])
def test_arrays_of_a_user(tmp_path, kind):
    np.savez(tmp_path / "mine.npz", x=X.astype(kind), y=Y.astype(np.uint8))
    data = load(tmp_path / "mine.npz")
    assert (data.shape, data.classes) == ((2, 3), 4)
    found = {}
    for data_part in (data.train, data.test):
        x, y = data_part.take(np.arange(len(data_part)))
        assert (x.dtype, y.dtype) == (np.float32, np.int64)
        found |= {int(row[0, 0]) // 6: (row.tolist(), label) for row, label in zip(x, y, strict=True)}
    assert found == {number: (X[number].tolist(), Y[number]) for number in range(10)}


def broken(x, position, value):
    x = x.copy()
    x[position] = value
    return x


FINITE = "x must hold finite numbers (n, ...), one or more in each row, not"
BAD_ARRAYS = {
    "no y": ({"x": X}, "it has no array 'y', but x"),
    "no x": ({"z": X, "y": Y}, "it has no array 'x', but z, y"),
    "lengths": ({"x": X, "y": Y[:9]}, "x and y must have the same length, not 10 and 9"),
    "y float": ({"x": X, "y": Y / 1}, "y must hold two or more labels from 0 to 99999, not float64[10]"),
    "y negative": ({"x": X, "y": broken(Y, 3, -1)}, "y must hold two or more labels from 0 to 99999, not int64[10]"),
    "y of two axes": ({"x": X, "y": Y[:, None]}, "y must hold two or more labels from 0 to 99999, not int64[10, 1]"),
    "one example": ({"x": X[:1], "y": Y[:1]}, "y must hold two or more labels from 0 to 99999, not int64[1]"),
    "x with nan": ({"x": broken(X, (9, 1, 2), np.nan), "y": Y}, f"{FINITE} float64[10"),
    "x with inf": ({"x": broken(X, (0, 0, 0), -np.inf), "y": Y}, f"{FINITE} float64[10"),
    "x of one axis": ({"x": X[:, 0, 0], "y": Y}, f"{FINITE} float64[10]"),
    "x of text": ({"x": X.astype(str), "y": Y}, f"{FINITE} <U32[10, 2, 3]"),
    "x of pickles": ({"x": X.astype(object), "y": Y}, "Object arrays cannot be loaded"),
    "y of pickles": ({"x": X, "y": Y.astype(object)}, "Object arrays cannot be loaded"),
    "x of no axis": ({"x": np.array(3.0), "y": Y}, f"{FINITE} float64[]"),
    "y of no axis": ({"x": X, "y": np.array(3)}, "y must hold two or more labels from 0 to 99999, not int64[]"),
    "x complex": ({"x": X + 1j, "y": Y}, f"{FINITE} complex128[10"),
    "x beyond fp32": ({"x": X * 1e300, "y": Y}, f"{FINITE} float64[10"),
}


def check_refused(path, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011 (the message is compared as it is, not as a pattern)
        load(path)
    assert str(error.value).startswith(f"data {str(path)!r}")
    assert message in str(error.value)


@pytest.mark.parametrize("what", BAD_ARRAYS)
def test_arrays_that_are_refused(tmp_path, what):
    arrays, message = BAD_ARRAYS[what]
    np.savez(tmp_path / "bad.npz", **arrays)
    check_refused(tmp_path / "bad.npz", message)


@pytest.mark.parametrize("name", ["missing.npz", "missing.txt", "digit", ""])
def test_missing_files(tmp_path, name):
    check_refused(tmp_path / name, "is neither a file nor a known name. Allowed: digits, FILE.npz, FILE.txt")


def text_of(tmp_path, length):
    """A file whose byte at each place is that place."""
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(length)))
    return path


@pytest.mark.parametrize("length", [18, 100, 256])
def test_text(tmp_path, length):
    data = load(text_of(tmp_path, length))
    assert (data.shape, data.classes) == ((8,), 256)
    seen = []
    for data_part in (data.train, data.test):
        x, y = data_part.take(np.arange(len(data_part)))
        assert x.shape == y.shape == (len(data_part), 8)
        np.testing.assert_array_equal(y[:, :-1], x[:, 1:])
        np.testing.assert_array_equal(y, x + 1)
        seen.append({*x.ravel().tolist(), *y.ravel().tolist()})
    assert not seen[0] & seen[1], "train and test must not overlap"
    unused = set(range(length)) - seen[0] - seen[1]
    assert unused == set(range(length - len(unused), length)), "only the end of the text may be left out"
    assert len(unused) < 8, "it is less than a window"
    assert len(data.test) == (len(seen[1]) - 1) // 8, "each byte is predicted once"


def test_text_that_is_too_short(tmp_path):
    check_refused(text_of(tmp_path, 17), "has 17 bytes; a context of 8 needs 18")
