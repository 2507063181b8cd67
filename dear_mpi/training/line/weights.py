"""Weight ranks by speed: each gets a proportional share of the batch and of the flat buffer (line).

    batch, 4 ranks of speeds 1 3 3 3    |1|  3  |  3  |  3  |      all end at the same time
    line                                |1|  3  |  3  |  3  |      owners of updates

Weights are given or measured, as examples per second in hundredths of the fastest rank's.

Source: Wen et al., Joint Parameter-and-Bandwidth Allocation for Improving the Efficiency of Partitioned Edge Learning
(PARTEL), arXiv 2003.04544: loads in proportion to speed. PARTEL also divides the band; a host's port cannot be divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from dear_mpi.collectives.program.partition import Partition
from dear_mpi.reporting.units import decimal

MEASURED = "measured"
Weights: TypeAlias = tuple[float, ...]
STEPS = 100


def parse_weights(text: str) -> Weights | str:
    """Parse comma-separated weights, or ``measured``.

    >>> parse_weights("3,1,1"), parse_weights("measured")
    ((3.0, 1.0, 1.0), 'measured')
    """
    if text == MEASURED:
        return text
    found = [decimal(item) for item in text.split(",")]
    if None in found:
        raise ValueError(f"weights must be numbers with commas between them, or {MEASURED}, not {text!r}")
    return tuple(each for each in found if each is not None)


def check_weights(given: object, ranks: int | None = None) -> None:
    if given is None or given == MEASURED:
        return
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValueError(f"weights must be a number for each rank, or {MEASURED!r}, not {given!r:.99}")
    Partition.of(0, len(given) if ranks is None else ranks, given)


def known(given: Sequence[float] | str | None, ranks: int) -> Weights | None:
    """Return the initial weights; None if all are equal, or to be measured."""
    check_weights(given, ranks)
    return None if given is None or isinstance(given, str) or len(set(given)) == 1 else tuple(map(float, given))


def measured(seconds: Sequence[float], examples: Sequence[int]) -> Weights | None:
    """Compute weights from each rank's seconds and examples; None if all are equal.

    A rank without examples or time counts as fast as the fastest.

    >>> measured([1.0, 3.0, 1.5], [8, 8, 4])
    (1.0, 0.33, 0.33)
    """
    speeds = [count / taken if taken else 0.0 for taken, count in zip(seconds, examples, strict=True)]
    most = max(speeds)
    found = tuple(max(1, round(STEPS * (speed / most if speed else 1))) / STEPS for speed in speeds)
    return found if len(set(found)) > 1 else None
