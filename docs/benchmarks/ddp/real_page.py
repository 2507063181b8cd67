"""Compares DistributedOptimizer with torch's DDP on real compute, on one machine and between hosts.

python -m docs.benchmarks.ddp.real_page [--keep FOLDER] [--parts resnet:2 transformer:hosts ...]

Linux, as root where a part is between hosts. With --keep what was measured stays in a folder (attempts.py).
"""

import argparse
import json
import os
import sys
from functools import partial
from itertools import groupby
from pathlib import Path

from docs.benchmarks.attempts import Runs, kept, run
from docs.benchmarks.ddp.models import MODELS
from docs.benchmarks.provenance import BELOW, Watch
from docs.benchmarks.stolen import await_quiet
from tests.launch import mpis_at_hand

PAGE, COMMAND = "docs/benchmarks/torch.md", "make bench-torch"
RANKS, RATE = 4, "1gbit"
LIMIT_S = 900
CASES = {"1": (1, False), "2": (2, False), "4": (4, False), "hosts": (RANKS, True)}  # ranks, whether between hosts
CUTS = {"resnet": "cut:2MB", "transformer": "cut:4MB"}  # between hosts, beside the fusion of a schedule's source
HOST_TURNS = {"resnet": 15, "transformer": 8}
PARTS = [f"{model}:{case}" for model in MODELS for case in CASES]
HEAD = """How does `DistributedOptimizer` compare with torch's DDP if torch computes?

- **Set-up**: one thread per rank. All rows take turns in one run; a turn is three iterations after one that does not
  count. **hosts** are network namespaces with 1 Gbit/s links.
- **resnet**: 1.2 million parameters, GroupNorm, 8 images of 3x32x32 per rank. **transformer**: 20 million parameters,
  2 sequences of 64 tokens per rank.
- **Peers**: DDP over gloo with `gradient_as_bucket_view`, and buckets of 25 MB (its default) or 4 MB; FSDP2 over gloo,
  a block of the model at a time; all with SGD, momentum and `foreach=True`. Horovod has no wheels.
- **ours**: `schedule, fusion`, with `algorithm="auto"`, and an instance of the same SGD for each bucket. Updates are
  full, as in DDP, unless a row is called `sharded`.
- **ms**: an iteration, the mean over ranks: the median over turns, and the distance to the farther end of its 95 %
  interval. **of DDP's time**: the median ratio of neighbouring turns to the faster row of DDP, with its 95 % interval.
  If it contains 1, nothing can be told.
- **Limits**: all ranks share two cores, so messages and compute need the same ones. GPUs were not measured.


"""
ONE_RANK = """One rank is compared with the same loop without DDP. "an optimiser for each bucket" is that loop with as
many optimisers as `dear` has buckets; the remaining difference is the cost of hooks.
"""


def measure(model, ranks, hosts, file):
    """Run a case; the lines of its table go into a file."""
    mpi = mpis_at_hand()[0]
    settings = {"MPIRUN": " ".join(mpi.mpirun), "LIMIT": str(LIMIT_S)}
    launcher = ["hostfiles/namespaces.sh", "with", str(ranks), RATE] if hosts else [*mpi.mpirun, "-n", str(ranks)]
    await_quiet()
    command = [*launcher, sys.executable, "-m", "docs.benchmarks.ddp.real", "--models", model]
    if hosts:
        rows = [f"dear, {CUTS[model]}", f"dear-eager, {CUTS[model]}", f"dear, {CUTS[model]}, sharded"]
        command += ["--turns", str(HOST_TURNS[model]), "--schedules", "dear", "wfbp", "ddp", *rows]
    file.write_text(json.dumps(run(command, mpi.environment(ranks) | settings, LIMIT_S)), encoding="utf-8")


def part(runs, model, case):
    """The lines of a case."""
    ranks, hosts = CASES[case]
    attempt = partial(measure, model, ranks, hosts)
    found = runs.take(f"{model} on {case}", f"{model}-{case}", partial(Watch, COMMAND, hosts=hosts), attempt)
    if found:
        file, record = found
        yield "### 1 rank\n" if ranks == 1 else f"### {ranks} {'hosts' if hosts else 'ranks'}\n"
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
            few.append(every[-1])
            for name in named:
                lines = list(part(runs, *name.split(":")))
                every += lines
                few += lines if name.endswith(":hosts") else []
    runs.write(PAGE, "Real torch compute compared with DDP", [*few, BELOW, ONE_RANK, *every])


if __name__ == "__main__":
    main()
