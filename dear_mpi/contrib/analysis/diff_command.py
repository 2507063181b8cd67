import typer

from dear_mpi.bench.saved import read_runs
from dear_mpi.cli.flags import Flags, argument, check_files, flag, shared, try_files, written_by
from dear_mpi.cli.run import with_flags, write_json
from dear_mpi.contrib.analysis.diff import compare_runs, show_diff
from dear_mpi.reporting.declared import listed
from dear_mpi.reporting.files import aside
from dear_mpi.reporting.terminal import console
from dear_mpi.reporting.units import parse_percentage

AT_LEAST = "5%"
MOST_AT_LEAST = 10.0
SHARE = "How much longer something must take to be called slower: less never counts."
RUNS = "of dear-mpi bench --json; several launches of the same with commas."
FLAGS = argument("a", str, f"The run before: a file {RUNS}", "A.json") | argument(
    "b", str, f"The run after: a file {RUNS}", "B.json"
)
FLAGS |= flag("at_least", str, SHARE, AT_LEAST) | shared("json_file")


@with_flags(FLAGS, alone="bench-diff")
def bench_diff(flags: Flags) -> None:
    """Example: dear-mpi bench-diff before1.json,before2.json,before3.json after1.json,after2.json,after3.json"""
    sides = [listed(name.upper(), flags[name]) for name in "ab"]
    json_file, written = flags.get("json_file"), written_by(flags)
    check_files(dict(zip(("A", "B"), sides, strict=True)), written)
    try_files(written)
    at_least = parse_percentage("--at-least", flags.get("at_least", AT_LEAST), MOST_AT_LEAST)
    a, b = map(read_runs, "AB", sides)
    with aside(json_file) as set_aside:
        found = compare_runs(a, b, at_least)
        set_aside()
        write_json(found.as_report(), json_file)
    show_diff(console(), found)
    raise typer.Exit(found.exit_code)
