"""The orthogonal matrix nearest to a matrix, nearly: what Muon makes of its momentum.

    G = U S V^T  ->  U S' V^T, where all of S' are between 0.7 and 1.2, or so: each direction counts alike

Each step does X = a X + (b A + c A A) X with A = X X^T, which takes each singular value s to a s + b s^3 + c s^5 and
leaves U and V alone. The coefficients make small ones grow as fast as they can (by 3.4 a step), and not end at 1.

Source: Jordan, Muon, 2024, github.com/KellerJordan/Muon, which computes in bf16; here it is the type of the matrix.
"""

from __future__ import annotations

import math

import numpy as np

from dear_mpi.kernels.array import Array

A, B, C = 3.4445, -4.7750, 2.0315
STEPS = 5
EPSILON = 1e-7  # beside the norm: zeros stay zeros


def is_matrix(shape: tuple[int, ...]) -> bool:
    """Whether a tensor, outputs first, is a matrix, or the kernel of a convolution, which is one as (outputs, rest)."""
    return len(shape) in (2, 4) and math.prod(shape) > 0


def orthogonalised(matrix: Array, steps: int = STEPS) -> Array:
    """A new array, whose smaller side is multiplied with itself: (4 max min^2 + 2 min^3) flops a step.

    >>> np.linalg.svd(orthogonalised(np.diag([9.0, 5.0, 1.0])), compute_uv=False).round(1)
    array([0.9, 0.8, 0.7])
    """
    tall = matrix.shape[0] > matrix.shape[1]
    x = np.ascontiguousarray(matrix.T if tall else matrix)
    x = x / x.dtype.type(math.sqrt(np.square(x, dtype=np.float64).sum()) + EPSILON)
    for _ in range(steps):
        gram = x @ x.T
        x = x * A + (gram * B + (gram @ gram) * C) @ x
    found: Array = x.T if tall else x
    return found
