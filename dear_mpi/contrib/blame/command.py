"""Define the command ``dear-mpi blame``; the usual layer times can come from another run's profile."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dear_mpi.cli.files import check_files, try_files, written_by
from dear_mpi.cli.flags import Flags, argument, flag, shared
from dear_mpi.cli.run import with_flags, write_json
from dear_mpi.contrib.blame.blamed import BlameError
from dear_mpi.contrib.blame.blamed import blame as blame_run
from dear_mpi.contrib.blame.causes import Usual, layer_of
from dear_mpi.contrib.blame.output import as_data, show_blame
from dear_mpi.reporting.terminal import console
from dear_mpi.reporting.units import plural
from dear_mpi.see.timeline import read_timeline
from dear_mpi.training.profile import Profile, read_profile
from dear_mpi.training.spans import COMPUTE, Run, Timeline

FILE = "A timeline of all ranks: FILE.json of train --blame --timeline FILE.json, which keeps 20 iterations."
PROFILE = "What layers usually take: FILE of train --profile, of another run."
FLAGS = argument("file", str, FILE, "FILE.json") | flag("profile", Path | None, PROFILE, metavar="FILE")


@with_flags(FLAGS | shared("json_file"), alone="blame")
def blame(flags: Flags) -> None:
    """Example: dear-mpi blame FILE.json --profile FILE"""
    profile = flags.get("profile")
    read = {"FILE": [flags["file"]], "--profile": [str(profile)] if profile else []}
    check_files(read, written_by(flags, "profile"))
    try_files(written_by(flags, "profile"))
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
    """Read the seconds of layers from a profile. Raises ValueError if it does not match the timeline."""
    profile = read_profile(path)
    try:
        for run in timeline.runs:
            check_fits(profile, run, timeline.facts)
    except ValueError as error:
        raise ValueError(f"--profile {str(path)!r} {error}") from None
    return usual_of(profile)


def usual_of(profile: Profile) -> Usual:
    """Return the seconds of a profile's layers, in both passes."""
    found = Usual()
    for use in profile.uses:
        for passed, seconds in (("forward", use.forward_s), ("backward", use.backward_s)):
            found[passed, use.name] = found.get((passed, use.name), 0.0) + seconds
    return found


def check_fits(profile: Profile, run: Run, facts: Mapping[str, Any]) -> None:
    """Raise ValueError if a profile and a run differ in model, layers, or examples per rank.

    Models and examples are compared as far as the facts of the run's timeline contain them.
    """
    model, batch = facts.get("model", profile.model), facts.get("batch", profile.batch)
    alike = batch is None or profile.batch is None or batch * profile.ranks == profile.batch * run.size
    if model != profile.model or not alike:
        known = f", batch {facts['batch']}" if "batch" in facts else ""
        raise ValueError(f"is a {profile}, and the run is of {model}, {plural(run.size, 'rank')}{known}")
    ran, measured = layers_in(run), {use.name for use in profile.uses}
    if lacking := ran ^ measured:
        whose = "the run has" if min(lacking) in ran else "the profile has"
        raise ValueError(f"is a {profile}, of other layers than the run: only {whose} {min(lacking)!r}")


def layers_in(run: Run) -> set[str]:
    spans = (span for rank in run.ranks for span in rank.spans if span.lane == COMPUTE)
    return {of[1] for span in spans if (of := layer_of(span.name))}
