"""The promises of tests/conftest.py and tests/launch.py, on real jobs: a failing or hanging rank ends its job.

No clock is read: a job has ended in the right way if it says why, and if none of its limits was what ended it.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch import TIMED_OUT

TESTS = Path(__file__).parent
LIMIT_S = 300  # of one launch and of each test in it: far beyond what they take on a busy machine

CALL = """
import pytest

@pytest.mark.mpi
def test_one(comm):
    print("said before")
    assert comm.rank != 1, "on purpose"
    comm.Barrier()
"""

TEARDOWN = """
import pytest

@pytest.fixture
def fragile(comm):
    yield
    assert comm.rank != 1, "on purpose"

@pytest.mark.mpi
def test_one(comm, fragile):
    pass
"""

IMPORT = """
import pytest
from mpi4py import MPI

assert MPI.COMM_WORLD.rank != 1, "on purpose"

@pytest.mark.mpi
def test_one(comm):
    comm.Barrier()
"""

ONE_RANK_HANGS = """
import time

import pytest
from mpi4py import MPI

MPI.COMM_WORLD.Barrier()  # so that the time of all ranks is over together, and each tells where it is

@pytest.mark.mpi
def test_one(comm):
    if comm.rank == 1:
        time.sleep(1000)
    comm.Barrier()
"""

AGREE = """
import pytest

@pytest.mark.mpi
def test_one(comm, agree):
    agree(comm.rank != 1, "on purpose")
"""

FAILURES = {"call": CALL, "teardown": TEARDOWN, "import": IMPORT, "agree": AGREE}

ALL_PASS = """
import pytest
from hypothesis import given, strategies

@pytest.mark.mpi(min_size=3)
def test_one(comm, agree):
    agree(comm.size == 3)

@pytest.mark.mpi
@given(count=strategies.integers(0, 1000))
def test_same_examples(comm, agree, count):
    agree(count == comm.bcast(count))
"""


def launch(*arguments):
    """Runs tests/launch.py; returns its exit status and all that it wrote, once no rank can write any more."""
    command = [sys.executable, TESTS / "launch.py", "--limit", str(LIMIT_S), *arguments]
    # pytest inside pytest: without what the outer one put into the environment.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    job = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3 * LIMIT_S,
        check=False,
    )  # fmt: skip
    return job.returncode, job.stdout


def launch_tests(folder, text, *options, limit_s=LIMIT_S):
    """Runs pytest on a file with this text, on 3 ranks; returns the status and the output of each launch.

    A launch is expected to fail: it is the first MPI at hand alone, unless the options say --keep-going.
    """
    (folder / "conftest.py").write_bytes((TESTS / "conftest.py").read_bytes())
    (folder / "test_it.py").write_text(text)
    pytest_options = ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", folder, "-o", f"mpi_limit_s={limit_s}"]
    status, output = launch("--ranks", "3", *options, "--", "-m", "pytest", *pytest_options, "--only-mpi", folder)
    outputs = re.split("^== .*: python .*$", output, flags=re.MULTILINE)[1:]
    assert outputs, f"no launch at all: {output}"
    return status, outputs


def assert_failed_by_itself(status, output):
    """The job failed, and no limit ended it: neither that of a launch nor that of a test."""
    assert status not in (0, TIMED_OUT), output
    assert f"FAILED with status {TIMED_OUT}" not in output
    assert "TIME OVER" not in output


def test_passing_job_is_reported_by_rank_0(tmp_path):
    status, outputs = launch_tests(tmp_path, ALL_PASS)
    assert status == 0, outputs
    for output in outputs:
        assert output.count("mpi: 3 rank(s)") == output.count("2 passed") == 1, output
        assert "[rank " not in output


@pytest.mark.parametrize("phase", FAILURES)
def test_failing_rank_ends_the_job(tmp_path, phase):
    status, outputs = launch_tests(tmp_path, FAILURES[phase], *(["--keep-going"] if phase == "call" else []))
    ranks = "012" if phase == "agree" else "1"  # who disagrees fails on all ranks, of which the first may end the job
    for output in outputs:
        assert_failed_by_itself(status, output)
        assert re.search(rf"\[rank [{ranks}] of 3\] FAILED", output), output
        assert "on purpose" in output
        assert ("said before" in output) == (phase == "call")


def test_hanging_rank_ends_the_job(tmp_path):
    status, outputs = launch_tests(tmp_path, ONE_RANK_HANGS, "--keep-going", limit_s=3)
    assert status not in (0, TIMED_OUT), outputs
    for output in outputs:
        assert f"FAILED with status {TIMED_OUT}" not in output
        assert "[rank 1 of 3] TIME OVER" in output
        assert "time.sleep(1000)" in output


def test_launch_stops_at_the_first_failure():
    status, output = launch("--ranks", "1", "2", "--", "-c", "import sys; sys.exit(3)")
    assert status == 3
    assert "1 rank(s)" in output
    assert "2 rank(s)" not in output


def test_launch_that_takes_too_long_is_ended_and_fails():
    """With its ranks: what they write comes to its end."""
    code = "import time; from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); time.sleep(1000)"
    status, output = launch("--limit", "3", "--keep-going", "--ranks", "2", "--", "-c", code)
    assert status == TIMED_OUT, output
    assert output.count(f"FAILED with status {TIMED_OUT}") == output.count("2 rank(s): python"), output


def test_missing_mpi_is_an_error():
    status, output = launch("--mpi", "none such", "--", "-c", "pass")
    assert status == 2
    assert "no mpirun" in output


FAILING_RANK = """
from dear_mpi.training.runs.config import Config
from dear_mpi.models.layers import Dense
from dear_mpi.training.runs.train import train
from dear_mpi.ranks.world import run_world

def main(world):
    backward = Dense.backward
    def failing(layer, dy):
        if world.rank == 1:
            raise ValueError("on purpose")
        return backward(layer, dy)
    Dense.backward = failing
    train(Config.of({"iterations": 5}), world)

run_world(main)
"""


def test_a_rank_that_fails_alone_in_training_ends_the_job():
    """The others wait for its gradients."""
    status, output = launch("--keep-going", "--ranks", "3", "--", "-c", FAILING_RANK)
    assert_failed_by_itself(status, output)
    assert output.count("rank 1 failed:") == output.count("3 rank(s): python"), output
    assert "ValueError: on purpose" in output


@pytest.mark.parametrize("number", range(12 if os.environ.get("EVERY") else 6))
def test_planted_fault_ends_as_it_should(number):
    """A few of `make faults`: no hang, no wrong result, the guilty rank named, no process left."""
    command = [sys.executable, "-m", "docs.benchmarks.faults.campaign", "--seed", "156", "--only", str(number)]
    job = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, timeout=3 * LIMIT_S, check=False)
    assert job.returncode == 0, job.stdout + job.stderr


DYING_RANK = """
import os, signal, sys

from dear_mpi.bench.timing import Interleaved
from dear_mpi.cli.app import app

run, runs = Interleaved.run, []

def dying(self, turns, *more, **how):
    runs.append(turns)
    if len(runs) == 5 and self.transport.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return run(self, turns, *more, **how)

Interleaved.run = dying
sys.argv = ["dear-mpi", "bench", "--sizes", "4B:1KiB", "--algorithms", "ring,native", "--json", {report!r}]
sys.argv += ["--budget", "10ms", "--stall-after", "5s", "--stall-abort"]
app()
"""


def test_a_rank_that_dies_in_the_benchmark_ends_the_job(tmp_path):
    """It is named, and no report is there, neither a part of a new one nor the one of an older run."""
    report = tmp_path / "rows.json"
    report.write_text("{}")
    code = DYING_RANK.format(report=str(report))
    status, output = launch("--keep-going", "--ranks", "3", "--", "-c", code)
    assert_failed_by_itself(status, output)
    launches = output.count("rank(s): python")
    assert output.count("FAILED with status") == launches, output
    assert [file.name for file in tmp_path.iterdir()] == ["rows.json.old"]


UNEQUAL = """
import sys
from contextlib import nullcontext
import numpy as np
from mpi4py import MPI
from dear_mpi.models.layers import Dense, SoftmaxCrossEntropy
from dear_mpi.training import Session

comm = MPI.COMM_WORLD
session = Session([Dense("a", np.eye(6))], SoftmaxCrossEntropy(), comm)
with session if "with" in sys.argv else nullcontext():
    for step in range(5):
        if step == 3 and comm.rank == 1:
            if "raise" in sys.argv:
                raise RuntimeError("on purpose")
            break
        session.step(np.ones((4, 6)), np.zeros(4, int))
"""


@pytest.mark.parametrize(("how", "said"), [
    (["with"], "rank 1 has come to the end of the session after 3 calls of step"),
    (["with", "raise"], "rank 1 has left the session in or after call 3 of step (RuntimeError: on purpose)"),
    (["raise"], "rank 1 has left the session in or after call 3 of step (its program has ended: on purpose)"),
], ids=["leaves", "raises", "raises without with"])  # fmt: skip
def test_a_rank_that_makes_fewer_steps_than_the_others_ends_the_job(how, said):
    """Also without ``-m mpi4py``: then it waits for the others at the end of MPI."""
    status, output = launch("--keep-going", "--limit", "120", "--ranks", "3", "--", "-c", UNEQUAL, *how)
    assert_failed_by_itself(status, output)
    for job in output.split("3 rank(s): python")[1:]:
        reported = re.search(r"rank [02] waits for .*, in or after call 4 of step, but " + re.escape(said), job)
        # MPICH may kill the others at once when a rank ends with an error: then there is its traceback alone.
        assert reported or (how == ["raise"] and "RuntimeError: on purpose" in job), output


CHILDREN = """
import multiprocessing, os, sys
import numpy as np
from mpi4py import MPI
from dear_mpi.collectives import all_reduce

if __name__ == "__main__":
    all_reduce(np.ones(4), MPI.COMM_WORLD)
    for how in ("spawn", "forkserver"):  # which run the lines above again
        with multiprocessing.get_context(how).Pool(1) as pool:
            assert pool.map(abs, [-1]) == [1]
    child = os.fork()
    if child == 0:
        raise RuntimeError("on purpose")
    assert os.waitpid(child, 0)[1]
    all_reduce(np.ones(4), MPI.COMM_WORLD)
    print("all is well")
"""


def test_children_of_a_rank_leave_mpi_alone(tmp_path):
    """They neither start it, as they would by an import at the top of the script, nor end it."""
    script = tmp_path / "script.py"
    script.write_text(CHILDREN)
    status, output = launch("--keep-going", "--limit", "120", "--ranks", "2", "--", "-m", "mpi4py", str(script))
    assert status == 0, output
    assert output.count("all is well") == 2 * output.count("2 rank(s): python"), output
