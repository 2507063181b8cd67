"""Plants faults into training jobs and judges how they end; the same faults for the same seed.

    python -m docs.benchmarks.faults.campaign --count 200 --seed 1 --json FILE.json   # make faults
    python -m docs.benchmarks.faults.campaign --seed 1 --only 17 --show    # one of them again, with its output

A fault is judged bad if the job hangs, ends well with another result than a healthy one, does not name who is to blame,
leaves a report though it failed, or leaves a process.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from tests.launch import ROOT, Mpi, mpis_at_hand

RANKS = 3
LIMIT_S = 90.0  # for a job that takes some seconds: what is still there is taken to hang
LEAVE_S = 5.0  # for the processes of a job to go, when the job is over
STALL_AFTER = "5s"
PHASES = (
    "imports", "MPI start", "set-up", "agreement", "plans", "algorithm", "first iteration", "collective", "mid run",
    "op", "flush", "evaluation", "report", "end",
)  # fmt: skip
ONLY_MPI = ("imports", "MPI start", "set-up", "end")
BAD = (  # on one rank alone
    ["--batch", "0"], ["--iterations", "9"], ["--link", "10gbit"], ["--lr", "-1"], ["--model", "cmn"],
    ["--fusion", "25"], ["--algorithm", "rnig"], ["--seed", "5"], ["--wire", "fp99"], ["--debug"],
    ["--stall-after", "x"], ["--no-such-flag"], ["bench", "--sizes", "1KiB"], ["--data", "nowhere.npz"],
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """What is planted; ``under`` is an MPI's name or threads."""

    number: int
    under: str
    kind: str
    phase: str
    rank: int
    at: int = 1
    peer: int = 0
    algorithm: str = "ring"
    schedule: str = "dear"
    arguments: list[str] = field(default_factory=list)

    def __str__(self):
        job = f"{self.under:9} {self.algorithm:18} {self.schedule:10}"
        return f"{self.number:3}  {job} {self.kind:12} {self.phase:15} rank {self.rank}"


@dataclass(frozen=True)
class Outcome:
    """How a job ended; ``faults`` is empty if as it should."""

    fault: Fault
    status: int | None
    seconds: float
    struck: bool
    faults: list[str]
    said: str
    output: str = field(repr=False, default="")


def draw(number, seed, unders):
    rng = random.Random(f"{seed}/{number}")
    under = unders[number % len(unders)]
    threads = under == "threads"
    kinds = ["late", "endless", "raise", "full disk", "dead link"]
    kinds += ["raise"] if threads else ["kill", "kill", "stop", "stop", "interrupt", "bad argument", "bad argument"]
    kind, rank = rng.choice(kinds), rng.randrange(RANKS)
    phases = [phase for phase in PHASES if not (threads and phase in ONLY_MPI)]
    if kind == "interrupt":  # a thread of another rank's engine cannot be interrupted, nor can MPI itself
        phases = [phase for phase in phases if phase not in ("imports", "collective", "op", "end")]
    if kind in ("stop", "endless"):  # while MPI starts and ends, no thread of ours sees for whom a rank waits
        unseen = ["imports", "MPI start", "end", *["set-up"] * (kind == "endless")]
        phases = [phase for phase in phases if phase not in unseen]
    if kind == "raise":
        phases = [phase for phase in phases if phase != "end"]  # the work is done, and Python goes on
    phase = {"full disk": "report", "dead link": "mid run", "bad argument": "arguments"}.get(kind) or rng.choice(phases)
    algorithm = rng.choice(["ring", "recursive_doubling", "naive", "auto", *([] if threads else ["native"])])
    if phase in ("op", "algorithm") or kind == "dead link":
        algorithm = "ring"
    schedule = "dear" if phase == "flush" else rng.choice(["dear", "wfbp", "sequential"])
    at = {"collective": rng.randint(1, 20), "mid run": rng.randint(4, 12), "op": rng.randint(1, 3), "plans": 2}.get(
        phase, 1
    )
    if algorithm in ("recursive_doubling", "naive"):
        schedule = "dear" if phase == "flush" else "wfbp"
    if (algorithm, schedule) == ("recursive_doubling", "dear"):  # which has no reduce-scatter
        algorithm = "naive"
    return Fault(
        number, under, kind, phase, 0 if kind == "full disk" else rank, at, (rank + 1) % RANKS, algorithm, schedule,
        list(rng.choice(BAD)),
    )  # fmt: skip


def named(fault):
    """A pattern of what must be said: who, and what was wrong with it."""
    who, peer = f"rank {fault.rank}", f"rank {fault.peer}"
    first = "at the earliest point: for .*"
    link = rf"{peer} {first}receiving from {who}|{who} {first}sending to {peer}"
    return {
        "kill": rf"process {who} with PID[^.]*signal|{who} is gone",
        "stop": rf"{who} \(process \d+\) is stopped",
        "interrupt": rf"{who} failed: KeyboardInterrupt|{who} was interrupted",
        "endless": rf"{who} \([^)]*\) waits for no other rank",
        "raise": rf"{who} failed: .*planted|planted.* on {who}",
        "bad argument": rf"\b{who}\b|\branks [\d, ]*{fault.rank}\b",
        "full disk": rf"No space left.* on {who}",
        "dead link": link,
    }.get(fault.kind, "")


def arguments(fault, folder):
    """Of ``dear-mpi``: a short training job."""
    given = ["train", "--model", "mlp", "--data", f"{folder.parent}/data.npz", "--iterations", "6", "--batch", "12"]
    given += ["--fusion", "none", "--schedule", fault.schedule, "--algorithm", fault.algorithm]
    given += ["--json", f"{folder}/report.json", "--stall-abort", "--stall-after"]
    given += [STALL_AFTER if fault.kind in ("kill", "stop", "endless", "dead link") else "30s"]
    given += ["--threads", str(RANKS)] if fault.under == "threads" else []
    return given + (["--link", "10gbit,10us"] if fault.kind == "dead link" else [])


def processes(mark):
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def launched(fault, folder):
    """Run the job to its end: its status (None: it hangs), the seconds, and how many processes it left."""
    given = arguments(fault, folder)
    planted = asdict(fault)
    if fault.kind == "bad argument":
        planted["arguments"] = fault.arguments if fault.arguments[0] == "bench" else given + fault.arguments
    mpi = next((mpi for mpi in mpis_at_hand() if mpi.name == fault.under), Mpi("threads", ()))
    environment = mpi.environment(RANKS)
    environment |= {"FAULT": json.dumps(planted), "FAULT_FOLDER": str(folder), "TMPDIR": str(folder)}
    command = [
        *mpi.mpirun, *(["-n", str(RANKS)] if mpi.mpirun else []), sys.executable,
        "-m", "docs.benchmarks.faults.plant", *given,
    ]  # fmt: skip
    begin, mark = time.monotonic(), f"FAULT_FOLDER={folder}\0"
    with open(folder / "output", "wb") as out:
        job = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            status = job.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            status = None
    seconds = time.monotonic() - begin
    left = processes(mark)
    while status is not None and left and time.monotonic() - begin - seconds < LEAVE_S:
        time.sleep(0.1)
        left = processes(mark)
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    job.wait()
    return status, seconds, left


def run(fault, home):
    folder = home / str(fault.number)
    folder.mkdir()
    status, seconds, left = launched(fault, folder)
    return judge(fault, folder, status=status, seconds=seconds, left=left)


def judge(fault, folder, *, status, seconds, left):
    output = (folder / "output").read_text(errors="replace")
    report, struck = folder / "report.json", (folder / "struck").exists()
    said, bad = re.search(named(fault), output), []
    if fault.kind == "kill":  # only the launcher sees it, and MPICH's names the process, not the rank
        said = said or re.search("KILLED|Killed", output)
    if status is None:
        bad.append("hangs")
    elif left:
        bad.append(f"leaves {len(left)} processes")
    if not struck:
        bad.append("did not strike")
    if status == 0 and fault.kind != "late":
        bad.append("ends with 0")
    if status == 0 and result(report) != healthy(fault.under, fault.algorithm, fault.schedule, folder.parent):
        bad.append("wrong result with 0")
    if status not in (0, None) and fault.kind == "late":
        bad.append(f"ends with {status}")
    if report.exists() and status != 0 and fault.phase != "end":
        bad.append("leaves a report")
    if said is None:
        bad.append("blames nobody")
    line = (
        ""
        if not said or not said.group()
        else next(line for line in output.splitlines() if said.group().splitlines()[0] in line)
    )
    return Outcome(fault, status, round(seconds, 1), struck, bad, line, output)


def result(report):
    try:
        return json.loads(report.read_text())["params_sha256"]
    except (OSError, ValueError, KeyError):
        return None


@cache
def healthy(under, algorithm, schedule, home):
    """The result of a job like this without a fault."""
    fault = Fault(-1, under, "none", "none", 0, algorithm=algorithm, schedule=schedule)
    folder = Path(tempfile.mkdtemp(dir=home))
    outcome = launched(fault, folder)
    assert outcome[0] == 0, (folder / "output").read_text()
    return result(folder / "report.json")


def prepare(home):
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 3, 240)
    np.savez(home / "data.npz", x=rng.standard_normal((240, 8)) + 3 * targets[:, None], y=targets)


def table(outcomes):
    """How many faults there were by phase and kind, and how many of them ended badly."""
    counts = Counter((outcome.fault.phase, outcome.fault.kind) for outcome in outcomes)
    bad = Counter((outcome.fault.phase, outcome.fault.kind) for outcome in outcomes if outcome.faults)
    phases = [phase for phase in ("arguments", *PHASES) if any(phase == key[0] for key in counts)]
    kinds = sorted({kind for _, kind in counts})
    yield f"| phase | {' | '.join(kinds)} |"
    yield "|---" * (len(kinds) + 1) + "|"
    for phase in phases:
        cells = [(counts[phase, kind], bad[phase, kind]) for kind in kinds]
        cells = [f"{all_} ({wrong} bad)" if wrong else f"{all_ or ''}" for all_, wrong in cells]
        yield f"| {phase} | {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="+", help="the numbers of the faults to plant")
    parser.add_argument("--under", nargs="+", help="only these MPIs, or threads")
    parser.add_argument("--jobs", type=int, default=2, help="how many jobs run at a time")
    parser.add_argument("--show", action="store_true", help="show what the jobs said")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    unders = options.under or [*(mpi.name for mpi in mpis_at_hand()), "threads"]
    faults = [draw(number, options.seed, unders) for number in options.only or range(options.count)]
    begin, outcomes = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="faults-") as home, ThreadPoolExecutor(options.jobs) as pool:
        prepare(Path(home))
        for outcome in pool.map(lambda fault: run(fault, Path(home)), faults):
            outcomes.append(outcome)
            verdict = ", ".join(outcome.faults) or "as it should"
            print(f"{outcome.fault}  {outcome.seconds:5.1f} s  {outcome.status}  {verdict}", flush=True)
            if options.show or outcome.faults:
                print("    " + outcome.output.replace("\n", "\n    "), flush=True)
    bad = [outcome for outcome in outcomes if outcome.faults]
    print("\n".join(table(outcomes)))
    print(f"{len(outcomes)} faults (seed {options.seed}), {len(bad)} ended badly; {time.monotonic() - begin:.0f} s")
    if options.json:
        rows = [asdict(outcome) for outcome in outcomes]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
