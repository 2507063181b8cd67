"""What is looked up by number must be there: NumPy takes -1 for the last row, and goes on."""

from dear_mpi.kernels.array import Array, library_of


def check_indices(what: str, x: Array, count: int) -> None:
    """See that x holds whole numbers from 0 to ``count`` - 1.

    An array on a GPU is not looked into, because the host would wait for it. Data sets are checked when they are read.

    Raises:
        ValueError: it holds others.
    """
    if x.dtype.kind not in "iu":
        raise ValueError(f"{what} must be whole numbers, not of type {x.dtype}")
    if library_of(x) == "numpy" and x.size and not 0 <= x.min() <= x.max() < count:
        raise ValueError(f"{what} must be from 0 to {count - 1}, not from {x.min()} to {x.max()}")
