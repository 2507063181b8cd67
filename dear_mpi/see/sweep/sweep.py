"""The rows of a simulation, and what was varied in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array
from dear_mpi.training.schedules import BASELINE

Row = Mapping[str, Any]


class Sweep:
    """Rows with the keys of ``dear-mpi simulate --json``, one for each model, number of ranks, schedule and fusion.

    ``over`` is the schedule that speed-ups are over.
    """

    def __init__(self, rows: Sequence[Row], over: str = BASELINE) -> None:
        self.rows, self.over = rows, over
        self.models, self.ranks = self.values("model"), self.values("ranks")
        self.schedules, self.fusions = self.values("schedule"), self.values("fusion")

    def values(self, key: str) -> list[Any]:
        """The different values of a key: numbers of ranks ascending, names in the order of the rows."""
        found = list(dict.fromkeys(row[key] for row in self.rows))
        return sorted(found) if key == "ranks" else found

    def row(self, **case: Any) -> Row:
        """The first row with these values, such as ``model="synthetic:resnet50", ranks=8``."""
        return next(row for row in self.rows if all(row[key] == value for key, value in case.items()))

    def table(self, figure: str, lines: str, columns: str, **case: Any) -> Array:
        """A figure of the rows of a case: a line for each value of one key, a column for each value of another."""
        keys = [[{lines: line, columns: column} for column in self.values(columns)] for line in self.values(lines)]
        return np.array([[self.row(**case, **key)[figure] for key in line] for line in keys])
