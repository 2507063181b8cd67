"""How fast the ranks compute: all alike, one of them slower, or each a little different every time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["Pace", "parse_jitter", "parse_straggler", "share"]


class Pace:
    """From the nominal seconds of a layer to those that it takes, a number or a vector over the ranks.

    Args:
        straggler: a rank, and how many times as long it takes.
        jitter: the standard deviation of the logarithm of the time of a layer, drawn for each rank and layer anew; the
            median stays what it is.
        seed: fixes what is drawn.

    >>> Pace(2)(1.0), Pace(2, straggler=(1, 1.5))(2.0)
    (1.0, array([2., 3.]))
    """

    def __init__(
        self, ranks: int, *, straggler: tuple[int, float] | None = None, jitter: float = 0.0, seed: int = 0
    ) -> None:
        self.alike = straggler is None and not jitter
        self.factors, self.jitter, self.rng = np.ones(ranks), jitter, np.random.default_rng(seed)
        if straggler is not None:
            self.factors[straggler[0]] = straggler[1]

    def __call__(self, seconds: float) -> Any:
        if self.alike:
            return seconds
        drawn = np.exp(self.jitter * self.rng.standard_normal(self.factors.size)) if self.jitter else 1.0
        return seconds * self.factors * drawn


def parse_straggler(text: str, ranks: int) -> tuple[int, float]:
    """A slow rank, as ``RANK:FACTOR``.

    Raises:
        ValueError: it cannot be read, there is no such rank, or the factor is not above zero.

    >>> parse_straggler("3:1.5", 4)
    (3, 1.5)
    """
    rank, _, factor = text.partition(":")
    try:
        found = int(rank), float(factor)
    except ValueError:
        raise ValueError(f"straggler {text!r} cannot be read: write it like 3:1.5, a rank and a factor") from None
    if not 0 <= found[0] < ranks:
        raise ValueError(f"straggler must be a rank of 0..{ranks - 1}, not {found[0]}")
    if not 0 < found[1] < math.inf:
        raise ValueError(f"the factor of the straggler must be above zero, not {factor}")
    return found


def parse_jitter(text: str) -> float:
    """A share, as ``5%`` or ``0.05``.

    Raises:
        ValueError: it cannot be read, or is below zero.

    >>> parse_jitter("5%"), parse_jitter("0.05")
    (0.05, 0.05)
    """
    return share("jitter", text)


def share(name: str, text: str) -> float:
    """A number, or a percentage.

    Raises:
        ValueError: it cannot be read, or is below zero.
    """
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise ValueError(f"{name} {text!r} cannot be read: write it like 5%") from None
    if not 0 <= found < math.inf:
        raise ValueError(f"{name} must not be below zero, not {text}")
    return found
