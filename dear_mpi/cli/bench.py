"""Run ``dear-mpi bench``: its flags are the fields of ``Suite``, and a job's flags."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from dear_mpi.bench.analysis.after_arrival import show_arrivals
from dear_mpi.bench.analysis.explained import show_why
from dear_mpi.bench.analysis.guidelines import show_guidelines
from dear_mpi.bench.diff import compare_runs, report_of, show_diff
from dear_mpi.bench.layouts import BOTH, check_nccl
from dear_mpi.bench.output import DEFAULT, FORMATS, object_of, show_bench
from dear_mpi.bench.overlap import show_overlap
from dear_mpi.bench.provenance import now, provenance
from dear_mpi.bench.run import Report, agreed
from dear_mpi.bench.run import bench as run_bench
from dear_mpi.bench.saved import Run
from dear_mpi.bench.steps import Steps, show_steps
from dear_mpi.bench.suite import THIS_RUN, Suite, baseline_before
from dear_mpi.bench.timing import AtBarrier
from dear_mpi.bench.tune import rules_before, write_tuned
from dear_mpi.cli.bench_diff import RUNS, SHARE_FLAG, share_of
from dear_mpi.cli.commands import as_typed, typed_acts
from dear_mpi.cli.files import check_files, timeline_writer, written_by
from dear_mpi.cli.flags import RUN_FLAGS, Flags, chosen, files_of, flag, flags_of
from dear_mpi.cli.run import Output, run_ranks, with_flags
from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.kernels.lookup import lookup
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import bar, commented, complain, console
from dear_mpi.reporting.units import parse_sizes
from dear_mpi.see.timeline import TimelineFiles, timeline_of
from dear_mpi.training.declared import listed, parsed

TUNE = "Write our fastest algorithm for each size to FILE, for train --algorithm auto:FILE."
FORMAT = (
    f"How rows are printed: {', '.join(FORMATS)}. nccl is as nccl-tests, with both placements, osu as OSU's benchmarks."
)
RAW = "Also write every sample of every rank into the file of --json."
BASELINE = (
    f"Report where this run is slower than an older one; exit code 1 if it is, 3 if it cannot tell. A file {RUNS}"
)
TIMELINE = "With --steps: what each rank did, and when. FILE.json for Perfetto, or an ending that an extra draws."
WHY = "Explain the time of each algorithm at SIZE, which is then also measured; several with commas."
FLAGS = flags_of(Suite) | RUN_FLAGS | flag("tune", Path | None, TUNE, metavar="FILE")
FLAGS |= flag("baseline", str | None, BASELINE, metavar="FILE") | SHARE_FLAG
FLAGS |= flag("format", str, FORMAT, DEFAULT) | flag("raw", bool, RAW, False)
FLAGS |= flag("why", str | None, WHY, metavar="SIZE")
FLAGS |= flag("timeline", str | None, TIMELINE, metavar="FILE", show_default="none")


@with_flags(FLAGS, sizes="256KiB:64MiB")
def bench(flags: Flags) -> None:
    """Example: mpirun -n 4 dear-mpi bench --algorithms native,ring,auto --sizes 4B:64MiB"""
    before = listed("--baseline", flags["baseline"]) if "baseline" in flags else ()
    check_files(files_of(Suite, flags) | {"--baseline": before}, written_by(flags))
    lookup("format", flags.get("format", DEFAULT), FORMATS)
    if flags.get("raw") and "json_file" not in flags:
        raise ValueError("--raw needs --json FILE: that is where samples are written")
    if "at_least" in flags and not before:
        raise ValueError("--at-least needs --baseline FILE, the run to compare with")
    share_of(flags)
    suite = Suite(**chosen(Suite, flags))
    if flags.get("format") == "nccl":
        suite = suite if "placement" in flags else replace(suite, placements=BOTH)
        check_nccl(suite.collectives, suite.placements)
    if "why" in flags:
        suite = replace(suite, sizes=tuple(sorted({*suite.sizes, *why_of(flags)})))
    if "timeline" in flags and not suite.steps:
        raise ValueError("--timeline shows what --steps records: give both")
    if "tests" in flags and not suite.overlap:
        raise ValueError("--tests is the number of calls during the compute of --overlap: give both")
    after: dict[str, Any] = {"acts": typed_acts("bench", flags), "timeline": timeline_writer(flags)}
    command = partial(bench_and_show, suite=suite, flags=flags, baseline=before, **after)
    found = run_ranks(command, flags, device=suite.device)
    held = found.get("baseline", {"exit_code": 0})["exit_code"]
    raise typer.Exit(held if held in (1, 2) or not any(row["wrong"] for row in found["rows"]) else 1)


def why_of(flags: Flags) -> list[int]:
    return list(dict.fromkeys(parsed("--why", parse_sizes, flags["why"])))


def bench_and_show(
    world: World,
    suite: Suite,
    flags: Flags,
    baseline: Sequence[str],
    *,
    acts: Mapping[str, Callable[[Run], object]],
    timeline: TimelineFiles | None,
) -> Output:
    began = now()
    suite = agreed(suite, world)  # first: later code looks up its names
    before = rules_before(flags["tune"], suite, world) if "tune" in flags else ()
    older = baseline_before(baseline, suite, world) if baseline else []
    if suite.start == "auto" and {row.start for each in older for row in each.rows} == {AtBarrier.name}:
        suite = replace(suite, start=AtBarrier.name)  # or no point would match
    with bar(world, suite.points(world.size), "warming up") as progress:
        report = run_bench(suite, world, progress)
    head = provenance(world, began)
    run = Run(THIS_RUN, report.rows, head)
    more = said_by_rank_0(world.transport, "bench", lambda: said(world, report, older, run, flags), asleep=True)
    costs = {"loop": report.own_cost and asdict(report.own_cost), "start": report.clock}
    rows = [object_of(row, raw=flags.get("raw", False)) for row in report.rows]
    files: dict[str, Callable[[], object]] = {as_typed(name): partial(act, run) for name, act in acts.items()}
    if "tune" in flags:
        files["--tune"] = partial(write_tuned, flags["tune"], before, report.rows, world.transport.name)
    if timeline is not None and report.steps:
        files["--timeline"] = partial(write_steps, timeline, report.steps)
    return Output({**head, **costs, "rows": rows, **more}, files)


def said(world: World, report: Report, older: Sequence[Run], run: Run, flags: Flags) -> dict[str, Any]:
    """Print rows and their explanations on rank 0. Returns the rest of ``--json``."""
    form = flags.get("format", DEFAULT)
    show_bench(world, report, form)
    # Programs read the other formats, so everything but rows goes to standard error.
    screen = console(world, stderr=form != DEFAULT)
    more = dict(explanations(screen, world, report, flags))
    if older:
        more["baseline"] = against(screen, world, older, run, share_of(flags))
    return more


def explanations(screen: Console, world: World, report: Report, flags: Flags) -> Mapping[str, Any]:
    """Explain rows. Returns the explanations for ``--json``."""
    found: dict[str, Any] = {"guidelines": show_guidelines(screen, report.rows)}
    if arrived := show_arrivals(screen, report):
        found["arrival"] = arrived
    if "why" in flags:
        found["why"] = show_why(screen, world, report, why_of(flags))
    with commented(screen):
        show_steps(screen, report.steps, asked="steps" in flags)
        show_overlap(screen, report.overlap)
    return found | report.closer


def write_steps(files: TimelineFiles, found: Sequence[Steps]) -> None:
    title = f"Where the time goes, over {', '.join(dict.fromkeys(each.backend for each in found))}"
    within_s = max(each.clocks_us for each in found) * 1e-6
    files(timeline_of(title, {each.name: each.noted for each in found}, within_s))


def against(screen: Console, world: World, older: Sequence[Run], run: Run, at_least: float) -> dict[str, Any]:
    """Compare a run with the baseline, and show the result. Returns it for ``--json``.

    The run's memory and missing candidates are known only now. If no point matches, this is an error, but the
    measurements are kept.
    """
    try:
        diff = compare_runs(older, [run], at_least)
    except ValueError as error:
        complain(f"baseline: {error}", world.rank)
        return {"error": str(error), "slower": 0, "exit_code": 2}
    with commented(screen):
        show_diff(screen, diff)
    return report_of(diff)
