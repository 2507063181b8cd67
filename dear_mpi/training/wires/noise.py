"""Sums over the air: all ranks transmit at once, waves add up on the way, and the receiver hears noise as well.

Here gradients travel as they are, and the owner of a sum adds the noise, normal with a given share of the root mean
square of its shard. So all ranks get the same sum, as if one of them had received it and sent it on without errors.
A shared seed draws it, anew for each shard and update: a run can be repeated.

Source: Amiri and Gündüz, arXiv 1901.00844; Hellström et al., Wireless for Machine Learning, arXiv 2008.13492.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.dtypes import compute_dtype

SEED = 20211209


@dataclass(frozen=True)
class Noise:
    """Normal noise of a share of the root mean square; what is not finite makes all of it NaN."""

    share: float
    add_s: float = 15e-9  # of a core, for an element

    def add(self, x: Array, filled: Array, draw: tuple[int, ...]) -> None:
        """Add it to those elements of a shard that are filled; the same wherever ``draw`` is the same."""
        xp: Any = array_module(x)
        given = x.astype(compute_dtype(x.dtype))
        size = self.share * xp.sqrt((given * given).sum() / max(1, int(filled.sum())))
        drawn = np.random.default_rng([SEED, *draw]).standard_normal(x.size, np.float32) * filled
        x[...] = given + size * xp.asarray(drawn)
