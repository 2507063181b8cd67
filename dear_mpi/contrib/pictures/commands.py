"""Define the commands ``plot`` and ``timeline``."""

from pathlib import Path

from dear_mpi.bench.saved import read_runs
from dear_mpi.cli.files import check_files, timeline_writer, try_files, written_by
from dear_mpi.cli.flags import Flags, argument, flag, shared
from dear_mpi.cli.run import with_flags
from dear_mpi.contrib.pictures import ENDINGS, PLOT_HELP
from dear_mpi.contrib.pictures.measured import write_runs
from dear_mpi.reporting.files import check_ending
from dear_mpi.reporting.terminal import console
from dear_mpi.reporting.units import plural
from dear_mpi.see.look import clock_of
from dear_mpi.see.timeline import put_together

FILES = "Files of dear-mpi bench --json; the lines of each are named after its file."
PLOT = argument("files", list[str], FILES, "FILE.json...") | flag("plot", Path, PLOT_HELP, metavar="FILE")
RANKS = "Files of single ranks, which --timeline of train and compare writes when a run fails, stalls or has no clock."
TIMELINE = argument("files", list[str], RANKS, "FILE.rank0.json...") | shared("timeline")


@with_flags(PLOT, alone="plot", plot=Path("plot.png"))
def plot(flags: Flags) -> None:
    """Example: dear-mpi plot before.json after.json --plot both.svg"""
    written = [("--plot", flags["plot"])]
    check_ending(*written[0], ENDINGS)
    check_files({"FILE": flags["files"]}, written)
    try_files(written)
    write_runs("--plot", flags["plot"], read_runs("FILE", flags["files"]))


@with_flags(TIMELINE, alone="timeline", timeline="timeline.json")
def timeline(flags: Flags) -> None:
    """Example: dear-mpi timeline FILE.rank*.json --timeline FILE.json,FILE.png"""
    written, show = written_by(flags), timeline_writer(flags)
    check_files({"FILE": flags["files"]}, written)
    try_files(written)
    found = put_together(flags["files"])
    assert show is not None, "the flag has a default"
    show(found)
    run, there = found.runs[0], {rank.number for rank in found.runs[0].ranks}
    lacking = [str(rank) for rank in range(run.size) if rank not in there]
    lines = [f"{', '.join(str(path) for _, path in written)}; clock: {clock_of(found)}"]
    lines += [f"{plural(len(lacking), 'rank')} of {run.size} not given: {', '.join(lacking)}"] * bool(lacking)
    console().print(*lines, sep="\n", markup=False, soft_wrap=True)
