"""The network that explains what was measured: alpha, beta, gamma and o from rows of algorithms that have programs.

The time of a program, ``cost``, is a sum of these four along its longest path; which path that is depends on them.
So: take the coefficients at the current estimate (by differences, which are exact on such a path), solve for the
least squares of relative errors with nothing below zero, and repeat.

Rows do not tell all of them apart: every message of a ring costs alpha and o, and only where a rank has several in a
step does o weigh more. A cost that the rows cannot tell from those before it is left at 0, and these have both.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from dear_mpi.bench.arrivals import delays_of
from dear_mpi.bench.machine_file import Row
from dear_mpi.collectives.algorithms.registry import programs, runner_of
from dear_mpi.collectives.program.cost import cost
from dear_mpi.collectives.program.hosts import Rates, rates_of_first
from dear_mpi.collectives.program.network import Network
from dear_mpi.collectives.program.program import Program
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import TYPES

UNKNOWNS = ("alpha", "beta", "gamma", "o")
FIRST = (1e-6, 1e-9, 1e-10, 1e-7)  # s, s/byte, s/byte, s
ROUNDS = 3
MOST_RANKS = 64  # a replay of all ranks takes seconds beyond
STEP = 1e-4  # relative
MOST_TURNS = 16  # of late arrivals that are priced for a row; each takes as long as a balanced one
ALIKE = 0.02  # how far a column must lie outside the span of those before it, to be told from them


@dataclass(frozen=True)
class Fit:
    network: Network
    told: tuple[str, ...]  # the costs that the rows tell apart; the others are 0
    residual: float  # the median over rows of the relative error
    rows: int


def programs_of(row: Row, hosts: Sequence[int] = (), rates: Rates | None = None) -> list[Program]:
    """The programs of messages that a row ran; empty if it ran something else.

    ``hosts`` and ``rates`` belong to the whole job, whose first ranks ran the row. Default: one host.
    """
    if runner_of(row.chosen) != "messages":
        return []
    pieces, rates = -(-row.bytes // row.segment_bytes), rates_of_first(row.ranks, hosts, rates)
    try:
        return programs(row.chosen, row.collective, row.ranks, hosts=hosts[: row.ranks], rates=rates, pieces=pieces)
    except ValueError:
        return []


def time_s(row: Row, written: Sequence[Program], network: Network, arrivals_s: Sequence[float] = ()) -> float:
    """The seconds of a row by the model, from the last arrival on."""
    end_s = cost(written, row.count, TYPES[row.dtype].itemsize, network, arrivals_s=arrivals_s).time_s
    return end_s - max(arrivals_s, default=0.0)


def gradient(row: Row, written: Sequence[Program], point: Array, *, relative: float = STEP) -> list[float]:
    """How often alpha and o, and how many bytes of beta and gamma, are on the longest path."""
    here = time_s(row, written, Network(*point))
    steps = [(value or first) * relative for value, first in zip(point, FIRST, strict=True)]
    moved = point + np.diag(steps)
    return [(time_s(row, written, Network(*there)) - here) / step for there, step in zip(moved, steps, strict=True)]


def fit_network(
    rows: Sequence[Row], hosts: Sequence[int] = (), rates: Rates | None = None, *, explains: str = "p50_us"
) -> Fit | None:
    """The network that explains a figure of these rows. Only balanced calls count.

    None if fewer than two sizes have programs, or there are too many ranks.
    """
    known = [
        (row, ran)
        for row in rows
        if row.is_balanced and 1 < row.ranks <= MOST_RANKS and (ran := programs_of(row, hosts, rates))
    ]
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
    """The columns that are not a mixture of earlier columns; alpha and beta always count."""
    kept = [0, 1]
    for column in range(2, relative.shape[1]):
        others, new = relative[:, kept], relative[:, column]
        mixture = others @ np.linalg.lstsq(others, new, rcond=None)[0]
        if np.linalg.norm(new - mixture) > ALIKE * np.linalg.norm(new):
            kept.append(column)
    return kept


def non_negative(relative: Array, unknowns: Sequence[int]) -> Array:
    """Least squares of ``relative @ point - 1`` with nothing below zero: the best of all subsets of the unknowns."""
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


def predicted_us(row: Row, fit: Fit, hosts: Sequence[int] = (), rates: Rates | None = None) -> float | None:
    """The median over a row's first turns, which differ in the late rank; None without a program."""
    written = programs_of(row, hosts, rates)
    if not written:
        return None
    return median(time_s(row, written, fit.network, delays_s) for delays_s in delays_of(row, MOST_TURNS)) * 1e6


def modelled(rows: Sequence[Row], hosts: Sequence[int], rates: Rates | None) -> tuple[Fit | None, list[float | None]]:
    """The network that explains the rows, and its prediction for each row."""
    fit = fit_network(rows, hosts, rates)
    return fit, [None if fit is None else predicted_us(row, fit, hosts, rates) for row in rows]
