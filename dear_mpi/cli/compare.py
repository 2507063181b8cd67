"""The command ``dear-mpi compare``: the flags of ``train``, with several schedules instead of one."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from dear_mpi.cli.files import check_files, written_by
from dear_mpi.cli.flags import JOB_FLAGS, Flags, Plot, files_of, parameter, with_flags
from dear_mpi.cli.run import complaining, run_job
from dear_mpi.collectives.transports.agree import by_rank_0
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import bar
from dear_mpi.see.figure import write_figure
from dear_mpi.see.tables import draw_comparison, show_comparison
from dear_mpi.see.timeline.write import write_timeline
from dear_mpi.training.chosen_route import SEVERAL
from dear_mpi.training.declared import BETWEEN_FUSIONS, listed
from dear_mpi.training.options import FUSION
from dear_mpi.training.runs.compare import outcome
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.contest import Contest
from dear_mpi.training.schedules import NAMES as NAMES_OF_SCHEDULES

FUSIONS = f"{FUSION} Several with commas, e.g. 25MB,cut:4MB,own."
Schedules = Annotated[
    str,
    Option(
        help=f"Schedules to compare, with commas: {', '.join(NAMES_OF_SCHEDULES)}, or FILE.py:NAME. "
        "Speed-ups are over the first one."
    ),
]
Fusion = Annotated[str | None, Option(help=FUSIONS, show_default="by model")]
Wire = Annotated[str | None, Option(help=SEVERAL, show_default="the type of the parameters")]
SPLIT = ("fusion", "wire")  # of which there may be several
COMPARE_FLAGS = {"schedules": parameter("schedules", Schedules)} | JOB_FLAGS
COMPARE_FLAGS |= {"fusion": parameter("fusion", Fusion), "wire": parameter("wire", Wire)}
COMPARE_FLAGS |= {"plot": parameter("plot", Plot)}
del COMPARE_FLAGS["schedule"]


@with_flags(COMPARE_FLAGS, schedules="wfbp,dear", model="synthetic:resnet50")
def compare(flags: Flags) -> None:
    """Time one model under several schedules and wires, which take turns.

    Example: mpirun -n 4 dear-mpi compare --schedules sequential,wfbp,dear --link 1gbit,50us
    """
    with complaining(mpi="threads" not in flags):
        schedules = listed("--schedules", flags["schedules"])
        fusions = listed("--fusion", flags["fusion"], BETWEEN_FUSIONS) if "fusion" in flags else ()
        wires = listed("--wire", flags["wire"]) if "wire" in flags else ()
        written, plot = written_by(flags), flags.get("plot")
        files = [path for flag, path in written if flag == "--timeline"]
        check_files(files_of(Config, flags) | {"--schedules": schedules, "--fusion": fusions}, written)

    def run(world: World, config: Config) -> list[dict[str, Any]]:
        return compare_and_show(world, config, schedules, fusions, wires, timeline=files, plot=plot)

    run_job(run, {name: value for name, value in flags.items() if name not in SPLIT})


def compare_and_show(
    world: World,
    config: Config,
    schedules: Sequence[str],
    fusions: Sequence[str] = (),
    wires: Sequence[str] = (),
    *,
    timeline: Sequence[Path] = (),
    plot: Path | None = None,
) -> list[dict[str, Any]]:
    contest = Contest(config, world, schedules, fusions=fusions, wires=wires)
    show = partial(write_timeline, "--timeline", timeline) if timeline else None
    with bar(world, contest.steps, config.model) as advance:
        rows = outcome(contest, lambda name: advance(f"{config.model}, {name}"), timeline=show)
    show_comparison(world, rows)
    if plot is not None:
        by_rank_0(world.transport, "--plot", lambda: write_figure("--plot", plot, draw_comparison(rows)))
    return rows
