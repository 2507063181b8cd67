"""The twin of a run: predicted from a small profile and from the link as ``bench`` measures it, beside the run itself.

Of processes, because what an engine waits for under threads of one interpreter is another one's work.
"""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.launch import mpis_at_hand
from tests.variants.target import BASE, Target

CONTEST = ["--schedules", "dear,dear-eager,local:10,diloco:10", "--wire", "fp32,int8,blocks:10%", "--fusion", "none"]
LINK = ["--link", BASE]
RANKS, CORES = 4, 2
CALLS = "bench --collective reduce_scatter,all_gather --algorithms ring --sizes 1KiB,8KiB,32KiB,64KiB --seconds 0.5"
RUN = "--model mlp --iterations 60"


def said(folder: str, ranks: int, *arguments: str) -> list[dict]:
    """What a command writes as JSON; of one process without MPI where ``ranks`` is 0."""
    mpi, file = mpis_at_hand()[0], Path(folder) / "said.json"
    launch = [*mpi.mpirun, "-n", str(ranks)] if ranks else []
    command = [*launch, sys.executable, "-m", "dear_mpi", *arguments, "--json", str(file)]
    subprocess.run(command, env=mpi.environment(max(ranks, 1)), check=True, timeout=600, stdout=subprocess.DEVNULL)
    return json.loads(file.read_text())


@cache
def off() -> dict[tuple[str, str], float]:
    """How much too long each row of a comparison was predicted to be, by schedule and wire."""
    with TemporaryDirectory() as folder:
        link, profile = f"{folder}/link.json", f"{folder}/profile.json"
        Path(link).write_text(json.dumps(said(folder, RANKS, *CALLS.split(), *LINK)))
        batch = str(32 * CORES // RANKS)
        how = ["--batch", batch, "--wire", "int8", "--fusion", "none", "--profile", profile]
        said(folder, CORES, "train", *RUN.split(), *LINK, *how)
        seen = said(folder, RANKS, "compare", *RUN.split(), "--batch", "32", *LINK, *CONTEST)
        shared = ["--ranks", str(RANKS), "--ranks-per-core", str(RANKS // CORES)]
        twin = said(folder, 0, "simulate", "--profile", profile, "--network", link, *shared, *CONTEST)
    measured = {key(row): row["median_s"] for row in seen}
    return {key(row): row["iteration_s"] / measured[key(row)] - 1 for row in twin}


def key(row: dict) -> tuple[str, str]:
    return row["schedule"], row["wire"]


def all_rows() -> tuple[str, bool]:
    return f"{min(off().values()):+.1%} to {max(off().values()):+.1%}", max(map(abs, off().values())) <= 0.1


def diloco() -> tuple[str, bool]:
    found = off()["diloco:10", "fp32"]
    return f"{found:+.1%}", abs(found) <= 0.25


RUNS = f"mlp at {BASE} on {RANKS} ranks of {CORES} cores"
TARGETS = [
    Target("compare, simulate", f"{RUNS}: each of 8 rows predicted within 10 %", all_rows),
    Target("diloco:10", "its row of these within 25 %", diloco),
]
