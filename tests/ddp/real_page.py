"""Compares DistributedOptimizer with torch's DDP on real compute, quiet and busy, on one machine and between hosts.

python -m tests.ddp.real_page [--keep FOLDER] [--parts resnet:2-busy transformer:hosts ...]

Linux, as root where a part is between hosts. With --keep what was measured stays in a folder (tests/attempts.py).
"""

import argparse
import json
import os
import sys
from functools import partial
from itertools import groupby
from pathlib import Path

from tests.attempts import Runs, kept, run
from tests.ddp.models import MODELS
from tests.launch import mpis_at_hand
from tests.provenance import BELOW, Watch
from tests.stolen import await_quiet

PAGE, COMMAND = "docs/benchmarks/torch.md", "make bench-torch"
RANKS, RATE = 4, "1gbit"
LIMIT_S = 900
CASES = {  # ranks, between hosts, beside a program on each core
    "1": (1, False, False),
    "2": (2, False, False),
    "4": (4, False, False),
    "hosts": (RANKS, True, False),
    "1-busy": (1, False, True),
    "2-busy": (2, False, True),
    "4-busy": (4, False, True),
}
CUTS = {"resnet": "cut:1MB", "transformer": "cut:4MB"}  # between hosts, beside the fusion of a schedule's source
HOST_TURNS = {"resnet": 15, "transformer": 8}
# A transformer beside busy cores takes long: it is measured if it is asked for.
PARTS = [f"{model}:{case}" for model in MODELS for case in CASES if model == "resnet" or not CASES[case][2]]
HEAD = """How does `DistributedOptimizer` compare with torch's DDP if torch computes?

- **Set-up**: one thread per rank. DDP over gloo and `DistributedOptimizer` take turns in one run; a turn is three
  iterations after one that does not count. **hosts** are network namespaces of this machine with 1 Gbit/s links. On
  **busy** machines a program spins on each core.
- **resnet**: 1.2 million parameters, GroupNorm, 8 images of 3x32x32 per rank. **transformer**: 20 million parameters,
  2 sequences of 64 tokens per rank.
- **Peer**: DDP with `gradient_as_bucket_view`, its own bucket sizes, and SGD with momentum and `foreach=True`.
- **ours**: `schedule, fusion, updates`, with `algorithm="auto"`, and an instance of the same SGD for each bucket.
  Updates are full, as in DDP, unless a row is called `sharded`.
- **ms**: an iteration, the mean over ranks: the median over turns, and the distance to the farther end of its 95 %
  interval. **of DDP's time**: the median ratio of neighbouring turns with its 95 % interval. If it contains 1, the
  two are not distinguishable.
- **Limits**: all ranks share two cores, so messages and compute need the same ones. GPUs were not measured.

The page shows the hosts; the file of all rows also has one machine, quiet and busy.
"""


def measure(model, ranks, hosts, busy, file):
    """Run a case; the lines of its table go into a file."""
    mpi = mpis_at_hand()[0]
    settings = {"MPIRUN": " ".join(mpi.mpirun), "LIMIT": str(LIMIT_S)}
    launcher = ["hostfiles/namespaces.sh", "with", str(ranks), RATE] if hosts else [*mpi.mpirun, "-n", str(ranks)]
    await_quiet()
    command = [*launcher, sys.executable, "-m", "tests.ddp.real", "--models", model, *["--busy"] * busy]
    if hosts:
        rows = [f"dear, {CUTS[model]}", f"dear-eager, {CUTS[model]}", f"dear, {CUTS[model]}, sharded"]
        command += ["--turns", str(HOST_TURNS[model]), "--schedules", "dear", "wfbp", "ddp", *rows]
    file.write_text(json.dumps(run(command, mpi.environment(ranks) | settings, LIMIT_S)), encoding="utf-8")


def part(runs, model, case):
    """The lines of a case."""
    ranks, hosts, busy = CASES[case]
    attempt = partial(measure, model, ranks, hosts, busy)
    found = runs.take(f"{model} on {case}", f"{model}-{case}", partial(Watch, COMMAND, hosts=hosts), attempt)
    if found:
        file, record = found
        said = "1 rank" if ranks == 1 else f"{ranks} {'hosts' if hosts else 'ranks'}"
        yield f"### {said}{', busy' if busy else ''}\n"
        yield f"{record.begin} to {record.end} UTC; others took {record.stolen:.1%} of the processors.\n"
        yield json.loads(file.read_text("utf-8"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=PARTS, help="MODEL:CASE")
    parser.add_argument("--keep", type=Path, help="a folder for what is measured")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    few, every = [HEAD], []
    with kept(options.keep) as folder:
        runs = Runs(folder)
        for model, named in groupby(options.parts, lambda name: name.partition(":")[0]):
            every.append(f"## {model}\n")
            for name in named:
                lines = list(part(runs, *name.split(":")))
                every += lines
                few += [f"## {model}\n", *lines] if CASES[name.partition(":")[2]][1] else []
    runs.write(PAGE, "Real torch compute compared with DDP", [*few, BELOW, *every])


if __name__ == "__main__":
    main()
