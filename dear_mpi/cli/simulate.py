"""Run ``dear-mpi simulate``."""

from dear_mpi.cli.commands import typed_acts
from dear_mpi.cli.flags import (
    Flags,
    check_files,
    chosen,
    files_of,
    flags_of,
    shared,
    timeline_writer,
    try_files,
    written_by,
)
from dear_mpi.cli.run import with_flags, write_json
from dear_mpi.reporting.files import aside
from dear_mpi.reporting.terminal import bar
from dear_mpi.simulate.settings import MODEL, Settings
from dear_mpi.simulate.sweep import simulate as run_simulation
from dear_mpi.simulate.table import show_simulation, timeline_of

FLAGS = flags_of(Settings) | shared("timeline", "json_file")


@with_flags(FLAGS, alone="simulate")
def simulate(flags: Flags) -> None:
    """
    Example: dear-mpi simulate --model synthetic:bert_base --ranks 16,64 --network 100gbit,5us --schedules wfbp,dear
    """
    json_file = flags.get("json_file")
    written, timeline = written_by(flags, "profile"), timeline_writer(flags)
    acts = typed_acts("simulate", flags, FLAGS)
    try_files(written)
    given = chosen(Settings, flags)
    profile = given.get("profile")
    settings = Settings(**{"models": (MODEL if profile is None else profile.model,)} | given)
    check_files(files_of(Settings, flags), written)
    with aside(json_file) as set_aside, bar(None, len(list(settings.cases())), "simulating") as progress:
        set_aside()
        found = run_simulation(settings, progress, traced=timeline is not None)
    rows = [each.row for each in found]
    write_json(rows, json_file)
    show_simulation(found)
    if timeline is not None:
        timeline(timeline_of(found))
    for act in acts.values():
        act(found)
