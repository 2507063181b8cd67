"""Run ``dear-mpi plot``; ``bench --plot`` shares its parts."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dear_mpi.bench.saved import Run, read_runs
from dear_mpi.cli.files import check_files, try_files, written_by
from dear_mpi.cli.flags import Flags, argument, shared
from dear_mpi.cli.run import with_flags
from dear_mpi.see.figure import write_figure
from dear_mpi.see.measured import draw_runs

FILES = "Files of dear-mpi bench --json; the lines of each are named after its file."
FLAGS = argument("files", list[str], FILES, "FILE.json...") | shared("plot")


@with_flags(FLAGS, alone="plot", plot=Path("plot.png"))
def plot(flags: Flags) -> None:
    """Train, compare and simulate draw what they find themselves, with their own --plot.

    Example: dear-mpi plot before.json after.json --plot both.svg
    """
    written = written_by(flags)
    check_files({"FILE": flags["files"]}, written)
    try_files(written)
    write_plot(flags["plot"], read_runs("FILE", flags["files"]))


def write_plot(path: Path, runs: Sequence[Run]) -> None:
    write_figure("--plot", path, draw_runs([row for run in runs for row in drawn(run)]))


def drawn(run: Run) -> list[dict[str, Any]]:
    """Return a run's rows for the picture, with the run's name."""
    return [asdict(row) | {"run": Path(run.name).stem} for row in run.rows]
