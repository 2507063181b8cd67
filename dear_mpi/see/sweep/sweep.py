"""The rows of a simulation, and what was varied in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from dear_mpi.training.schedules import BASELINE

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Sweep:
    """Rows with the keys of ``dear-mpi simulate --json``, one for each model, number of ranks, schedule and fusion.

    ``over`` is the schedule that speed-ups are over.
    """

    rows: Sequence[Row]
    over: str = BASELINE

    @property
    def models(self) -> list[str]:
        return self.values("model")

    @property
    def ranks(self) -> list[int]:
        return sorted(self.values("ranks"))

    @property
    def schedules(self) -> list[str]:
        return self.values("schedule")

    @property
    def fusions(self) -> list[str]:
        return self.values("fusion")

    def values(self, key: str) -> list[Any]:
        """The different values of a key, in the order of the rows."""
        return list(dict.fromkeys(row[key] for row in self.rows))

    def row(self, **case: Any) -> Row:
        """The first row with these values, such as ``model="synthetic:resnet50", ranks=8``."""
        return next(row for row in self.rows if all(row[key] == value for key, value in case.items()))


def label(name: str) -> str:
    """A model, schedule or fusion as a picture has it; what is in a file, on two lines.

    >>> label("synthetic:resnet50"), label("cut:4MB"), label("folder/mine.py:Mine")
    ('resnet50', 'cut:4MB', 'mine.py:\\nMine')
    """
    return PurePath(name.removeprefix("synthetic:")).name.replace(".py:", ".py:\n")


def in_title(name: str) -> str:
    """The same on one line.

    >>> in_title("folder/mine.py:Mine")
    'mine.py:Mine'
    """
    return label(name).replace("\n", "")


def milliseconds(seconds: float) -> str:
    """Milliseconds without their unit, short enough for a cell.

    >>> milliseconds(1.2345), milliseconds(0.31234), milliseconds(4.2e-5), milliseconds(0)
    ('1234', '312.3', '0.042', '0')
    """
    in_ms = seconds * 1e3
    if in_ms < 1:
        return f"{in_ms:.2g}"
    return f"{in_ms:.1f}" if in_ms < 1000 else f"{in_ms:.0f}"
