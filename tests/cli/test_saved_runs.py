"""Files of bench, and what cannot be written or is refused."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dear_mpi.cli import bench as cli_bench
from dear_mpi.collectives.plans.tuning import read_rules
from dear_mpi.collectives.transports.loopback import LoopbackTransport
from tests.cli_checks import assert_one_line, succeed
from tests.cli_checks import invoke as run


@pytest.fixture(autouse=True)
def _wide(here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


BENCH = ("bench", "--threads", 2, "--algorithms", "ring", "--sizes", "4B:1KiB", "--budget", "10ms")


@pytest.mark.parametrize(("arguments", "said"), [
    (("--precision", "1"), "--precision '1' has no unit: write it like 5%, or as a part below 1, like 0.05"),
    (("--collective", "allreduce"), "collective 'allreduce' is unknown: did you mean 'all_reduce'"),
    (("--collective", "allreduce", "--tune", "rules.json"), "collective 'allreduce' is unknown"),
])  # fmt: skip
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
    judge, barrier, seen = cli_bench.show_bench, LoopbackTransport.barrier, []

    def judging(*arguments):
        seen.append((threading.current_thread().name, "judges"))
        return judge(*arguments)

    def waiting(transport, *, asleep=False):
        seen.append((threading.current_thread().name, "asleep" if asleep else "awake"))
        barrier(transport, asleep=asleep)

    monkeypatch.setattr(cli_bench, "show_bench", judging)
    monkeypatch.setattr(LoopbackTransport, "barrier", waiting)
    succeed(*BENCH)
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
