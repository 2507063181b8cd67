"""Write a timeline into files, by their endings: .json for Perfetto, or a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dear_mpi.reporting.files import check_writable
from dear_mpi.see.figure import check_figure, write_figure
from dear_mpi.see.timeline.picture import draw_timeline
from dear_mpi.see.timeline.trace import write_trace
from dear_mpi.training.log.spans import Timeline

__all__ = ["check_endings", "check_timeline", "write_timeline"]

TRACE, PICTURES = ".json", (".png", ".svg", ".pdf")


def check_endings(flag: str, paths: Sequence[Path]) -> None:
    """See that each ending tells what to write; ``flag`` is how the user named the files.

    Raises:
        ValueError: one does not, or a file is there twice.
    """
    for path in paths:
        if path.suffix not in (TRACE, *PICTURES):
            raise ValueError(f"{flag} {str(path)!r} must end in {TRACE}, for Perfetto, or in {', '.join(PICTURES)}")
    if len({path.resolve() for path in paths}) < len(paths):
        raise ValueError(f"{flag} must name different files, not {','.join(map(str, paths))!r}")


def check_timeline(flag: str, paths: Sequence[Path]) -> None:
    """See that the files can be written, before the work.

    Raises:
        ValueError: one cannot, or matplotlib is missing.
    """
    for path in paths:
        (check_writable if path.suffix == TRACE else check_figure)(flag, path)


def write_timeline(flag: str, paths: Sequence[Path], timeline: Timeline) -> None:
    """Write them all.

    Raises:
        ValueError: one cannot be written.
    """
    for path in paths:
        if path.suffix == TRACE:
            write_trace(flag, path, timeline)
        else:
            write_figure(flag, path, draw_timeline(timeline))
