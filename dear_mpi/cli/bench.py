"""The command ``dear-mpi bench``: its flags are the fields of ``Contest``, and those of a job."""

from pathlib import Path
from typing import Any

import typer

from dear_mpi.bench.collective import Contest
from dear_mpi.bench.collective import bench as run_bench
from dear_mpi.bench.flat import object_of
from dear_mpi.bench.output import DEFAULT, FORMATS, show_bench
from dear_mpi.bench.provenance import now, provenance
from dear_mpi.bench.tune import rules_before, write_tuned
from dear_mpi.cli.files import check_files, written_by
from dear_mpi.cli.flags import RUN_FLAGS, Flags, chosen, files_of, flag, flags_of
from dear_mpi.cli.run import run_ranks, with_flags
from dear_mpi.kernels.lookup import lookup
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import bar

TUNE = "Write our fastest algorithm for each size to FILE, for train --algorithm auto:FILE."
FORMAT = (
    f"How rows are printed: {', '.join(FORMATS)}. A table has the columns of nccl-tests, osu is as OSU's benchmarks."
)
RAW = "Also write every sample of every rank into the file of --json."
FLAGS = flags_of(Contest) | RUN_FLAGS | flag("tune", Path | None, TUNE, metavar="FILE")
FLAGS |= flag("format", str, FORMAT, DEFAULT) | flag("raw", bool, RAW, False, spelled="--raw")


@with_flags(FLAGS, sizes="256KiB:64MiB")
def bench(flags: Flags) -> None:
    """Time our collectives beside the collectives of MPI libraries and gloo, in turns.

    Example: mpirun -n 4 dear-mpi bench --algorithms native,ring,auto,mpich --sizes 4B:64MiB
    """
    check_files(files_of(Contest, flags), written_by(flags, tune="--tune"))
    lookup("format", flags.get("format", DEFAULT), FORMATS)
    if flags.get("raw") and "json_file" not in flags:
        raise ValueError("--raw needs --json FILE: that is where samples are written")
    contest = Contest(**chosen(Contest, flags))
    found = run_ranks(lambda world: bench_and_show(world, contest, flags), flags, device=contest.device)
    raise typer.Exit(int(any(row["wrong"] for row in found["rows"])))


def bench_and_show(world: World, contest: Contest, flags: Flags) -> dict[str, Any]:
    began, tune = now(), flags.get("tune")
    before = () if tune is None else rules_before(tune, contest.names, world)
    with bar(world, len(contest.collectives) * len(contest.sizes), "warming up") as progress:
        report = run_bench(contest, world, progress)
    show_bench(world, report, flags.get("format", DEFAULT))
    if tune is not None:
        write_tuned(tune, before, report.rows, world)
    rows = [object_of(row, raw=flags.get("raw", False)) for row in report.rows]
    return {**provenance(world, began), "rows": rows}
