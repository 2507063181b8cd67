"""Run ``dear-mpi compare``: the flags of ``train``, with several schedules instead of one."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from dear_mpi.cli.commands import added_files, as_typed, typed_acts
from dear_mpi.cli.files import check_files, timeline_writer, written_by
from dear_mpi.cli.flags import Flags, added, files_of, flag
from dear_mpi.cli.job import JOB_FLAGS, run_job
from dear_mpi.cli.run import Output, with_flags
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import bar
from dear_mpi.see.tables import show_comparison
from dear_mpi.see.timeline import TimelineFiles
from dear_mpi.training.chosen_route import SEVERAL
from dear_mpi.training.declared import BETWEEN_FUSIONS, listed
from dear_mpi.training.options import FUSION
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
    acts, timeline = typed_acts("compare", flags), timeline_writer(flags)
    if acts and timeline is None:
        timeline = TimelineFiles("--timeline", ())
    how: dict[str, Any] = {"timeline": timeline, "acts": acts}
    command = partial(compare_and_show, schedules=schedules, fusions=fusions, wires=wires, **how)
    run_job(command, {name: value for name, value in flags.items() if name not in SPLIT}, written)


def compare_and_show(
    world: World,
    config: Config,
    schedules: Sequence[str],
    *,
    timeline: TimelineFiles | None = None,
    acts: Mapping[str, Callable[[Any], object]] = MappingProxyType({}),
    **split: Sequence[str],
) -> Output:
    comparison = Comparison(config, world, schedules, **split)
    with bar(world, comparison.steps, config.model) as advance:
        rows = comparison.run(lambda name: advance(f"{config.model}, {name}"), timeline=timeline)
    show_comparison(world, rows)
    found = rows, timeline and timeline.timeline
    return Output(rows, {as_typed(name): partial(act, found) for name, act in acts.items()})
