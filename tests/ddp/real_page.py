"""TorchSession beside torch's DDP on real compute, quiet and busy, on one machine and between hosts: its page.

python -m tests.ddp.real_page [--keep FOLDER] [--cases 2 2-busy hosts ...]

Linux, as root where `hosts` is among the cases. With --keep what was measured stays in a folder (tests/attempts.py).
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from tests.attempts import attempts, chosen, quietest, run
from tests.ddp.models import MODELS
from tests.launch import mpis_at_hand
from tests.provenance import Watch, write_page
from tests.stolen import QUIET, await_quiet

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
HEAD = """The compute is real: torch computes, with one thread for each rank. DDP over gloo and `TorchSession` take
turns in one run. A turn has three iterations, after one that does not count.

- **DDP** has gradients that are views of its buckets, its own bucket sizes, and SGD with momentum and `foreach=True`.
- **ours**: `schedule, fusion, updates`, with `algorithm="auto"` and the same SGD. `own` is the fusion of the schedule's
  source. Updates are full, as in DDP, unless a row says `sharded`.
- **resnet**: 1.2 million parameters, GroupNorm, 8 images of 3x32x32 a rank. **transformer**: 20 million parameters, 2
  sequences of 64 tokens a rank.
- **ms** of an iteration, the mean over ranks: the median over turns, and the distance to the farther end of its 95 %
  interval. **of DDP's time**: the median ratio of neighbouring turns, with its 95 % interval; if the interval contains
  1, the two are not told apart.
- **busy**: a program spins on each core meanwhile. **hosts**: network namespaces of this machine, with 1 Gbit/s links.
"""


def measure(file, model, ranks, *, hosts, busy):
    """Run a case; the lines of its table go into a file."""
    mpi = mpis_at_hand()[0]
    settings = {"MPIRUN": " ".join(mpi.mpirun), "LIMIT": str(LIMIT_S)}
    launcher = ["hostfiles/namespaces.sh", "with", str(ranks), RATE] if hosts else [*mpi.mpirun, "-n", str(ranks)]
    await_quiet()
    command = [*launcher, sys.executable, "-m", "tests.ddp.real", "--models", model, *["--busy"] * busy]
    if hosts:
        rows = [f"dear, {CUTS[model]}", f"dear-eager, {CUTS[model]}", f"dear-eager, {CUTS[model]}, sharded"]
        command += ["--turns", str(HOST_TURNS[model]), "--schedules", "dear", "wfbp", "ddp", *rows]
    file.write_text(json.dumps(run(command, mpi.environment(ranks) | settings, LIMIT_S)), encoding="utf-8")


def part(folder, model, case):
    """The record of a case, and its lines."""
    ranks, hosts, busy = CASES[case]
    name = f"{model}-{case}"

    def attempt(file):
        measure(file, model, ranks, hosts=hosts, busy=busy)

    file = quietest(folder, name, lambda: Watch(COMMAND, hosts=hosts), attempt)
    record = chosen(attempts(folder, name))
    said = "1 rank" if ranks == 1 else f"{ranks} {'hosts' if hosts else 'ranks'}"
    lines = [f"### {said}{', busy' if busy else ''}\n"]
    lines += [f"{record.begin} to {record.end} UTC; others took {record.stolen:.1%} of the processors.\n"]
    return record, [*lines, json.loads(file.read_text("utf-8"))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--keep", type=Path, help="a folder for what is measured")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    records, lines, left_out = [], [HEAD], []
    with tempfile.TemporaryDirectory(prefix="real-") as name:
        folder = (options.keep or Path(name)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for model in options.models:
            lines.append(f"## {model}\n")
            for case in options.cases:
                record, found = part(folder, model, case)
                if record.stolen > QUIET:
                    left_out.append(f"{model} on {case}")
                    continue
                records.append(record)
                lines += found
    if not records:
        raise SystemExit("no case was quiet: the page is not written")
    lines += [f"Left out, because no run was quiet: {', '.join(left_out)}.\n"] * bool(left_out)
    write_page(PAGE, "Real torch compute beside DDP", records, lines)


if __name__ == "__main__":
    main()
