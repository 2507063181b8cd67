"""The command ``dear-mpi bench``."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from dear_mpi.bench.backends import DEFAULTS
from dear_mpi.bench.case import BUS_FACTORS, CADENCES
from dear_mpi.bench.collective import Settings
from dear_mpi.bench.collective import bench as run_bench
from dear_mpi.bench.table import show_bench
from dear_mpi.bench.tune import Tuning
from dear_mpi.cli.flags import (
    NAMES,
    SEGMENT,
    STALL_AFTER,
    DeviceMemory,
    JsonFile,
    Link,
    StallAbort,
    StallAfter,
    Threads,
    listed,
    parsed,
)
from dear_mpi.cli.run import check_alone, complaining, run_ranks
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import bar
from dear_mpi.reporting.units import parse_bytes, parse_sizes, usable_link

OURS = f"What to compare, with commas; the first is the baseline. Ours: {NAMES}, auto, FILE.py:FUNCTION, "
CALLED = "and function: a call such as all_reduce(x, comm, algorithm='auto') on a private array. "
OTHERS = "Others: native (this job's MPI), mpich or openmpi (the other MPI), gloo, prototype (a ring in plain mpi4py). "
CALLS = "native-best and mpich-best are the fastest of all calls of a library, such as native-persistent."
BY_DEVICE = "; ".join(f"on {device}: {', '.join(names)}" for device, names in DEFAULTS.items())
MEMORY = "Memory of our buffers on the CPU: shared (by the ranks of a host), private, or auto (by algorithm)."
CADENCE = (
    "isolated: a sample is one call, from a barrier to its end on the slowest rank. streaming: a sample is the mean "
    "over calls in a row and over ranks, and barriers between calls are not timed, as in the OSU benchmarks."
)
OTHER_MPI = Option(
    metavar="COMMAND",
    help="Command that starts the other MPI, e.g. 'mpirun.mpich -f hosts'.",
    show_default="from make install",
)
BESIDE = Option(
    "--beside", help="Also update parameters while our collectives run, and measure how much each delays the other."
)
TUNE = Option(
    metavar="FILE", help="Write our fastest algorithm for each size to FILE, for train --algorithm auto:FILE."
)


def bench(
    collective: Annotated[
        str, Option(help=f"Collectives to time, with commas: {', '.join(BUS_FACTORS)}.")
    ] = "all_reduce",
    sizes: Annotated[
        str, Option(help="Sizes of the buffer, with commas; 4B:64MiB stands for 4B, 16B, ... 64MiB.")
    ] = "256KiB:64MiB",
    algorithms: Annotated[str | None, Option(help=OURS + CALLED + OTHERS + CALLS, show_default=BY_DEVICE)] = None,
    placement: Annotated[
        str, Option(help="Where results go: in (over the input) or out (into a second buffer).")
    ] = "in",
    dtype: Annotated[str, Option(help=f"Type of the elements: {', '.join(DTYPES)}.")] = "fp32",
    op: Annotated[str, Option(help="Reduction: sum, prod, min, max or average.")] = "sum",
    segment: Annotated[
        str | None, Option(help="Size of our largest message; several with commas.", show_default=SEGMENT)
    ] = None,
    device: Annotated[str, Option(help="Where the buffer is: cpu or cuda.")] = "cpu",
    memory: Annotated[str, Option(help=MEMORY)] = "auto",
    cadence: Annotated[str, Option(help=CADENCE)] = CADENCES[0],
    device_memory: DeviceMemory = "auto",
    seconds: Annotated[float, Option(help="Seconds to spend on each size; each call is made 11 to 200 times.")] = 2.0,
    other_mpi: Annotated[str, OTHER_MPI] = "",
    beside: Annotated[bool, BESIDE] = False,
    tune: Annotated[Path | None, TUNE] = None,
    threads: Threads = None,
    link: Link = None,
    stall_after: StallAfter = STALL_AFTER,
    stall_abort: StallAbort = False,
    json_file: JsonFile = None,
) -> None:
    """Time our collectives beside the collectives of MPI libraries and gloo, in turns.

    Example: mpirun -n 4 dear-mpi bench --algorithms native,ring,auto,mpich --sizes 4B:64MiB
    """
    with complaining(mpi=threads is None):
        check_alone("--threads", threads)
        settings = Settings(
            sizes=tuple(parsed("--sizes", parse_sizes, sizes)),
            collectives=listed("--collective", collective),
            algorithms=() if algorithms is None else listed("--algorithms", algorithms),
            placement=placement,
            dtype=dtype,
            op=op,
            segments=() if segment is None else parsed("--segment", parse_all, segment),
            device=device,
            memory=memory,
            cadence=cadence,
            seconds=seconds,
            other_mpi=other_mpi,
            beside=beside,
        )
        how: dict[str, Any] = {"device": device, "device_memory": device_memory, "threads": threads}
        how |= {"link": None if link is None else parsed("--link", usable_link, link)}
        how |= {"stall_after": stall_after, "stall_abort": stall_abort}
        rows = run_ranks(lambda world: bench_and_show(world, settings, tune), json_file, **how)
    raise typer.Exit(int(any(row["wrong"] for row in rows)))


def parse_all(text: str) -> tuple[int, ...]:
    """Numbers of bytes with commas between them."""
    return tuple(map(parse_bytes, text.split(",")))


def bench_and_show(world: World, settings: Settings, tune: Path | None) -> list[dict[str, Any]]:
    tuning = None if tune is None else Tuning(tune, settings.names, world)
    with bar(world, len(list(settings.cases())), "warming up") as progress:
        report = run_bench(settings, world, progress)
    show_bench(world, report)
    if tuning is not None:
        tuning.write(report.rows)
    return [asdict(row) for row in report.rows]
