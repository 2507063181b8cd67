"""Kills a training job at random moments, and lets it go on: its end must be that of an undisturbed run.

python -m docs.benchmarks.faults.resume --kills 20 --seed 1
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from dear_mpi.reporting.files import older
from tests.launch import ROOT, mpis_at_hand

RANKS = 3
ITERATIONS = 3000
JOB = ["--model", "mlp", "--fusion", "none", "--iterations", str(ITERATIONS), "--seed", "5"]
LIMIT_S = 300.0


def launch(mpi, *flags):
    """A job in a process group of its own."""
    command = [*mpi.mpirun, "-n", str(RANKS), sys.executable, "-m", "dear_mpi", "train", *JOB, *flags]
    environment = mpi.environment(RANKS)
    return subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **PIPES)


PIPES = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}


def ranks_of(job):
    """The processes of the ranks: those below the launcher that run the command."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if os.getpgid(int(entry.name)) == job.pid or os.getsid(int(entry.name)) == job.pid:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[1:3] == [b"-m", b"dear_mpi"]:
                    found.append(int(entry.name))
    return found


def kill(job, choice):
    """SIGKILL to a rank, or to the launcher; what that leaves behind has seconds to go by itself."""
    ranks = ranks_of(job)
    victim = choice.choice([*ranks, job.pid])
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    job.communicate(timeout=LIMIT_S)
    end = time.monotonic() + LIMIT_S
    while ranks_of(job) and time.monotonic() < end:
        time.sleep(0.05)
    assert not ranks_of(job), f"processes are left: {ranks_of(job)}"
    return "the launcher" if victim == job.pid else "a rank"


def iterations_in(file):
    """How far a run had come at its last checkpoint."""
    found = file if file.exists() else older(file)
    return json.loads(bytes(np.load(found)["about"]))["iterations"] if found.exists() else 0


def done(job, what):
    """Wait for the end of a job that nobody disturbs."""
    _, said = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 0, f"{what} ended with {job.returncode}: {said}"


def campaign(mpi, kills, seed):
    """Kill and resume until ``kills`` jobs were killed; the last one ends by itself. What happened, in lines."""
    choice, killed = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as folder:
        file, report, whole = (Path(folder) / name for name in ("run.npz", "run.json", "whole.json"))
        begin = time.monotonic()
        done(launch(mpi, "--json", str(whole)), "the undisturbed run")
        length_s = time.monotonic() - begin
        while True:
            resumed = ["--resume"] if iterations_in(file) else []
            job = launch(mpi, "--save", str(file), "--every", "40", "--json", str(report), *resumed)
            if killed == kills:
                done(job, "the last run")
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(choice.uniform(0.1, 1.0) * length_s)
            if job.poll() is None:
                killed += 1
                victim = kill(job, choice)
                yield f"{killed:3}  {mpi.name}: {victim} was killed, {iterations_in(file)} iterations are kept"
            else:
                done(job, "a run that was to be killed")
            if iterations_in(file) == ITERATIONS:  # killed behind its last checkpoint, or not at all: from the start
                for each in (file, older(file)):
                    each.unlink(missing_ok=True)
        ends = [json.loads(path.read_text()) for path in (whole, report)]
        assert ends[0]["params_sha256"] == ends[1]["params_sha256"], "another result"
        assert ends[0]["loss"] == ends[1]["loss"], "other losses on the way"
        yield f"{mpi.name}: after {killed} kills the same parameters, {ends[0]['params_sha256'][:16]}..."


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for mpi in mpis_at_hand():
        for line in campaign(mpi, arguments.kills, arguments.seed):
            print(line, flush=True)


if __name__ == "__main__":
    main()
