"""How long a job takes to come up and to end, phase by phase. As a script, it writes the page ``PAGE``.

python -m docs.benchmarks.startup
"""

import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from docs.benchmarks.provenance import BELOW, Watch, write_page
from tests.launch import ROOT, mpis_at_hand

PAGE, TITLE = "docs/benchmarks/startup.md", "How long a job takes to start"
RANKS = (2, 16, 64)
ROUNDS = 3
LIMIT_S = 600
PHASES = {
    "launched": "from the call of `mpirun` until the last rank's Python runs",
    "imported": "`import dear_mpi.cli.app, dear_mpi.cli.bench`, as the command `bench` does",
    "MPI": "`MPI_Init`",
    "agreed": "our transport: a communicator, the hosts of all ranks, and that all were given the same input",
    "first call": "the first all-reduce of 1 KiB by `ring`: its plan, its connections, its messages",
    "benchmark": "`bench` with `--algorithms ring,native --sizes 1KiB --budget 0.5s`",
    "ended": "until `mpirun` has returned",
}
APP = "import dear_mpi.cli.app, dear_mpi.cli.bench"
PACKAGES = 6
HEAD = f"""How long does a job take to start, and where does the time go?

- **Set-up**: jobs of Open MPI's `mpirun` on one machine. Seconds, medians over {ROUNDS} jobs; byte code and all files
  are in memory. A phase ends on its last rank; then the next one begins.
- **Limits**: from 16 ranks on, ranks take turns on the cores.
"""
FILES = """
## What an import asks of the file system

`import dear_mpi.cli.app, dear_mpi.cli.bench` makes {calls} system calls that take a path; {missed} find nothing. With
1,000 ranks on a shared file system, {thousand} requests reach its metadata server at once; [shared file
systems](../cluster.md#shared-file-systems) lists remedies. The import takes {warm:.2f} s with byte code and
{cold:.2f} s without, medians over {rounds} processes. The file of all rows has its parts.
"""


@dataclass(frozen=True)
class Cost:
    """What a package costs in an import: its own modules, without those that they import from others."""

    package: str
    modules: int
    own_ms: float


def clock():
    return time.clock_gettime(time.CLOCK_MONOTONIC)  # that of docs/benchmarks/come_up.py


def environment_of(python):
    """Ranks may find and write byte code, whatever our environment says."""
    return {name: value for name, value in python.items() if name != "PYTHONDONTWRITEBYTECODE"} | {
        "PYTHONPATH": str(ROOT)
    }


def phases_of(ranks):
    """Seconds of each phase of one job.

    Raises:
        CalledProcessError, TimeoutExpired, RuntimeError: the job, or a rank of it, did not come up and end.
    """
    mpi = mpis_at_hand()[0]
    with tempfile.TemporaryDirectory() as folder:
        command = [*mpi.mpirun, "-n", str(ranks), sys.executable, "-m", "docs.benchmarks.come_up", folder]
        began = clock()
        subprocess.run(command, env=environment_of(mpi.environment(ranks)), timeout=LIMIT_S, check=True)
        ended = clock()
        marks = [json.loads(file.read_text()) for file in Path(folder).glob("*.json")]
    if len(marks) != ranks:
        raise RuntimeError(f"{len(marks)} of {ranks} ranks came to their end")
    *measured, _ = PHASES
    ends = [began, *(max(mark[phase] for mark in marks) for phase in measured), ended]
    return dict(zip(PHASES, (after - before for before, after in itertools.pairwise(ends)), strict=True))


def table(counts=RANKS, rounds=ROUNDS):
    yield "| ranks | " + " | ".join(PHASES) + " | all |"
    yield "|---|" + "---|" * (len(PHASES) + 1)
    for ranks in counts:
        jobs = [phases_of(ranks) for _ in range(rounds)]
        seconds = [statistics.median(job[phase] for job in jobs) for phase in PHASES]
        whole = statistics.median(sum(job.values()) for job in jobs)
        yield f"| {ranks} | " + " | ".join(f"{each:.2f}" for each in [*seconds, whole]) + " |"
    yield ""
    yield from (f"- {phase}: {what}" for phase, what in PHASES.items())


def costs(said):
    """The packages in the table of ``-X importtime``, the dearest first.

    >>> costs("import time: 10 | 90 | a\\nimport time: 2000 | 2000 | a.b\\nimport time: 5 | 5 | c")[0]
    Cost(package='a', modules=2, own_ms=2.01)
    """
    own = {}
    for microseconds, module in re.findall(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)$", said, re.MULTILINE):
        own.setdefault(module.partition(".")[0], []).append(int(microseconds))
    found = [Cost(package, len(times), sum(times) / 1000) for package, times in own.items()]
    return sorted(found, key=lambda cost: -cost.own_ms)


def paths_asked(said):
    """(system calls, those that found nothing) in the summary of ``strace -c``.

    >>> paths_asked("100.00 0.005003 1 5056 334 total")
    (5056, 334)
    """
    calls, missed = re.findall(r"^100\.00 .*?(\d+) +(\d+) total$", said, re.MULTILINE)[0]
    return int(calls), int(missed)


def imported(*command, **variables):
    """What is said while a process imports all that a command does, and how many seconds that process lives."""
    environment = environment_of(os.environ) | variables
    began = clock()
    done = subprocess.run([*command, "-c", APP], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stderr, clock() - began


def without_byte_code():
    with tempfile.TemporaryDirectory() as empty:
        return imported(sys.executable, "-B", PYTHONPYCACHEPREFIX=empty)[1]


def imports():
    """Lines of Markdown; the number of calls needs strace."""
    imported(sys.executable)  # now there is byte code
    warm = statistics.median(imported(sys.executable)[1] for _ in range(ROUNDS))
    cold = statistics.median(without_byte_code() for _ in range(ROUNDS))
    calls, missed = paths_asked(imported("strace", "-f", "-c", "-e", "trace=%file", sys.executable)[0])
    yield FILES.format(calls=calls, missed=missed, thousand=f"{calls * 1000:,}", warm=warm, cold=cold, rounds=ROUNDS)
    dearest = costs(imported(sys.executable, "-X", "importtime")[0])
    rest = dearest[PACKAGES:]
    others = Cost("the others", sum(cost.modules for cost in rest), sum(cost.own_ms for cost in rest))
    yield "| package | modules | own ms |"
    yield "|---|---|---|"
    yield from (f"| {cost.package} | {cost.modules} | {cost.own_ms:.0f} |" for cost in [*dearest[:PACKAGES], others])


def main():
    if shutil.which("strace") is None:
        raise SystemExit("make startup counts system calls: apt-get install strace")
    imported(sys.executable)
    watch = Watch("make startup")
    phases, (calls, *parts) = list(table()), imports()
    write_page(PAGE, TITLE, [watch.record()], [HEAD, *phases, calls, BELOW, *phases, "", *parts])


if __name__ == "__main__":
    main()
