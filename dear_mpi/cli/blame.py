"""The command ``dear-mpi blame``."""

from pathlib import Path

from dear_mpi.cli.files import check_files, try_files, written_by
from dear_mpi.cli.flags import Flags, argument, flag, shared
from dear_mpi.cli.run import with_flags, write_json
from dear_mpi.reporting.terminal import console
from dear_mpi.see.blame import show_blame
from dear_mpi.see.timeline.read import read_timeline
from dear_mpi.training.blame.blamed import BlameError
from dear_mpi.training.blame.blamed import blame as blame_run
from dear_mpi.training.blame.by_profile import check_fits, usual_of
from dear_mpi.training.blame.causes import Usual
from dear_mpi.training.blame.said import as_data
from dear_mpi.training.log.spans import Timeline
from dear_mpi.training.profiles.profile import read_profile

FILE = "A timeline of all ranks: FILE.json of train --blame --timeline FILE.json, which keeps 20 iterations."
PROFILE = "What layers usually take: FILE of train --profile, of another run."
FLAGS = argument("file", str, FILE, "FILE.json") | flag("profile", Path | None, PROFILE, metavar="FILE")


@with_flags(FLAGS | shared("json_file"), alone="blame")
def blame(flags: Flags) -> None:
    """Example: dear-mpi blame FILE.json --profile FILE"""
    profile = flags.get("profile")
    read = {"FILE": [flags["file"]], "--profile": [str(profile)] if profile else []}
    check_files(read, written_by(flags))
    try_files(written_by(flags))
    timeline, usual_s = read_timeline(flags["file"]), None
    if profile is not None:
        usual_s = usual_by(profile, timeline)
    rows, screen = [], console()
    for run in timeline.runs:
        try:
            blamed = blame_run(run, usual_s, f"the profile {profile}")
        except BlameError as error:
            raise BlameError(f"{flags['file']!r}: {error}") from None
        found = as_data(blamed, str(timeline.facts.get("transport", "")))
        rows.append({"run": run.name, "blame": found})
        if len(rows) > 1:
            screen.print(run.name, markup=False)
        show_blame(screen, found)
    write_json(rows[0] if len(rows) == 1 else rows, flags.get("json_file"))


def usual_by(path: Path, timeline: Timeline) -> Usual:
    """Seconds of layers, from the profile in a file; ValueError if it is of something else than the timeline."""
    profile = read_profile(path)
    try:
        for run in timeline.runs:
            check_fits(profile, run, timeline.facts)
    except ValueError as error:
        raise ValueError(f"--profile {str(path)!r} {error}") from None
    return usual_of(profile)
