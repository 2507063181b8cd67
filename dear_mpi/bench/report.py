"""What a run of the benchmark gives: its rows, and what is to be said beside them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from dear_mpi.bench.fit import Fit
from dear_mpi.bench.inside.where import Where
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.timing.loops import OwnCost


@dataclass(frozen=True)
class Report:
    """``names`` are the contestants that were asked for, ``fits`` the networks that explain the rows, by number of
    ranks. ``left_out`` says why contestants have no row: by collective, at these sizes. ``own_cost`` is that of the
    loop, and ``clock`` what is known of the clocks."""

    rows: list[Row]
    fits: dict[int, Fit | None]
    names: tuple[str, ...]
    left_out: dict[str, dict[str, list[int]]]
    where: Where = field(default_factory=Where)
    own_cost: OwnCost | None = None
    clock: dict[str, Any] | None = None
    asleep: bool = False  # whether ranks that arrived late slept until then

    def __add__(self, more: Report) -> Report:
        """With what was measured on another number of ranks."""
        left_out = {why: {**places} for why, places in self.left_out.items()}
        for why, places in more.left_out.items():
            for name, sizes in places.items():
                known = left_out.setdefault(why, {}).setdefault(name, [])
                left_out[why][name] = list(dict.fromkeys([*known, *sizes]))
        return replace(
            more,
            rows=self.rows + more.rows,
            fits=self.fits | more.fits,
            left_out=left_out,
            where=self.where + more.where,
            asleep=self.asleep or more.asleep,
        )
