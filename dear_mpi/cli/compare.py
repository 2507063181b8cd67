"""Run ``dear-mpi compare``: the flags of ``train``, with several schedules instead of one."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dear_mpi.cli.commands import added_files, typed_acts
from dear_mpi.cli.files import check_files, timeline_writer, written_by
from dear_mpi.cli.flags import Flags, added, files_of, flag, shared
from dear_mpi.cli.job import JOB_FLAGS, run_job
from dear_mpi.cli.run import Output, with_flags
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import bar
from dear_mpi.see.figure import write_figure
from dear_mpi.see.sweep import draw_comparison
from dear_mpi.see.tables import algorithm, show_comparison
from dear_mpi.training.chosen_route import SEVERAL
from dear_mpi.training.declared import BETWEEN_FUSIONS, listed
from dear_mpi.training.options import FUSION
from dear_mpi.training.recorder import Show
from dear_mpi.training.runs.compare import Comparison
from dear_mpi.training.runs.config import Config
from dear_mpi.training.schedules import NAMES

SCHEDULES = f"Schedules to compare, with commas: {', '.join(NAMES)}, or FILE.py:NAME. Speed-ups are over the first one."
FUSIONS = f"{FUSION} Several with commas, e.g. 25MB,cut:4MB,own."
SPLIT = ("fusion", "wire")  # they take several values
FLAGS = (
    JOB_FLAGS
    | flag("schedules", str, SCHEDULES)
    | flag("fusion", str | None, FUSIONS, show_default="by model")
    | flag("wire", str | None, SEVERAL, show_default="the type of the parameters")
    | shared("plot")
    | added("compare")
)
del FLAGS["schedule"]


@with_flags(FLAGS, schedules="wfbp,dear", model="synthetic:resnet50")
def compare(flags: Flags) -> None:
    """Example: mpirun -n 4 dear-mpi compare --schedules sequential,wfbp,dear --link 1gbit,50us"""
    schedules = listed("--schedules", flags["schedules"])
    fusions = listed("--fusion", flags["fusion"], BETWEEN_FUSIONS) if "fusion" in flags else ()
    wires = listed("--wire", flags["wire"]) if "wire" in flags else ()
    written = written_by(flags, **added_files("compare"))
    check_files(files_of(Config, flags) | {"--schedules": schedules, "--fusion": fusions}, written)
    how: dict[str, Any] = {"timeline": timeline_writer(flags), "plot": flags.get("plot")}
    how["acts"] = [(name, flags[name], act) for name, act in typed_acts("compare", flags).items()]
    command = partial(compare_and_show, schedules=schedules, fusions=fusions, wires=wires, **how)
    run_job(command, {name: value for name, value in flags.items() if name not in SPLIT}, written)


def compare_and_show(
    world: World,
    config: Config,
    schedules: Sequence[str],
    *,
    timeline: Show | None = None,
    plot: Path | None = None,
    acts: Sequence[tuple[str, Path, Any]] = (),
    **split: Sequence[str],
) -> Output:
    comparison = Comparison(config, world, schedules, **split)
    show, keepers = timeline, dict[str, Any]()
    for name, path, act in acts:  # each passes the timeline on
        show = keepers[f"--{name}"] = act(f"--{name}", path, show)
    with bar(world, comparison.steps, config.model) as advance:
        rows = comparison.run(lambda name: advance(f"{config.model}, {name}"), timeline=show)
    show_comparison(world, rows)
    files: dict[str, Callable[[], object]] = {}
    if plot is not None:
        files["--plot"] = lambda: write_figure("--plot", plot, draw_comparison(rows, algorithm(rows[0])))
    files |= {flag: partial(keeper.write, rows) for flag, keeper in keepers.items()}
    return Output(rows, files)
