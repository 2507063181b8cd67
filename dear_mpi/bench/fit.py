"""The network that explains what was measured: alpha, beta and gamma from rows of algorithms that have programs.

The time of a program, ``cost``, is a sum of these three along its longest path; which path that is depends on them.
So: take the coefficients at the current estimate (by differences, which are exact on such a path), solve for the
least squares of relative errors with nothing below zero, and repeat.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dear_mpi.bench.case import Row
from dear_mpi.collectives.algorithms.registry import programs, runner_of
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.collectives.program.program import Program
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import DTYPES

__all__ = ["Fit", "fit_network", "predicted_us"]

FIRST = (1e-6, 1e-9, 1e-10)  # s, s/byte, s/byte
ROUNDS = 3
MOST_RANKS = 64  # a replay of all ranks takes seconds beyond
STEP = 1e-4  # relative
ALIKE = 0.02  # how far gamma's column must lie outside the span of the others, to tell it from beta


@dataclass(frozen=True)
class Fit:
    """The network that fits so many rows."""

    network: Network
    gamma_told: bool  # False where rows do not tell gamma from beta: then beta has both and gamma is 0
    residual: float  # the median over rows of the relative error
    rows: int


def programs_of(row: Row, hosts: Sequence[int] = ()) -> list[Program]:
    """What this row ran on these hosts (on one if not given), if it was programs by messages."""
    if runner_of(row.chosen) != "messages":
        return []
    pieces = -(-row.bytes // row.segment_bytes)
    try:
        return programs(row.chosen, row.collective, row.ranks, hosts=hosts, pieces=pieces)
    except ValueError:
        return []


def time_s(row: Row, written: Sequence[Program], network: Network) -> float:
    return cost(written, row.count, DTYPES[row.dtype].itemsize, network).time_s


def gradient(row: Row, written: Sequence[Program], point: Array) -> list[float]:
    """How often alpha, and how many bytes of beta and gamma, are on the longest path."""
    here = time_s(row, written, Network(*point))
    steps = [value * STEP or first * STEP for value, first in zip(point, FIRST, strict=True)]
    moved = point + np.diag(steps)
    return [(time_s(row, written, Network(*there)) - here) / step for there, step in zip(moved, steps, strict=True)]


def fit_network(rows: Sequence[Row], hosts: Sequence[int] = ()) -> Fit | None:
    """The network of these rows; None where fewer than two sizes have programs, or there are too many ranks."""
    known = [(row, ran) for row in rows if 1 < row.ranks <= MOST_RANKS and (ran := programs_of(row, hosts))]
    if len({row.bytes for row, _ in known}) < 2:
        return None
    measured_s = np.array([row.p50_us for row, _ in known]) * 1e-6
    point, told = np.array(FIRST), True
    for _ in range(ROUNDS):
        relative = np.array([gradient(row, written, point) for row, written in known]) / measured_s[:, None]
        told = distinct(relative)
        point = non_negative(relative, 3 if told else 2)
    network = Network(*point.tolist())
    errors = np.abs(np.array([time_s(row, written, network) for row, written in known]) / measured_s - 1)
    return Fit(network, told, float(np.median(errors)), len(known))


def distinct(relative: Array) -> bool:
    """Whether gamma's column is something else than a mixture of the others'."""
    others, gamma = relative[:, :2], relative[:, 2]
    mixture = others @ np.linalg.lstsq(others, gamma, rcond=None)[0]
    return bool(np.linalg.norm(gamma - mixture) > ALIKE * np.linalg.norm(gamma))


def non_negative(relative: Array, unknowns: int) -> Array:
    """Least squares of ``relative @ point - 1`` with nothing below zero: the best of all subsets of the unknowns."""
    best, error = np.zeros(3), np.inf
    scale = np.maximum(np.linalg.norm(relative, axis=0), 1e-300)
    for size in range(1, unknowns + 1):
        for chosen in map(list, itertools.combinations(range(unknowns), size)):
            part = (relative / scale)[:, chosen]
            values = np.linalg.lstsq(part, np.ones(len(part)), rcond=None)[0]
            missed = float(np.linalg.norm(part @ values - 1))
            if (values >= 0).all() and missed < error:
                best, error = np.zeros(3), missed
                best[chosen] = values / scale[chosen]
    return best


def predicted_us(row: Row, fit: Fit, hosts: Sequence[int] = ()) -> float | None:
    """What the fitted network says about a row."""
    written = programs_of(row, hosts)
    return time_s(row, written, fit.network) * 1e6 if written else None
