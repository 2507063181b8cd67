from dear_mpi.cli.flags import Flags, argument, check_files, shared, try_files, written_by
from dear_mpi.cli.run import with_flags, write_json
from dear_mpi.contrib.blame.blamed import BlameError
from dear_mpi.contrib.blame.blamed import blame as blame_run
from dear_mpi.contrib.blame.output import as_data, show_blame
from dear_mpi.contrib.look import read_timeline
from dear_mpi.reporting.terminal import console

FILE = "A timeline of all ranks: FILE.json of train --blame --timeline FILE.json, which keeps 20 iterations."
FLAGS = argument("file", str, FILE, "FILE.json")


@with_flags(FLAGS | shared("json_file"), alone="blame")
def blame(flags: Flags) -> None:
    """Example: dear-mpi blame FILE.json"""
    check_files({"FILE": [flags["file"]]}, written_by(flags))
    try_files(written_by(flags))
    timeline, rows, screen = read_timeline(flags["file"]), [], console()
    for run in timeline.runs:
        try:
            blamed = blame_run(run)
        except BlameError as error:
            raise BlameError(f"{flags['file']!r}: {error}") from None
        found = as_data(blamed, str(timeline.facts.get("transport", "")))
        rows.append({"run": run.name, "blame": found})
        if len(rows) > 1:
            screen.print(run.name)
        show_blame(screen, found)
    write_json(rows[0] if len(rows) == 1 else rows, flags.get("json_file"))
