"""Run ``dear-mpi train``, ``compare`` and ``demo``."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dear_mpi.cli.commands import as_typed, typed_acts
from dear_mpi.cli.flags import (
    RUN_FLAGS,
    Flags,
    check_files,
    chosen,
    files_of,
    flag,
    flags_of,
    shared,
    timeline_writer,
    written_by,
)
from dear_mpi.cli.run import Output, run_ranks, with_flags
from dear_mpi.ranks.world import World
from dear_mpi.reporting.declared import BETWEEN_FUSIONS, listed
from dear_mpi.reporting.terminal import bar, console
from dear_mpi.see.tables import show_comparison, show_training
from dear_mpi.see.timeline import TimelineFiles
from dear_mpi.training.options import FUSION, SEVERAL
from dear_mpi.training.runs.compare import Comparison
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import Saving
from dear_mpi.training.runs.train import train as run_training
from dear_mpi.training.schedules import NAMES

JOB = flags_of(Config) | RUN_FLAGS | shared("timeline")
EVERY = "Also write the checkpoint of --save after every N iterations."
ELASTIC = (
    "Outlive ranks: if one dies, the others continue with its part of the data. Needs --threads, or Open MPI's mpirun "
    "--with-ft ulfm."
)
PROFILE = "Write the measured time of each layer to FILE, for simulate --profile."
TRAIN = (
    JOB
    | flag("save", Path | None, "Write a checkpoint after the last iteration.", metavar="FILE")
    | flag("every", int | None, EVERY, min=1, metavar="N", show_default="none")
    | flag("resume", bool, "Continue from the checkpoint of --save, on any number of ranks.", False)
    | flag("profile", Path | None, PROFILE, metavar="FILE")
    | flag("elastic", bool, ELASTIC, False)
)


def run_job(command: Callable[[World, Config], Any], flags: Flags) -> None:
    config = Config.of(chosen(Config, flags))
    if config.device == "cpu" and "device_memory" in flags:
        raise ValueError("--device-memory does not apply to the device 'cpu'")
    run_ranks(lambda world: command(world, config), flags, device=config.device)


@with_flags(TRAIN)
def train(flags: Flags) -> None:
    """Example: mpirun -n 4 dear-mpi train --model mlp --data digits --schedule dear"""
    check_files(files_of(Config, flags), written_by(flags))
    how: dict[str, Any] = {"profile": flags.get("profile"), "timeline": timeline_writer(flags)}
    how["observers"] = typed_acts("train", flags, TRAIN)
    if "save" in flags:
        how["saving"] = Saving(flags["save"], flags.get("every"), flags.get("resume", False))
    for name in ("every", "resume"):
        if name in flags and "save" not in flags:
            raise ValueError(f"--{name} needs --save FILE, the checkpoint")
    if flags.get("elastic"):
        if given := [each for each in ("profile", "timeline") if each in flags] + [*how["observers"]]:
            raise ValueError(f"{as_typed(given[0])} does not apply with --elastic, where ranks may die meanwhile")
        how["elastic"] = True
    run_job(partial(train_and_show, **how), flags)


def train_and_show(world: World, config: Config, *, elastic: bool = False, **how: Any) -> dict[str, Any]:
    """Train and show the result; ``how``: additional arguments of ``train`` in training/runs/train.py."""
    what = f"{config.model}, {config.schedule}"
    with bar(world, config.iterations, what) as advance:
        if elastic:
            how["elastic"] = lambda lost: advance(what, at=lost.iteration, above=str(lost))

        def show(number: int, loss: float) -> None:
            advance(f"{what}, loss {loss:.4f}", at=number if elastic else None)

        report = run_training(config, world, show, **how)
    show_training(world, report)
    for name, observer in how.get("observers", {}).items():
        observer.show(console(world), report[name])
    return report


SCHEDULES = f"Schedules to compare, with commas: {', '.join(NAMES)}, or FILE.py:NAME. Speed-ups are over the first one."
FUSIONS = f"{FUSION} Several with commas, e.g. 25MB,cut:4MB,own."
SPLIT = ("fusion", "wire")  # they take several values
COMPARE = (
    {name: each for name, each in JOB.items() if name != "schedule"}
    | flag("schedules", str, SCHEDULES)
    | flag("fusion", str | None, FUSIONS, show_default="by model")
    | flag("wire", str | None, SEVERAL, show_default="the type of the parameters")
)


@with_flags(COMPARE, schedules="wfbp,dear", model="synthetic:resnet50")
def compare(flags: Flags) -> None:
    """Example: mpirun -n 4 dear-mpi compare --schedules sequential,wfbp,dear --link 1gbit,50us"""
    schedules = listed("--schedules", flags["schedules"])
    fusions = listed("--fusion", flags["fusion"], BETWEEN_FUSIONS) if "fusion" in flags else ()
    wires = listed("--wire", flags["wire"]) if "wire" in flags else ()
    check_files(files_of(Config, flags) | {"--schedules": schedules, "--fusion": fusions}, written_by(flags))
    acts, timeline = typed_acts("compare", flags, COMPARE), timeline_writer(flags)
    if acts and timeline is None:
        timeline = TimelineFiles("--timeline", ())
    how: dict[str, Any] = {"timeline": timeline, "acts": acts, "fusions": fusions, "wires": wires}
    command = partial(compare_and_show, schedules=schedules, **how)
    run_job(command, {name: value for name, value in flags.items() if name not in SPLIT})


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


DIGITS = {"model": "mlp", "data": "digits", "schedule": "dear", "fusion": "layers:1"}
# ResNet-50: 102.2 MB of fp32 gradients; a ring on 4 ranks sends 2 * 3/4 of them each way: 153 MB, four times forward at
# this bandwidth. There the bounds of DeAR and WFBP differ most: 1.25.
RESNET = {
    "model": "synthetic:resnet50",
    "fusion": "10MB",
    "forward_time": 0.25,
    "iterations": 15,
    "segment": "1MiB",
}
LINK = "1.227gbit,50us"
NOTE = (
    "\nThree schedules on an EMULATED link, on which an all-reduce of 4 ranks takes 4 times the forward pass\n"
    "(0.25 s, spent asleep). DeAR's bound is furthest ahead of WFBP's there, by 1.25x; elsewhere it gains less:"
)


@with_flags(shared("threads", "stall_after", "stall_abort"))
def demo(flags: Flags) -> None:
    """Example: mpirun -n 4 dear-mpi demo"""

    def schedules(world: World, config: Config) -> Output:
        console(world).print(NOTE)
        return compare_and_show(world, config, ("wfbp", "sequential", "dear"))

    run_job(train_and_show, {**DIGITS, **flags})
    run_job(schedules, {**RESNET, **flags, "link": LINK})
