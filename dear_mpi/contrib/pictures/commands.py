from pathlib import Path

from dear_mpi.bench.saved import read_runs
from dear_mpi.cli.flags import Flags, argument, check_files, flag, shared, timeline_writer, try_files, written_by
from dear_mpi.cli.run import with_flags
from dear_mpi.contrib.look import read_timeline
from dear_mpi.contrib.pictures import ENDINGS, PLOT_HELP
from dear_mpi.contrib.pictures.measured import write_runs
from dear_mpi.reporting.files import check_ending

FILES = "Files of dear-mpi bench --json; the lines of each are named after its file."
PLOT = argument("files", list[str], FILES, "FILE.json...") | flag("plot", Path, PLOT_HELP, metavar="FILE")
TIMELINE = argument("file", str, "FILE.json of --timeline.", "FILE.json") | shared("timeline")


@with_flags(PLOT, alone="plot", plot=Path("plot.png"))
def plot(flags: Flags) -> None:
    """Example: dear-mpi plot before.json after.json --plot both.svg"""
    written = [("--plot", flags["plot"])]
    check_ending(*written[0], ENDINGS)
    check_files({"FILE": flags["files"]}, written)
    try_files(written)
    write_runs("--plot", flags["plot"], *read_runs("FILE", flags["files"]))


@with_flags(TIMELINE, alone="timeline", timeline="timeline.png")
def timeline(flags: Flags) -> None:
    """Example: dear-mpi timeline FILE.json --timeline FILE.svg"""
    written, show = written_by(flags), timeline_writer(flags)
    check_files({"FILE": [flags["file"]]}, written)
    try_files(written)
    assert show is not None, "the flag has a default"
    show(read_timeline(flags["file"]))
