"""The command ``dear-mpi simulate``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from dear_mpi.cli.files import check_files
from dear_mpi.cli.flags import (
    BETWEEN_FUSIONS,
    CONFIG_FLAGS,
    FUSION_AS_GIVEN,
    FUSION_BY_SIZE,
    NAMES,
    PLOT,
    TABLES,
    JsonFile,
    TimelineFiles,
    listed,
    parsed,
)
from dear_mpi.cli.run import check_alone, complaining, write_json
from dear_mpi.cli.timeline import FLAG, timeline_files
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.reporting.files import check_writable, set_aside
from dear_mpi.reporting.terminal import bar
from dear_mpi.reporting.units import check_seconds, parse_rate, whole_number
from dear_mpi.see.figure import check_figure, write_figure
from dear_mpi.see.sweep.draw import draw_sweep
from dear_mpi.see.timeline.write import check_timeline, write_timeline
from dear_mpi.simulate.contention import parse_stall
from dear_mpi.simulate.network import PRESETS
from dear_mpi.simulate.remedies import changes, fastest, remedies
from dear_mpi.simulate.settings import Settings
from dear_mpi.simulate.sweep import Simulated
from dear_mpi.simulate.sweep import simulate as run_simulation
from dear_mpi.simulate.table import heading, show_simulation
from dear_mpi.simulate.timeline import timeline_of
from dear_mpi.training.profiles.profile import read_profile
from dear_mpi.training.schedules import SCHEDULES

NETWORK = (
    "Network: 10gbit,50us (bandwidth and latency of each rank's link), also with o=1us (processor time for a message) "
    "and gamma=0.1ns (for a byte that is summed); INSIDE/BETWEEN,hosts=N (or per_host=N), for links inside and between "
    "hosts; fattree:8x8,2,10gbit,50us and other topologies, replayed by SimGrid; FILE.json of dear-mpi bench or "
    f"doctor; or {', '.join(PRESETS)}."
)
SEVERAL = "several with commas"
MODEL = "synthetic:resnet50"
FUSION = f"{FUSION_BY_SIZE}; {FUSION_AS_GIVEN}"
UPDATE = "Seconds of the optimiser for a million parameters."
WIRE = f"Type in which gradients travel: {', '.join(DTYPES)}."
PARTS = (
    "Number of parts that each batch is split into; gradients travel after the last. The given seconds are of a part, "
    "and a profile's of the whole batch."
)
MOST_PARTS = 10**4
FORWARD = "0.1, or as in the profile"
BACKWARD = "twice the forward time, or in the ratio of the profile"
RATE = "Take the seconds of layers from their FLOPs at this rate, e.g. 10TFLOPS. A profile is scaled to it."
BATCH = "Number of examples on each rank, for --rate."
STALL = "How long an update delays messages, as a share of its own time: 100% where both need the same processors."
PROFILE = "FILE with measured seconds of layers, from dear-mpi train --profile FILE or TorchSession.profile."


def simulate(
    model: Annotated[
        str | None,
        Option(
            help=f"Model: synthetic:TABLE; TABLE is {TABLES}; {SEVERAL}.",
            show_default=f"{MODEL}, or as in the profile",
        ),
    ] = None,
    ranks: Annotated[str, Option(help=f"Number of ranks; {SEVERAL}; 8:64 doubles from 8 to 64.")] = "64",
    network: Annotated[str, Option(help=NETWORK)] = "10gbit,50us",
    schedules: Annotated[
        str, Option(help=f"Schedules: {', '.join(SCHEDULES)}, or FILE.py:NAME; {SEVERAL}.")
    ] = "wfbp,dear",
    fusion: Annotated[str, Option(help=f"{FUSION}; {SEVERAL}.")] = "25MB",
    algorithm: Annotated[str, Option(help=f"Collective algorithm: {NAMES}, or FILE.py:FUNCTION; {SEVERAL}.")] = "ring",
    forward_time: Annotated[
        float | None, Option(help="Seconds of the forward pass; a profile is scaled to it.", show_default=FORWARD)
    ] = None,
    backward_time: Annotated[
        float | None, Option(help="Seconds of the backward pass; a profile is scaled to it.", show_default=BACKWARD)
    ] = None,
    rate: Annotated[str | None, Option(help=RATE, show_default="none")] = None,
    batch: Annotated[int | None, Option(min=1, help=BATCH, show_default="as in the table")] = None,
    profile: Annotated[Path | None, Option(metavar="FILE", help=PROFILE, show_default="none")] = None,
    update_time: Annotated[float | None, Option(help=UPDATE, show_default="0, or as in the profile")] = None,
    wire: Annotated[str | None, Option(help=WIRE, show_default="fp32, or as in the profile")] = None,
    update: Annotated[str | None, CONFIG_FLAGS["update"]] = None,
    route: Annotated[str | None, CONFIG_FLAGS["route"]] = None,
    clip: Annotated[float | None, CONFIG_FLAGS["clip"]] = None,
    loss_scale: Annotated[str, CONFIG_FLAGS["loss_scale"]] = "none",
    accumulate: Annotated[
        int | None, Option(min=1, max=MOST_PARTS, help=PARTS, show_default="1, or as in the profile")
    ] = None,
    straggler: Annotated[
        str | None, Option(help="A slow rank, and how many times as long it computes, e.g. 7:1.5.", show_default="none")
    ] = None,
    jitter: Annotated[str, Option(help="Spread of the time of each layer on each rank, e.g. 5%.")] = "0%",
    stall: Annotated[str | None, Option(help=STALL, show_default="0%, or as in the file of bench --beside")] = None,
    iterations: Annotated[
        int | None, Option(min=1, max=10**6, help="Iterations to average over.", show_default="20 with --jitter, or 1")
    ] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the jitter.")] = 0,
    plot: Annotated[Path | None, Option(metavar="FILE", help=PLOT)] = None,
    timeline: TimelineFiles = None,
    json_file: JsonFile = None,
) -> None:
    """Predict training on any number of ranks and any network, without MPI: the trainer runs on a virtual clock.

    Example: dear-mpi simulate --model synthetic:bert_base --ranks 16,64 --network 100gbit,5us --schedules wfbp,dear
    """
    with complaining(mpi=False):
        check_alone("simulate", 1)
        if json_file is not None:
            check_writable("--json", json_file)
        if plot is not None:
            check_figure("--plot", plot)
        files = timeline_files(timeline)
        written = [("--json", json_file), ("--plot", plot), *((FLAG, path) for path in files)]
        check_timeline(FLAG, files)
        if update_time is not None:
            check_seconds("update_time", update_time)
        found_profile = None if profile is None else read_profile(profile)
        usual = (MODEL if found_profile is None else found_profile.model,)
        settings = Settings(
            models=usual if model is None else listed("--model", model),
            ranks=tuple(number for part in listed("--ranks", ranks) for number in numbers_of(part)),
            network=network,
            schedules=listed("--schedules", schedules),
            fusions=listed("--fusion", fusion, BETWEEN_FUSIONS),
            algorithms=listed("--algorithm", algorithm),
            forward_s=forward_time,
            backward_s=backward_time,
            flops_per_s=None if rate is None else parsed("--rate", parse_rate, rate),
            batch=batch,
            profile=found_profile,
            update_s=None if update_time is None else update_time * 1e-6,
            wire=wire,
            update=update,
            route_name=route,
            clip=clip,
            loss_scale=loss_scale,
            accumulate=accumulate,
            contention=None if stall is None else parse_stall(stall),
            straggler=straggler,
            jitter=jitter,
            iterations=iterations,
            seed=seed,
        )
        read = {"--model": settings.models, "--schedules": settings.schedules, "--algorithm": settings.algorithms}
        read |= {"--fusion": settings.fusions}
        read |= {"--route": () if route is None else (route,)}
        read |= {"--network": (network,), "--profile": () if profile is None else (str(profile),)}
        check_files(read, written)

        def ready() -> None:
            if json_file is not None:
                set_aside(json_file)

        with bar(None, len(list(settings.cases())), "simulating") as progress:
            found = run_simulation(settings, progress, ready=ready, traced=bool(files))
        rows = [each.row for each in found]
        if json_file is not None:
            write_json(rows, json_file)
        show_simulation(found, what_helps(found))
        if plot is not None:
            write_figure("--plot", plot, draw_sweep(drawn(rows, settings), heading(found)))
        if files:
            write_timeline(FLAG, files, timeline_of(found))


def what_helps(found: Sequence[Simulated]) -> list[tuple[str, float]]:
    """What would help the fastest row; of several models and numbers of ranks, that which waits longest."""
    first, *_ = fastest(found)
    if not first.row["exposed_comm_s"]:
        return []
    with bar(None, len(changes(first)), "looking for what would help") as progress:
        return remedies(first, progress)


def drawn(rows: Sequence[Mapping[str, Any]], settings: Settings) -> Sequence[Mapping[str, Any]]:
    """Rows as a picture has them: of several algorithms, each is part of a schedule's name."""
    if len(settings.algorithms) == 1:
        return rows
    return [{**row, "schedule": f"{row['schedule']}, {row['algorithm']}"} for row in rows]


def numbers_of(text: str) -> list[int]:
    """A number of ranks, or those from the first to the last of a range by powers of 2.

    >>> numbers_of("4"), numbers_of("8:64"), numbers_of("3:16")
    ([4], [8, 16, 32, 64], [3, 6, 12, 16])
    """
    low, colon, high = text.partition(":")
    first, last = whole_number(low), whole_number(high if colon else low)
    if not first or not last or last < first:
        raise ValueError(f"--ranks must be whole numbers of at least 1, or ranges that go up, as 8:64, not {text!r}")
    return [first << power for power in range((last // first).bit_length()) if first << power < last] + [last]
