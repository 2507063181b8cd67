"""Write timelines to files, by their endings: FILE.json has a timeline whole."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from dear_mpi.collectives.launch.launcher import launch_of
from dear_mpi.collectives.program.user_file import entry_points_of, load_extra
from dear_mpi.reporting.files import check_ending, replacing
from dear_mpi.training.events.spans import Timeline

OWN = "json"


@dataclass
class TimelineFiles:
    """The files of a flag, by their endings. On rank 0 a call writes all that it can.

    Raises:
        ValueError: an ending is unknown, its extra lacks something, or a file cannot be written.
    """

    flag: str
    paths: Sequence[Path]
    timeline: Timeline | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        extras = entry_points_of("timelines")
        endings = dict.fromkeys([OWN, *sorted(extras)])
        for path in self.paths:
            check_ending(self.flag, path, [f".{each}" for each in endings])
        if launch_of(os.environ).rank == 0:  # others load no library that draws
            names = [path.suffix.lower().removeprefix(".") for path in self.paths]
            self.writers = [load_extra("timelines", each) if each in extras else write_saved for each in names]

    def __call__(self, timeline: Timeline) -> None:
        self.timeline, complaints = timeline, []
        for path, write in zip(self.paths, self.writers, strict=True):
            try:
                write(self.flag, path, timeline)
            except ValueError as error:
                complaints.append(str(error))
        if complaints:
            raise ValueError("; ".join(complaints))


def saved(timeline: Timeline) -> dict[str, Any]:
    return {"recorded": to_builtins(timeline, enc_hook=list)}


def write_saved(flag: str, path: Path, timeline: Timeline) -> None:
    with replacing(flag, path) as file:
        file.write_text(json.dumps(saved(timeline)) + "\n")
