"""The command ``dear-mpi simulate``."""

from collections.abc import Sequence
from pathlib import Path

from dear_mpi.cli.files import check_files, timeline_writer, try_files, written_by
from dear_mpi.cli.flags import Flags, chosen, files_of, flags_of, shared
from dear_mpi.cli.run import with_flags, write_json
from dear_mpi.reporting.files import aside
from dear_mpi.reporting.terminal import bar, note
from dear_mpi.see.figure import write_figure
from dear_mpi.see.page.schedules import write_schedules
from dear_mpi.see.sweep import draw_sweep, named
from dear_mpi.see.timeline.looks import MOST_RUNS
from dear_mpi.simulate.gains import changes, fastest, remedies
from dear_mpi.simulate.grid import Grid
from dear_mpi.simulate.settings import MODEL, Settings
from dear_mpi.simulate.sweep import Simulated
from dear_mpi.simulate.sweep import simulate as run_simulation
from dear_mpi.simulate.table import heading, show_simulation
from dear_mpi.simulate.timeline import timeline_of

LARGE_BYTES = 10_000_000  # of a page: one that has more takes long to write, to send and to open


@with_flags(flags_of(Settings) | shared("plot", "timeline", "html", "json_file"), alone="simulate")
def simulate(flags: Flags) -> None:
    """
    Example: dear-mpi simulate --model synthetic:bert_base --ranks 16,64 --network 100gbit,5us --schedules wfbp,dear
    """
    json_file, plot, written = flags.get("json_file"), flags.get("plot"), written_by(flags)
    timeline, page = timeline_writer(flags), flags.get("html")
    try_files(written)
    given = chosen(Settings, flags)
    profile = given.get("profile")
    settings = Settings(**{"models": (MODEL if profile is None else profile.model,)} | given)
    check_files(files_of(Settings, flags), written)
    with aside(json_file) as set_aside, bar(None, len(list(settings.cases())), "simulating") as progress:
        set_aside()
        found = run_simulation(settings, progress, traced=bool(timeline or page))
    rows = [each.row for each in found]
    write_json(rows, json_file)
    show_simulation(found, what_helps(found))
    if plot is not None:
        write_figure("--plot", plot, draw_sweep(named(rows, "algorithm", "wire"), heading(found)))
    if timeline is not None:
        timeline(timeline_of(found))
    if page is not None:
        write_page(page, found[:MOST_RUNS])


def write_page(path: Path, found: Sequence[Simulated]) -> None:
    """Lanes of these rows, and of the same on other networks and with other buckets, among which sliders choose."""
    grid = Grid(found)
    with bar(None, len(grid.places), "predicting for the sliders") as progress:
        points = ((place, timeline_of(rows), [each.row for each in rows]) for place, rows in grid.points(progress))
        write_schedules(
            "--html", path, timeline_of(found), [each.row for each in found], sliders=grid.sliders, points=points
        )
    nbytes = path.stat().st_size
    if nbytes > LARGE_BYTES:
        smaller = "fewer --schedules make it smaller, or several --fusion, which leave the slider for buckets out"
        note(None, f"--html {str(path)!r} has {nbytes / 1e6:.0f} MB: {smaller}")


def what_helps(found: Sequence[Simulated]) -> list[tuple[str, float]]:
    """What would help the fastest row; of several models and numbers of ranks, that which waits longest."""
    first, *_ = fastest(found)
    if not first.row["exposed_comm_s"]:
        return []
    with bar(None, len(changes(first)), "looking for what would help") as progress:
        return remedies(first, progress)
