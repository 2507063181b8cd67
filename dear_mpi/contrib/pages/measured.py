from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dear_mpi.contrib.pages.schedules import write_schedules
from dear_mpi.training.events.spans import Timeline


def write_measured(flag: str, path: Path, found: tuple[Sequence[Mapping[str, Any]], Timeline]) -> None:
    rows, timeline = found
    write_schedules(flag, path, timeline, [{**row, "iteration_s": row["median_s"]} for row in rows])
