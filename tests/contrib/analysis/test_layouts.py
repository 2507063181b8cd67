"""Formats of nccl-tests and OSU's benchmarks, by readers of these; CSV by pandas."""

import io
import json
import math
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dear_mpi.bench.case import OPERATIONS
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.output import COLUMNS, show_bench
from dear_mpi.bench.run import against_peers
from dear_mpi.bench.suite import Suite
from dear_mpi.contrib.analysis.layouts import NCCL, NCCL_TYPES, PROGRAMS
from dear_mpi.ranks.world import run_world
from tests.bench.readers import busbw_by_readers, footer_of, read_nccl, read_osu, read_table
from tests.bench.test_bench import row
from tests.bench.test_output import SPLIT, TIMES, alike, odd_rows, placed_rows, printed, report
from tests.cli_checks import assert_one_line, invoke, succeed
from tests.rooms import DELETED


@settings(max_examples=60, deadline=None)
@given(odd_rows())
def test_nccl_tests_readers_read_any_row(made):
    other = {"in place": "out of place", "out of place": "in place"}[made.placement]
    (line,) = read_nccl(printed("nccl", made, replace(made, placement=other, p50_us=1.0, wrong=0)))
    split = made.ranks if made.collective in SPLIT else 1
    assert (line.size, line.count) == (made.bytes, made.count // split)
    assert line.type == NCCL_TYPES.get(made.dtype, made.dtype)
    assert line.redop == {"average": "avg"}.get(made.op, made.op)
    assert line.root == (0 if made.collective == "broadcast" else -1)
    here, there = line.in_place, line.out_of_place
    if made.placement == "out of place":
        here, there = there, here
    assert (there.time_us, there.wrong) == (1.0, 0)
    alike(here.time_us, made.p50_us, 7)
    alike(here.algbw, made.algbw_GBps, 6)
    alike(here.busbw, made.busbw_GBps, 6)
    assert here.wrong == pytest.approx(made.wrong)


def test_the_heads_are_those_of_nccl_tests():
    """These are the format texts of its ``writeResultHeader``."""
    shared, times = "# %10s  %12s  %8s  %6s  %6s", "  %7s  %6s  %6s  %6s"
    names, units = ("time", "algbw", "busbw", "#wrong"), ("(us)", "(GB/s)", "(GB/s)", "")
    wanted = [
        shared % ("", "", "", "", "") + "           out-of-place                       in-place          ",
        (shared + 2 * times) % ("size", "count", "type", "redop", "root", *names, *names),
        (shared + 2 * times) % ("(B)", "(elements)", "", "", "", *units, *units),
    ]
    lines = printed("nccl", *placed_rows()).splitlines()
    at = next(number for number, line in enumerate(lines) if "redop" in line) - 1
    assert lines[at : at + 3] == wanted


def test_programs_that_read_nccl_tests_find_all_rows_of_all_algorithms():
    """Each in one table, with one header and trailer, and the name of its algorithm above it."""
    rows = placed_rows() + [replace(each, collective="all_gather", ranks=2) for each in placed_rows()]
    text = printed("nccl", *rows)
    wanted = [round(row.busbw_GBps, 2) for row in (*rows[:4:2], *rows[1:4:2])] * 2
    assert busbw_by_readers(text) == [pytest.approx(wanted)] * 3
    for part in ("out-of-place", "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : "):
        assert text.count(part) == 1
    titles = [line for line in text.splitlines() if ", cpu, isolated, over " in line]
    assert titles == [
        f"# {name}, {collective}, {ranks} ranks, cpu, isolated, over MPI"
        for collective, ranks in (("all_reduce", 4), ("all_gather", 2))
        for name in ("native", "ring")
    ]
    assert footer_of(text)[1] == pytest.approx([sum(row.busbw_GBps for row in rows) / len(rows)], rel=1e-4)


@pytest.mark.parametrize("collective", [each for each in OPERATIONS if each not in PROGRAMS])
def test_what_nccl_tests_have_no_program_for_has_no_such_layout(collective):
    with pytest.raises(ValueError, match=f"--format nccl has no layout for {collective}: it has all_reduce, "):
        NCCL.suited(Suite((4,), ("all_reduce", collective)), {})
    with pytest.raises(ValueError, match="--format nccl has both placements in each line: leave --placement out, or"):
        NCCL.suited(Suite((4,)), {"placement": "in"})


def test_the_readers_read_what_those_tools_print():
    line = "     1048576        262144     float     sum      -1"
    line += "    74.60   14.06   24.60       0    73.90   14.19   24.83       0"
    assert read_nccl(f"#\n{line}\n") == [
        (1048576, 262144, "float", "sum", -1, (74.60, 14.06, 24.60, 0), (73.90, 14.19, 24.83, 0))
    ]
    said = (
        "\n# OSU MPI Allreduce Latency Test v7.4\n# Datatype: MPI_CHAR.\n"
        "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations        Validation\n"
        "4                       0.83              0.82              0.84          50              Pass\n"
    )
    names = ("Size", "Avg Latency(us)", "Min Latency(us)", "Max Latency(us)", "Iterations", "Validation")
    row = dict(zip(names, ("4", "0.83", "0.82", "0.84", "50", "Pass"), strict=True))
    assert read_osu(said) == [("OSU MPI Allreduce Latency Test", "MPI_CHAR", [row])]


@settings(max_examples=60, deadline=None)
@given(odd_rows(), st.tuples(TIMES, TIMES, TIMES))
def test_osus_readers_read_any_row(made, times):
    low, mean, high = sorted(times)
    made = replace(made, rank_min_us=low, rank_mean_us=mean, rank_max_us=high)
    (block,) = read_osu(printed("osu", made))
    (found,) = block.rows
    split = made.ranks if made.collective in ("all_gather", "all_to_all") else 1
    assert int(found["Size"]) == made.bytes // split
    latencies = [float(found[f"{name} Latency(us)"]) for name in ("Avg", "Min", "Max")]
    assert latencies == pytest.approx([mean, low, high], abs=0.00501)
    assert (found["Iterations"], found["Validation"]) == ("9", "Fail" if made.wrong else "Pass")


@pytest.mark.skipif("operations" in DELETED, reason="an extra, which was deleted")
def test_barriers_and_messages_have_osus_layouts():
    rows = [replace(row("native", 64, 2.0), collective=name) for name in ("ping_pong", "bandwidth", "both_ways")]
    rows.insert(0, replace(row("native", 64, 2.0), collective="barrier", bytes=0, count=0))
    barrier, ping_pong, bandwidth, both_ways = read_osu(printed("osu", *rows))
    assert barrier.rows == [
        {"Avg Latency(us)": "2.00", "Min Latency(us)": "2.00", "Max Latency(us)": "2.00", "Iterations": "9"}
    ]
    assert ping_pong.title == "OSU MPI Latency Test"
    assert ping_pong.rows == [{"Size": "64", "Avg Latency(us)": "2.00", "Validation": "Pass"}]
    assert bandwidth.title == "OSU MPI Bandwidth Test"
    assert bandwidth.rows == [{"Size": "64", "Bandwidth (MB/s)": "32.00", "Validation": "Pass"}]
    assert both_ways.rows[0]["Bandwidth (MB/s)"] == "64.00"
    assert len(read_table(printed("table", *rows))) == 4  # and one table each


def test_lines_of_nccl_tests_have_both_placements_unless_others_are_asked_for():
    given = ("bench", "--threads", 2, "--algorithms", "ring,naive", "--sizes", "1K,2K", "--budget", "10ms")
    result = succeed(*given, "--format", "nccl")
    assert [line.size for line in read_nccl(result.stdout)] == [1024, 2048] * 2
    assert [len(found) for found in busbw_by_readers(result.stdout)] == [4] * 3
    done = invoke(*given, "--format", "nccl", "--placement", "in")
    assert_one_line(done, "--format nccl has both placements in each line")
    done = invoke(*given, "--format", "nccl", "--collective", "barrier")
    assert_one_line(done, "--format nccl has no layout for barrier")


@settings(max_examples=30, deadline=None)
@given(st.lists(odd_rows(), min_size=1, max_size=4))
def test_csv_goes_through_pandas(made):
    pandas = pytest.importorskip("pandas")
    found = pandas.read_csv(io.StringIO(printed("csv", *made)), keep_default_na=False, na_values=[""])
    assert list(found) == list(COLUMNS)
    assert set(COLUMNS) == {each.name for each in fields(Row)} - {"times_us"}
    for read, was in zip(found.to_dict("records"), against_peers(made), strict=True):
        read["hosts"] = json.loads(read["hosts"])
        read = {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in read.items()}
        assert Row(**read) == replace(was, times_us=None)


def test_markdown_is_a_table():
    lines = printed("markdown", *placed_rows(), row("ring|x", 64), names=("ring", "ring|x")).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 4 + 1
    assert "ring\\|x" in table[-1]
    assert {line.replace("\\|", "").count("|") for line in table} == {15}
    assert lines[len(table)] == ""


def test_rank_0_prints_and_says_who_was_left_out(capsys):
    made = report(row("ring", 64), left_out=[("gloo: needs torch", "all_reduce", 4)])
    run_world(lambda world: show_bench(world, made, "csv"), threads=2)
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2
    assert said.err.strip() == "note: left out: gloo: needs torch (all_reduce of 4 B)"


@pytest.mark.parametrize(("form", "first"), [("csv", "collective,"), ("markdown", "| coll")])
def test_bench_prints_in_a_format(form, first):
    given = ("--sizes", "1KiB", "--budget", "10ms", "--format", form)
    assert succeed("bench", "--threads", 2, "--algorithms", "ring", *given).stdout.startswith(first)


def test_a_format_for_programs_has_rows_alone():
    """All ranks of a job of threads have one standard output: nobody may lead it elsewhere for a while."""
    given = ("--sizes", "64B,1KiB", "--budget", "10ms", "--format", "csv")
    result = succeed("bench", "--threads", 3, "--algorithms", "ring", *given)
    assert [line.split(",")[0] for line in result.stdout.splitlines()] == ["collective", "all_reduce", "all_reduce"]
