"""The command ``dear-mpi simulate``."""

from collections.abc import Mapping, Sequence
from typing import Any

from dear_mpi.cli.files import check_files, try_files, written_by
from dear_mpi.cli.flags import Flags, JsonFile, Plot, TimelineFiles, chosen, files_of, flags_of, parameter, with_flags
from dear_mpi.cli.run import check_alone, complaining, write_json
from dear_mpi.reporting.files import aside
from dear_mpi.reporting.terminal import bar
from dear_mpi.see.figure import write_figure
from dear_mpi.see.sweep import draw_sweep
from dear_mpi.see.timeline.write import write_timeline
from dear_mpi.simulate.gains import changes, fastest, remedies
from dear_mpi.simulate.settings import MODEL, Settings
from dear_mpi.simulate.sweep import Simulated
from dear_mpi.simulate.sweep import simulate as run_simulation
from dear_mpi.simulate.table import heading, show_simulation
from dear_mpi.simulate.timeline import timeline_of

SIMULATE_FLAGS = flags_of(Settings) | {
    "plot": parameter("plot", Plot),
    "timeline": parameter("timeline", TimelineFiles),
    "json_file": parameter("json_file", JsonFile),
}


@with_flags(SIMULATE_FLAGS)
def simulate(flags: Flags) -> None:
    """Predict training on any number of ranks and any network, without MPI: the trainer runs on a virtual clock.

    Example: dear-mpi simulate --model synthetic:bert_base --ranks 16,64 --network 100gbit,5us --schedules wfbp,dear
    """
    with complaining(mpi=False):
        check_alone("simulate", 1)
        json_file, plot, written = flags.get("json_file"), flags.get("plot"), written_by(flags)
        files = [path for flag, path in written if flag == "--timeline"]
        try_files(written)
        settings = settings_of(flags)
        check_files(files_of(Settings, flags), written)

        with aside(json_file) as set_aside, bar(None, len(list(settings.cases())), "simulating") as progress:
            set_aside()
            found = run_simulation(settings, progress, traced=bool(files))
        rows = [each.row for each in found]
        write_json(rows, json_file)
        show_simulation(found, what_helps(found))
        if plot is not None:
            write_figure("--plot", plot, draw_sweep(drawn(rows, settings), heading(found)))
        if files:
            write_timeline("--timeline", files, timeline_of(found))


def settings_of(flags: Flags) -> Settings:
    """What the flags ask for: without a model, the profile's."""
    given = chosen(Settings, flags)
    profile = given.get("profile")
    return Settings(**{"models": (MODEL if profile is None else profile.model,)} | given)


def what_helps(found: Sequence[Simulated]) -> list[tuple[str, float]]:
    """What would help the fastest row; of several models and numbers of ranks, that which waits longest."""
    first, *_ = fastest(found)
    if not first.row["exposed_comm_s"]:
        return []
    with bar(None, len(changes(first)), "looking for what would help") as progress:
        return remedies(first, progress)


def drawn(rows: Sequence[Mapping[str, Any]], settings: Settings) -> Sequence[Mapping[str, Any]]:
    """Rows as a picture has them: of several algorithms and wires, each is part of a schedule's name."""
    several = [name for name, given in (("algorithm", settings.algorithms), ("wire", settings.wires)) if len(given) > 1]
    return [{**row, "schedule": ", ".join(row[name] for name in ("schedule", *several))} for row in rows]
