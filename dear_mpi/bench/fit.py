"""Fit the costs of a network to measured rows."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dear_mpi.bench.machine_file import Row
from dear_mpi.collectives.algorithms.registry import programs, runner_of
from dear_mpi.collectives.program.cost import Network, cost
from dear_mpi.collectives.program.hosts import Rates
from dear_mpi.collectives.program.program import Program
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import TYPES

UNKNOWNS = ("alpha", "beta", "gamma", "o")
FIRST = (1e-6, 1e-9, 1e-10, 1e-7)  # s, s/byte, s/byte, s
ROUNDS = 3
MOST_RANKS = 64  # ranks: a replay of more takes seconds
STEP = 1e-4  # relative
ALIKE = 0.02  # least distance of a separable column from the span of earlier ones


@dataclass(frozen=True)
class Fit:
    network: Network
    told: tuple[str, ...]  # costs that the rows determine; others are 0
    residual: float  # median relative error
    rows: int


def programs_of(row: Row, hosts: Sequence[int] = (), rates: Rates | None = None) -> list[Program]:
    """Return the message programs that a row ran, if any."""
    if runner_of(row.chosen) != "messages":
        return []
    pieces = -(-row.bytes // row.segment_bytes)
    try:
        return programs(row.chosen, row.collective, row.ranks, hosts=hosts, rates=rates, pieces=pieces)
    except ValueError:
        return []


def time_s(row: Row, written: Sequence[Program], network: Network) -> float:
    return cost(written, row.count, TYPES[row.dtype].itemsize, network).time_s


def gradient(row: Row, written: Sequence[Program], point: Array, *, relative: float = STEP) -> list[float]:
    """Return messages, bytes, combined bytes and handlings (o) on the longest path."""
    here = time_s(row, written, Network(*point))
    steps = [(value or first) * relative for value, first in zip(point, FIRST, strict=True)]
    moved = point + np.diag(steps)
    return [(time_s(row, written, Network(*there)) - here) / step for there, step in zip(moved, steps, strict=True)]


def fit_network(
    rows: Sequence[Row], hosts: Sequence[int] = (), rates: Rates | None = None, *, explains: str = "p50_us"
) -> Fit | None:
    """Fit alpha, beta, gamma and o to the column ``explains``; None: too many ranks, or fewer than two sizes.

    The longest path depends on these. So iterate: take coefficients at the estimate (exact differences), and solve for
    the least squares of relative errors without negative costs. A cost that rows cannot separate from earlier ones
    stays 0.
    """
    known = [(row, ran) for row in rows if 1 < row.ranks <= MOST_RANKS and (ran := programs_of(row, hosts, rates))]
    if len({row.bytes for row, _ in known}) < 2:
        return None
    measured_s = np.array([getattr(row, explains) for row, _ in known]) * 1e-6
    point, told = np.array(FIRST), list[int]()
    for _ in range(ROUNDS):
        relative = np.array([gradient(row, written, point) for row, written in known]) / measured_s[:, None]
        told = distinct(relative)
        point = non_negative(relative, told)
    network = Network(*point.tolist())
    errors = np.abs(np.array([time_s(row, written, network) for row, written in known]) / measured_s - 1)
    return Fit(network, tuple(UNKNOWNS[each] for each in told), float(np.median(errors)), len(known))


def distinct(relative: Array) -> list[int]:
    """Return the columns that are no mixtures of earlier ones; alpha and beta always are."""
    kept = [0, 1]
    for column in range(2, relative.shape[1]):
        others, new = relative[:, kept], relative[:, column]
        mixture = others @ np.linalg.lstsq(others, new, rcond=None)[0]
        if np.linalg.norm(new - mixture) > ALIKE * np.linalg.norm(new):
            kept.append(column)
    return kept


def non_negative(relative: Array, unknowns: Sequence[int]) -> Array:
    """Solve the least squares of ``relative @ point - 1``: the best subset without negatives."""
    best, error = np.zeros(relative.shape[1]), np.inf
    scale = np.maximum(np.linalg.norm(relative, axis=0), 1e-300)
    for size in range(1, len(unknowns) + 1):
        for chosen in map(list, itertools.combinations(unknowns, size)):
            part = (relative / scale)[:, chosen]
            values = np.linalg.lstsq(part, np.ones(len(part)), rcond=None)[0]
            missed = float(np.linalg.norm(part @ values - 1))
            if (values >= 0).all() and missed < error:
                best, error = np.zeros_like(best), missed
                best[chosen] = values / scale[chosen]
    return best
