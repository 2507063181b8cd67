"""Run ``dear-mpi bench``: its flags are the fields of ``Suite``, a job's, and extras'."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer

from dear_mpi.bench.output import DEFAULT, FORMATS, object_of, show_bench
from dear_mpi.bench.run import Look, agreed
from dear_mpi.bench.run import bench as run_bench
from dear_mpi.bench.saved import Run, now, provenance, rules_before, write_text, write_tuned
from dear_mpi.bench.suite import Suite
from dear_mpi.cli.commands import as_typed, typed_acts
from dear_mpi.cli.flags import RUN_FLAGS, Flags, check_files, chosen, files_of, flag, flags_of, written_by
from dear_mpi.cli.run import Output, run_ranks, with_flags
from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.kernels.lookup import lookup
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import bar, commented, console

TUNE = (
    "Write our fastest algorithm for each size to FILE, for train --algorithm auto:FILE; or the MPI library's own, for "
    "this library, with a --format that measures them."
)
FORMAT = f"How rows are printed: {', '.join(FORMATS)}."
RAW = "Also write every sample of every rank into the file of --json."
FLAGS = flags_of(Suite) | RUN_FLAGS | flag("tune", Path | None, TUNE, metavar="FILE")
FLAGS |= flag("format", str, FORMAT, DEFAULT) | flag("raw", bool, RAW, False)


@with_flags(FLAGS, sizes="256KiB:64MiB")
def bench(flags: Flags) -> None:
    """Example: mpirun -n 4 dear-mpi bench --algorithms native,ring,auto --sizes 4B:64MiB"""
    check_files(files_of(Suite, flags), written_by(flags))
    form = lookup("format", flags.get("format", DEFAULT), FORMATS)
    if flags.get("raw") and "json_file" not in flags:
        raise ValueError("--raw needs --json FILE: that is where samples are written")
    suite = form.suited(Suite(**chosen(Suite, flags)), flags)
    acts = typed_acts("bench", flags, FLAGS)
    writers = {as_typed(name): act for name, act in acts.items() if isinstance(flags[name], Path)}
    looks = [act(flags) for name, act in acts.items() if not isinstance(flags[name], Path)]
    command = partial(bench_and_show, suite=suite, flags=flags, writers=writers, looks=looks)
    found = run_ranks(command, flags, device=suite.device)
    raise typer.Exit(int(any(row["wrong"] for row in found["rows"])))


def bench_and_show(
    world: World,
    suite: Suite,
    flags: Flags,
    *,
    writers: Mapping[str, Callable[[Run], object]],
    looks: Sequence[Callable[..., Look]],
) -> Output:
    began = now()
    suite = agreed(suite, world)  # first: later code looks up names
    form = flags.get("format", DEFAULT)
    tuned = FORMATS[form].tuned
    before = rules_before(flags["tune"], suite, world, of_auto=tuned is None) if "tune" in flags else ()
    with bar(world, len(suite.cases(world.size)), "warming up") as progress:
        report = run_bench(suite, world, progress)
    taken = [look(world, suite, report) for look in looks]
    head = provenance(world, began)

    def say() -> None:
        show_bench(world, report, form)
        # Programs read the other formats: only rows go to standard output.
        screen = console(world, stderr=form != DEFAULT)
        with commented(screen):
            for look in taken:
                look.show(screen)

    said_by_rank_0(world.transport, "bench", say, asleep=True)
    more = dict[str, Any]()
    run = Run("this run", report.rows, head)
    files: dict[str, Callable[[], object]] = {flag: partial(write, run) for flag, write in writers.items()}
    if "tune" in flags:
        files["--tune"] = (
            partial(write_tuned, flags["tune"], before, report.rows, world.transport.name)
            if tuned is None
            else lambda: write_text(flags["tune"], tuned(report))
        )
    for look in taken:
        more |= look.data
        files |= look.files
    rows = [object_of(row, raw=flags.get("raw", False)) for row in report.rows]
    return Output({**head, "loop": report.own_cost, "start": report.clock, "rows": rows, **more}, files)
