"""bench-diff: what it prints and writes, how it ends, and what it refuses; and files of bench."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dear_mpi.cli import bench as cli_bench
from dear_mpi.cli.app import app
from dear_mpi.collectives.plans.tuning import read_rules
from dear_mpi.collectives.transports.loopback import LoopbackTransport
from tests.bench.runs import run_of
from tests.cli_checks import assert_one_line

SIZES = (4, 1024, 1 << 20)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def save(name, made=None, **head):
    made = made or run_of(np.random.default_rng(3), sizes=SIZES)
    with open(name, "w", encoding="utf-8") as file:
        json.dump({**head, "rows": [asdict(row) for row in made.rows]}, file)
    return name


def scaled(factor, seed=4):
    return run_of(np.random.default_rng(seed), sizes=SIZES, slow=factor)


def test_a_baseline_that_was_a_fifth_faster_ends_with_exit_code_1():
    before, after = save("before.json", host="a", date="1"), save("after.json", scaled(1.25), host="b", date="2")
    done = run("bench-diff", before, after, "--json", "diff.json")
    assert done.exit_code == 1, done.output
    assert "A: before.json\nB: after.json" in done.stdout
    assert [line.split() for line in done.stdout.splitlines() if "host" in line] == [
        ["│", "host", "│", "a", "│", "b", "│"]
    ]
    assert "slower: B takes over 5% longer than A" in done.stdout
    assert "note: a single run of each side" in done.stdout
    with open("diff.json", encoding="utf-8") as file:
        report = json.load(file)
    assert report["slower"] > 0
    assert report["differs"]["host"] == {"a": "a", "b": "b"}
    assert {"ratio", "ci_low", "ci_high", "p_slower", "verdict", "bytes", "algorithm"} <= set(report["points"][0])
    assert run("bench-diff", after, before).exit_code == 0, "now it is faster"
    assert run("bench-diff", before, after, "--at-least", "50%").exit_code == 0
    same = run("bench-diff", before, before)
    assert same.exit_code == 3, "so few samples tell nothing"
    assert "Smallest detectable slow-down where it cannot tell: " in same.stdout


def test_several_launches_are_given_with_commas():
    sides = [
        ",".join(save(f"{side}{seed}.json", scaled(slow, seed)) for seed in seeds)
        for side, slow, seeds in (("a", 1.0, (3, 4, 5, 6)), ("b", 1.4, (7, 8, 9, 10)))
    ]
    done = run("bench-diff", *sides)
    assert done.exit_code == 1, done.output
    assert "geometric means of the medians of launches" in done.stdout
    assert "single run" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a.json", "none.json"), "run 'none.json' is no readable JSON file: No such file"),
        (("a.json", "links.json"), "run 'links.json' must be a file of dear-mpi bench --json"),
        (("a.json", "rows.json"), "run 'rows.json' must be a file of dear-mpi bench --json: it must be an object"),
        (("a.json", "eight.json"), "no point is in both runs: ranks is 4 in a.json, and 8 in eight.json"),
        (("a.json", "slow.json"), "links are emulated in slow.json and real in a.json: they cannot be compared"),
        (
            ("a.json", "twice.json"),
            "it has 2 rows of one point (all_reduce, 4, cpu, fp32, sum,",
        ),
        (("a.json,a.json", "b.json"), "A must be different ones, not a.json, a.json"),
        (("a.json,", "b.json"), "A takes one or several with commas"),
        (("a.json", "b.json", "--at-least", "a lot"), "--at-least 'a lot' cannot be read: write it like 5%"),
        (("a.json", "b.json", "--at-least", "2000%"), "--at-least must be from 0% to 1000%, not 2000%"),
        (("a.json", "b.json", "--json", "b.json"), "--json 'b.json' would write over the file of B"),
    ],
)
def test_what_cannot_be_compared_is_one_line(arguments, said):
    for name, facts in (
        *(("a.json", {}), ("b.json", {}), ("eight.json", {"ranks": 8})),
        ("slow.json", {"backend": "EMULATED link of 1 Gbit/s over Open MPI"}),
    ):
        save(name, run_of(sizes=SIZES, **facts))
    save("twice.json", run_of(sizes=(4, 4)))
    for name, content in (("links.json", {"links": []}), ("rows.json", [1])):
        with open(name, "w", encoding="utf-8") as file:
            json.dump(content, file)
    assert_one_line(run("bench-diff", *arguments), said)


BENCH = ("bench", "--threads", 2, "--algorithms", "ring", "--sizes", "4B:1KiB", "--budget", "10ms")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--precision", "1"), "--precision '1' has no unit: write it like 5%, or as a part below 1, like 0.05"),
        (("--tests", "4"), "--tests is the number of calls during the compute of --overlap: give both"),
        (("--collective", "allreduce"), "collective 'allreduce' is unknown: did you mean 'all_reduce'"),
        (("--collective", "allreduce", "--tune", "rules.json"), "collective 'allreduce' is unknown"),
    ],
)
def test_what_cannot_be_is_refused_before_the_run(arguments, said, monkeypatch):
    monkeypatch.setattr("dear_mpi.cli.bench.run_bench", lambda *_: pytest.fail("it has begun"))
    assert_one_line(run(*BENCH, *arguments), said)


def test_a_file_that_cannot_be_written_in_the_end_takes_no_other_with_it():
    """A disk that was not full before the run is in the end: /dev/full takes no byte, and is not tried before."""
    os.symlink("/dev/full", "rules.json")
    done = run(*BENCH, "--tune", "rules.json", "--json", "now.json")
    assert done.exit_code == 1, done.output
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "--tune 'rules.json' cannot be written: No space left on device" in line
    with open("now.json", encoding="utf-8") as file:
        assert len(json.load(file)["rows"]) == 5


def test_rank_0_alone_judges_while_the_others_sleep(monkeypatch):
    """Awake they would keep it from its core, where ranks share cores."""
    judge, barrier, seen = cli_bench.show_overlap, LoopbackTransport.barrier, []

    def judging(screen, rows):
        seen.append((threading.current_thread().name, "judges"))
        return judge(screen, rows)

    def waiting(transport, *, asleep=False):
        seen.append((threading.current_thread().name, "asleep" if asleep else "awake"))
        barrier(transport, asleep=asleep)

    monkeypatch.setattr(cli_bench, "show_overlap", judging)
    monkeypatch.setattr(LoopbackTransport, "barrier", waiting)
    assert run(*BENCH).exit_code == 0
    assert [name for name, what in seen if what == "judges"] == ["rank_0"]
    mine, other = ([what for name, what in seen if name == rank] for rank in ("rank_0", "rank_1"))
    place = mine.index("judges")
    assert other[place] == mine[place + 1] == "asleep"


def test_a_report_is_written_though_nobody_reads_the_table():
    """As of bench | head -1, which goes after the first line: here the reader has gone before."""
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "dear_mpi", *map(str, BENCH), "--json", "now.json"]
    done = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True, check=False, timeout=100)
    os.close(writes)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads(Path("now.json").read_text("utf-8"))["rows"]) == 5


@pytest.mark.parametrize("arguments", [(*BENCH, "--json", "now.json"), ("--version",), ("bench", "--help")])
def test_a_table_that_cannot_be_written_is_one_line(arguments):
    """A full disk; what else there is to do, such as the report, is done, so that no rank waits."""
    command = [sys.executable, "-m", "dear_mpi", *map(str, arguments)]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=100)
    said = "error: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)
    if "--json" in arguments:
        assert len(json.loads(Path("now.json").read_text("utf-8"))["rows"]) == 5


def test_a_report_that_cannot_be_written_takes_no_other_file_with_it():
    os.symlink("/dev/full", "full.json")
    done = run(*BENCH, "--tune", "rules.json", "--json", "full.json")
    assert done.exit_code == 2
    assert "--json 'full.json' cannot be written: No space left on device" in done.stderr
    assert read_rules(Path("rules.json"))
