"""Run ``dear-mpi timeline``."""

from pathlib import Path

from dear_mpi.cli.files import check_files, timeline_writer, try_files, written_by
from dear_mpi.cli.flags import Flags, argument, shared
from dear_mpi.cli.run import with_flags
from dear_mpi.reporting.terminal import console
from dear_mpi.see.timeline.trace import clock_of, missing, put_together

FILES = "Files of single ranks, which --timeline of train and compare writes when a run fails, stalls or has no clock."
FLAGS = argument("files", list[str], FILES, "FILE.rank0.json...") | shared("timeline")


@with_flags(FLAGS, alone="timeline", timeline="timeline.json")
def timeline(flags: Flags) -> None:
    """Example: dear-mpi timeline FILE.rank*.json --timeline FILE.json,FILE.png"""
    written = written_by(flags)
    check_files({"FILE": flags["files"]}, written)
    try_files(written)
    show = timeline_writer(flags)
    found = put_together(flags["files"])
    assert show is not None, "the flag has a default"
    show(found)
    screen = console()
    files = ", ".join(str(Path(path)) for _, path in written)
    for line in (f"{files}; clock: {clock_of(found)}", missing(found)):
        if line:
            screen.print(line, markup=False, soft_wrap=True)
