"""Write the lanes of measured runs for ``compare --html``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dear_mpi.contrib.pages.schedules import write_schedules
from dear_mpi.training.log.spans import Timeline


def write_measured(flag: str, path: Path, found: tuple[Sequence[Mapping[str, Any]], Timeline | None]) -> None:
    rows, timeline = found
    if timeline is None:
        raise ValueError(f"{flag}: there is no page of all ranks, because their clocks cannot be compared")
    write_schedules(flag, path, timeline, [{**row, "iteration_s": row["median_s"]} for row in rows])
