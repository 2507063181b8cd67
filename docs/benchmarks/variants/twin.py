"""The twin of a run: predicted from a small profile and from the link as ``bench`` measures it, beside the run itself.

Of processes, because what an engine waits for under threads of one interpreter is another one's work.
"""

import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from docs.benchmarks.variants.target import BASE, Target
from tests.launch import mpis_at_hand

CONTEST = ["--schedules", "dear,dear-eager,local:10,diloco:10", "--wire", "fp32,int8,blocks:10%", "--fusion", "none"]
LINK = ["--link", BASE]
RANKS, CORES, BATCH = 4, 2, 32
CALLS = "bench --collective reduce_scatter,all_gather --algorithms ring --sizes 1KiB,8KiB,32KiB,64KiB --budget 0.5s"
RUN = "--model mlp --iterations 60"


@cache
def in_turns() -> tuple[str, ...]:
    """What gives ranks the scheduler's class RR, if that is allowed: one that wakes does not wait for its neighbour."""
    command = ("chrt", "--rr", "1")
    allowed = (
        shutil.which("chrt") and subprocess.run([*command, "true"], check=False, capture_output=True).returncode == 0
    )
    return command if allowed else ()


def said(folder: str, ranks: int, *arguments: str) -> list[dict]:
    """What a command writes as JSON; of one process without MPI where ``ranks`` is 0."""
    mpi, file = mpis_at_hand()[0], Path(folder) / "said.json"
    launch = [*in_turns(), *mpi.mpirun, "-n", str(ranks)] if ranks else []
    command = [*launch, sys.executable, "-m", "dear_mpi", *arguments, "--json", str(file)]
    subprocess.run(command, env=mpi.environment(max(ranks, 1)), check=True, timeout=600, stdout=subprocess.DEVNULL)
    return json.loads(file.read_text())


@cache
def runs() -> tuple[list[dict], list[dict]]:
    """The rows of a comparison, and those that were predicted."""
    with TemporaryDirectory() as folder:
        link, profile = f"{folder}/link.json", f"{folder}/profile.json"
        Path(link).write_text(json.dumps(said(folder, RANKS, *CALLS.split(), *LINK)))
        how = ["--batch", str(BATCH * CORES // RANKS), "--wire", "int8", "--fusion", "none", "--profile", profile]
        said(folder, CORES, "train", *RUN.split(), *LINK, *how)
        seen = said(folder, RANKS, "compare", *RUN.split(), "--batch", str(BATCH), *LINK, *CONTEST)
        shared = ["--ranks", str(RANKS), "--ranks-per-core", str(RANKS // CORES)]
        return seen, said(folder, 0, "simulate", "--profile", profile, "--network", link, *shared, *CONTEST)


def off() -> dict[tuple[str, str], float]:
    """How much too long each row was predicted to be, by schedule and wire."""
    measured, predicted = ({(row["schedule"], row["wire"]): row for row in rows} for rows in runs())
    return {key: row["iteration_s"] / measured[key]["median_s"] - 1 for key, row in predicted.items()}


def all_rows() -> tuple[str, bool]:
    found = off().values()
    return f"{min(found):+.1%} to {max(found):+.1%}", max(map(abs, found)) <= 0.1


def diloco() -> tuple[str, bool]:
    found = off()["diloco:10", "fp32"]
    return f"{found:+.1%}", abs(found) <= 0.25


def diloco_time() -> tuple[str, bool]:
    means = {row["schedule"]: 1e3 * float(np.mean(row["iteration_s"])) for row in runs()[0] if row["wire"] == "fp32"}
    return f"{means['diloco:10']:.1f} ms (dear {means['dear']:.1f} ms)", means["diloco:10"] <= 8.0


RUNS = f"mlp at {BASE} on {RANKS} ranks of {CORES} cores{', class RR' if in_turns() else ''}"
TARGETS = [
    Target("compare, simulate", f"{RUNS}: each of 8 rows predicted within 10 %", all_rows),
    Target("diloco:10", "its row of these within 25 %", diloco),
    Target("diloco:10", "mean iteration of these at most 8 ms", diloco_time),
]
