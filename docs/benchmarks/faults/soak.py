"""Kills a rank of an elastic job every 20 s for half an hour: its end must be that of an undisturbed run.

python -m docs.benchmarks.faults.soak --minutes 30 --seed 1

Four or five ranks under Open MPI with ULFM. When two are left, the job is killed as a whole, and a new one resumes from
its checkpoint. Survivors may neither gain file handles nor keep growing. In /dev/shm nothing is left, except for what
killed jobs leave of the MPI library.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from docs.benchmarks.faults.resume import LIMIT_S, iterations_in, ranks_of
from tests.launch import ROOT, mpis_at_hand

TRAIN = [sys.executable, "-m", "dear_mpi", "train", "--model", f"{Path(__file__).with_name('soak_model.py')}:build"]
TRAIN += ["--invariant", "8", "--optimizer", "adamw", "--lr", "0.001", "--batch", "32", "--fusion", "cut:1KB"]
REPAIR = re.compile(r"note: ranks? ([\d, ]+) died in iteration \d+, at .* from iteration \d+, after ([\d.]+) (ms|s)")
FEWEST = 2
LIBRARY = ("sm_segment", "mpich_shm", "sem.")
GROWTH_BYTES = 64 << 20  # of a survivor, for buffers that deaths leave allocated


def launch(mpi, ranks, file, said, *flags):
    command = [*mpi.mpirun, "--with-ft", "ulfm", "-n", str(ranks), *TRAIN, "--elastic", "--save", str(file), *flags]
    command += ["--resume"] if iterations_in(file) else []
    how = {"cwd": ROOT, "env": mpi.environment(ranks), "start_new_session": True}
    return subprocess.Popen(command, stdout=said, stderr=said, **how)


def held(process):
    """The file handles and the bytes of memory of a process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return len(os.listdir(f"/proc/{process}/fd")), pages * os.sysconf("SC_PAGE_SIZE")


def in_shared_memory():
    return {name for name in os.listdir("/dev/shm") if not name.startswith(LIBRARY)}


def one_job(mpi, choice, file, said, every_s, until_s):
    """Let ranks die until two are left, then the job; return how many died, and what survivors gained."""
    job, died = launch(mpi, choice.choice((4, 5)), file, said, "--every", "50", "--iterations", "1000000"), 0
    begun = iterations_in(file)
    while iterations_in(file) == begun and job.poll() is None:
        time.sleep(0.2)
    first = {process: held(process) for process in ranks_of(job)}
    while time.monotonic() < until_s:
        time.sleep(every_s + choice.uniform(-1, 1))
        left = ranks_of(job)
        assert len(left) == len(first) - died, f"{len(left)} of {len(first)} ranks are left; the job: {job.poll()}"
        if len(left) == FEWEST:
            break
        os.kill(choice.choice(left), signal.SIGKILL)
        died += 1
    time.sleep(every_s / 2)  # the last death is repaired as well
    gained = [tuple(now - then for now, then in zip(held(each), first[each], strict=True)) for each in ranks_of(job)]
    while left := ranks_of(job):
        for process in [job.pid, *left]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.1)
    job.wait(LIMIT_S)
    return died, gained


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--every", type=float, default=20, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    mpi = next(mpi for mpi in mpis_at_hand() if mpi.name == "Open MPI")
    choice, until_s, deaths, gained = random.Random(options.seed), time.monotonic() + 60 * options.minutes, 0, []
    shared = in_shared_memory()
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder, "run.npz"), Path(folder, "said.txt")
        try:
            with log.open("w") as said:
                for number in itertools.count(1):
                    died, more = one_job(mpi, choice, file, said, options.every, until_s)
                    deaths, gained = deaths + died, gained + more
                    print(f"job {number}: {died} died, {iterations_in(file)} iterations, gained {more}", flush=True)
                    if time.monotonic() > until_s:
                        break
                end = ["--iterations", str(iterations_in(file) + 100), "--json"]
                assert launch(mpi, 4, file, said, *end, f"{folder}/soaked.json").wait(LIMIT_S) == 0
        except AssertionError:
            print(log.read_text()[-3000:])
            raise
        command = [*TRAIN, "--threads", "2", *end, f"{folder}/undisturbed.json"]
        subprocess.run(
            command, cwd=ROOT, env={"SOAK_SLEEP_S": "0", **os.environ}, check=True, stdout=subprocess.DEVNULL
        )
        soaked, whole = (json.loads(Path(folder, f"{name}.json").read_text()) for name in ("soaked", "undisturbed"))
        repairs = [float(time) * (1 if unit == "s" else 1e-3) for _, time, unit in REPAIR.findall(log.read_text())]
    median, longest = statistics.median(repairs), max(repairs)
    print(f"{number} jobs, {deaths} deaths; repaired after {median:.3f} s in the median, {longest:.3f} s at most")
    print(f"accuracy {soaked['accuracy']} and {whole['accuracy']} undisturbed")
    print(f"SHA-256 {soaked['params_sha256']} and {whole['params_sha256']} undisturbed")
    print(f"survivors gained {max(files for files, _ in gained)} handles and {max(b for _, b in gained)} bytes at most")
    assert soaked["params_sha256"] == whole["params_sha256"]
    assert len(repairs) == deaths, "each death is one line"
    assert all(files <= 0 and nbytes <= GROWTH_BYTES for files, nbytes in gained)
    assert in_shared_memory() <= shared, "shared memory is left"


if __name__ == "__main__":
    main()
