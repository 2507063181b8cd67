"""The handwritten digits of scikit-learn, read from the file that it brings.

To import scikit-learn takes a second, most of it for SciPy and pandas, and each rank would pay it. Where the file is
not in its place, as in another version, scikit-learn itself is asked.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from dear_mpi.kernels.array import Array

PLACE = "datasets/data/digits.csv.gz"  # a line for each image: 64 points, and what it shows


def read_digits() -> tuple[Array, Array]:
    """Images (1797, 64) of 0 to 16, and labels; a ValueError without scikit-learn."""
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
