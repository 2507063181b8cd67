"""The command ``dear-mpi bench``: a flag for each field of ``Contest``, which has their types and defaults."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast, get_type_hints

import typer
from typer import Option

from dear_mpi.bench.case import BUS_FACTORS
from dear_mpi.bench.collective import Contest
from dear_mpi.bench.collective import bench as run_bench
from dear_mpi.bench.contestants import DEFAULTS
from dear_mpi.bench.table import show_bench
from dear_mpi.bench.tune import rules_before, write_tuned
from dear_mpi.cli.flags import JOB_FLAGS, Flags, parameter, with_flags
from dear_mpi.cli.run import check_alone, complaining, run_ranks
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import bar
from dear_mpi.reporting.units import parse_bytes, parse_link, parse_sizes
from dear_mpi.training.declared import listed, parsed
from dear_mpi.training.options import NAMES, SEGMENT

ALGORITHMS = (
    f"What to compare, with commas; the first is the baseline. Ours: {NAMES}, auto, FILE.py:FUNCTION, and function: a "
    "call such as all_reduce(x, comm, algorithm='auto') on a private array. Others: native (this job's MPI), mpich or "
    "openmpi (the other MPI), gloo, prototype (a ring in plain mpi4py). native-best and mpich-best are the fastest of "
    "all calls of a library, such as native-persistent."
)
BY_DEVICE = "; ".join(f"on {device}: {', '.join(names)}" for device, names in DEFAULTS.items())
MEMORY = "Memory of our buffers on the CPU: shared (by the ranks of a host), private, or auto (by algorithm)."
CADENCE = (
    "isolated: a sample is one call, from a barrier to its end on the slowest rank. streaming: a sample is the mean "
    "over calls in a row and over ranks, and barriers between calls are not timed, as in the OSU benchmarks."
)
OTHER_MPI = "Command that starts the other MPI, e.g. 'mpirun.mpich -f hosts'."
BESIDE = "Also update parameters while our collectives run, and measure how much each delays the other."
TUNE = "Write our fastest algorithm for each size to FILE, for train --algorithm auto:FILE."

CONTEST_FLAGS = {
    "collectives": Option("--collective", help=f"Collectives to time, with commas: {', '.join(BUS_FACTORS)}."),
    "sizes": Option(help="Sizes of the buffer, with commas; 4B:64MiB stands for 4B, 16B, ... 64MiB."),
    "algorithms": Option(help=ALGORITHMS, show_default=BY_DEVICE),
    "placement": Option(help="Where results go: in (over the input) or out (into a second buffer)."),
    "dtype": Option(help=f"Type of the elements: {', '.join(DTYPES)}."),
    "op": Option(help="Reduction: sum, prod, min, max or average."),
    "segments": Option("--segment", help="Size of our largest message; several with commas.", show_default=SEGMENT),
    "device": Option(help="Where the buffer is: cpu or cuda."),
    "memory": Option(help=MEMORY),
    "cadence": Option(help=CADENCE),
    "seconds": Option(help="Seconds to spend on each size; each call is made 11 to 200 times."),
    "other_mpi": Option(metavar="COMMAND", help=OTHER_MPI, show_default="from make install"),
    "beside": Option("--beside", help=BESIDE),
}
# How those are read that are not what is typed.
READ: dict[str, Callable[[str], Any]] = {
    "collectives": partial(listed, "--collective"),
    "sizes": lambda text: tuple(parsed("--sizes", parse_sizes, text)),
    "algorithms": partial(listed, "--algorithms"),
    "segments": lambda text: tuple(parsed("--segment", parse_bytes, size) for size in text.split(",")),
}
JOB = ("device_memory", "threads", "link", "stall_after", "stall_abort", "json_file")
FLAGS = {
    name: parameter(
        name,
        cast(Any, Annotated)[(str if name in READ else get_type_hints(Contest)[name]) | None, option],
        None if name in READ else getattr(Contest, name),
    )
    for name, option in CONTEST_FLAGS.items()
}
FLAGS |= {name: JOB_FLAGS[name] for name in JOB}
FLAGS["tune"] = parameter("tune", Annotated[Path | None, Option(metavar="FILE", help=TUNE)])


@with_flags(FLAGS, collectives="all_reduce", sizes="256KiB:64MiB")
def bench(flags: Flags) -> None:
    """Time our collectives beside the collectives of MPI libraries and gloo, in turns.

    Example: mpirun -n 4 dear-mpi bench --algorithms native,ring,auto,mpich --sizes 4B:64MiB
    """
    with complaining(mpi="threads" not in flags):
        check_alone("--threads", flags.get("threads"))
        given = {name: flags[name] for name in CONTEST_FLAGS if name in flags}
        contest = Contest(**given | {name: read(given[name]) for name, read in READ.items() if name in given})
        how = {name: flags[name] for name in JOB if name in flags}
        if "link" in how:
            how["link"] = parsed("--link", parse_link, how["link"])
        rows = run_ranks(lambda world: bench_and_show(world, contest, flags.get("tune")), device=contest.device, **how)
    raise typer.Exit(int(any(row["wrong"] for row in rows)))


def bench_and_show(world: World, contest: Contest, tune: Path | None) -> list[dict[str, Any]]:
    before = () if tune is None else rules_before(tune, contest.names, world)
    with bar(world, len(contest.cases()), "warming up") as progress:
        report = run_bench(contest, world, progress)
    show_bench(world, report)
    if tune is not None:
        write_tuned(tune, before, report.rows, world)
    return [asdict(row) for row in report.rows]
