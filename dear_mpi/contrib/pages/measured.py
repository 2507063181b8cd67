"""Write the lanes of measured runs for ``compare --html``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dear_mpi.contrib.pages.schedules import write_schedules
from dear_mpi.training.log.spans import Timeline
from dear_mpi.training.recorder import Show


@dataclass
class Measured:
    """Keep the timeline for a page, on rank 0, and pass it on to ``--timeline``, if given."""

    flag: str
    page: Path
    files: Show | None
    timeline: Timeline | None = None

    def __call__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        if self.files is not None:
            self.files(timeline)

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        assert self.timeline is not None, "the comparison has shown it"
        measured = [{**row, "iteration_s": row["median_s"]} for row in rows]
        write_schedules(self.flag, self.page, self.timeline, measured)
