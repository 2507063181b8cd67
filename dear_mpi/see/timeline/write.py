"""Write timeline files by their endings: .json for Perfetto, or a picture."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dear_mpi.reporting.files import replacing
from dear_mpi.see.figure import write_figure
from dear_mpi.see.timeline.picture import draw_timeline
from dear_mpi.see.timeline.trace import trace
from dear_mpi.training.log.spans import Recording, Run, Timeline

__all__ = ["TimelineFiles", "write_timeline"]

TRACE = ".json"


def write_timeline(
    flag: str, paths: Sequence[Path], timeline: Timeline, draw: Callable[[Timeline], Any] = draw_timeline
) -> None:
    """Write all files that can be written; ``draw`` makes a picture's figure.

    Raises:
        ValueError: some cannot be written; the message begins with ``flag`` and names them.
    """
    complaints = []
    for path in paths:
        try:
            if path.suffix.lower() == TRACE:
                write_trace(flag, path, trace(timeline))
            else:
                write_figure(flag, path, draw(timeline))
        except ValueError as error:
            complaints.append(str(error))
    if complaints:
        raise ValueError("; ".join(complaints))


def write_trace(flag: str, path: Path, content: Mapping[str, Any]) -> None:
    with replacing(flag, path) as file:
        file.write_text(json.dumps(content) + "\n")


@dataclass(frozen=True)
class TimelineFiles:
    """The files of a flag; ``draw`` makes a picture's figure."""

    flag: str
    paths: Sequence[Path]
    draw: Callable[[Timeline], Any] = draw_timeline

    def __call__(self, timeline: Timeline) -> None:
        write_timeline(self.flag, self.paths, timeline, self.draw)

    def write_rank(self, recordings: Sequence[Recording], facts: Mapping[str, Any]) -> Path:
        """Write this rank's recordings, by its clock, into a separate file. Returns its path."""
        path = of_rank(self.paths[0], recordings[0].rank.number)
        runs = tuple(Run(each.name, (each.rank,), each.size) for each in recordings)
        clocks = [each.aligned.as_dict() for each in recordings]
        content = trace(Timeline(live=True, runs=runs, facts={**facts, "of_rank": recordings[0].rank.number}))
        zeros = [run.begin_s for run in runs]
        content["otherData"] |= {"clocks": "of this rank alone", "own_clocks": clocks, "zeros_s": zeros}
        write_trace(self.flag, path, content)
        return path


def of_rank(path: Path, rank: int) -> Path:
    """Return the path of one rank's file.

    >>> of_rank(Path("FILE.png"), 2).name == "FILE.rank2" + TRACE
    True
    """
    return path.with_suffix(f".rank{rank}{TRACE}")
