"""Compares our schedules with PyTorch's ways to train, between hosts of namespaces; writes docs/benchmarks/ddp.md.

python -m docs.benchmarks.ddp.beside [--cases resnet50:0.31:9 ...] [--keep FOLDER]

Linux, as root. With --keep what was measured stays in a folder, and a quiet run of a case is not made again: so cases
may be measured one by one, and the page has all of those that are named.
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from dear_mpi.reporting.stats import median
from dear_mpi.reporting.terminal import interval
from dear_mpi.training.runs.compare import compared
from docs.benchmarks.attempts import Runs, kept, run
from docs.benchmarks.ddp.case import FULL, OURS, SHARDED, TORCH, Case
from docs.benchmarks.provenance import BELOW, Watch
from docs.benchmarks.stolen import ATTEMPTS, QUIET, await_quiet
from tests.launch import mpis_at_hand

PAGE, COMMAND = "docs/benchmarks/ddp.md", "make bench-ddp"
RANKS, RATE = 4, "1gbit"
LIMIT_S = 900
CASES = ("resnet50:0.31:9", "densenet201:0.24:9")

HEAD = f"""How do our schedules compare with PyTorch's ways to train, if communication takes long?

- **Set-up**: synthetic models on {RANKS} ranks, each on its own host: a network namespace of one machine with a link of
  1 Gbit/s. Layers sleep; gradients, updates and messages are real. All rows of a case take turns in one run.
- **torch**: SGD without momentum, one thread per rank. `DDP` has `gradient_as_bucket_view=True` and buckets of 25 MB
  (its default) or 4 MB. `ZeroRedundancyOptimizer` runs over DDP with 25 MB. `FSDP2` is `fully_shard` on groups of
  modules of 4 MiB or more. **our ring** is DDP over our backend.
- **ours**, in bold: `schedule, fusion`, with `ring` and the same SGD, as in `dear-mpi compare`.
- **ms**: an iteration on its slowest rank: the median, and the distance to the farther end of its 95 % interval.
  **rest**: updates and what else is neither layers nor waiting. **predicted** and **bound**, the least time that the
  schedule allows, use the compute measured here and the best of three measurements of collectives.
- **torch / it**: the time of the fastest row of torch over the time of this row, with its 95 % interval.
"""

READING = f"""## Limits

- Four ranks share two processors: TCP, sums, updates and Python take turns.
- Layers sleep, so the tables do not show how messages slow real layers ([torch](torch.md) does).
- A case is left out if every run in {ATTEMPTS} attempts lost more than {QUIET:.0%} of the processors to others.
"""
TITLES = {FULL: "full updates", SHARDED: "sharded updates"}


def table(rows):
    """The lines of the contestants that keep the same state, the fastest first."""
    torch_s = min((row["samples_s"] for row in rows if row["kind"] == TORCH), key=lambda each: median(each).value)
    yield "| | ms | rest | predicted | bound | torch / it | |"
    yield "|---|---|---|---|---|---|---|"
    for row in sorted(rows, key=lambda row: median(row["samples_s"]).value):
        found = compared(row["samples_s"], torch_s)
        time = interval(found["median_s"], found["median_low_s"], found["median_high_s"], 1e3, 0)
        foreseen = [row.get(name) for name in ("rest_s", "predicted_s", "bound_s")]
        parts = ["-" if each is None else f"{each * 1e3:.0f}" for each in foreseen]
        gain = f"{found['speedup']:.3f} ({found['ci_low']:.3f} to {found['ci_high']:.3f})"
        known = {"baseline": ("1", "fastest of torch"), "too noisy": ("-", "too noisy")}
        gain, said = known.get(found["verdict"], (gain, found["verdict"]))
        name = f"**{row['name']}**" if row["kind"] == OURS else row["name"]
        yield f"| {name} | {time} | {' | '.join(parts)} | {gain} | {said} |"


def section(case, record, rows, titles):
    """A case: a table for each kind of update."""
    yield f"## {case.model}, forward {case.forward_s:g} s, backward {2 * case.forward_s:g} s\n"
    yield f"{case.iterations} iterations of each; {record.begin} to {record.end} UTC; others took {record.stolen:.1%}"
    yield "of the processors.\n"
    for update, title in titles.items():
        yield f"### {case.model}, {title}\n"
        yield from table([row for row in rows if row["update"] == update])
        yield ""


def measure(text, file):
    """Run a case on the hosts."""
    mpi = mpis_at_hand()[0]
    settings = {"MPIRUN": " ".join(mpi.mpirun), "LIMIT": str(LIMIT_S)}
    await_quiet()
    hosts = ["hostfiles/namespaces.sh", "with", str(RANKS), RATE]
    command = [*hosts, sys.executable, "-m", "docs.benchmarks.ddp.contest", text, "--json", str(file)]
    run(command, mpi.environment(RANKS) | settings, 2 * LIMIT_S)


def page(runs, texts):
    """The lines of the page: full updates of the first case, and below all tables."""
    found = []
    for text in texts:
        name = text.replace(":", "-")
        if taken := runs.take(text, name, partial(Watch, COMMAND, hosts=True), partial(measure, text)):
            file, record = taken
            found.append((Case.of(text), record, json.loads(file.read_text("utf-8"))))
    few = section(*found[0], {FULL: TITLES[FULL]}) if found else []
    return [HEAD, *few, READING, BELOW, *(line for each in found for line in section(*each, TITLES))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=CASES, help="MODEL:SECONDS OF FORWARD:ITERATIONS")
    parser.add_argument("--keep", type=Path, help="a folder for what is measured")
    options = parser.parse_args()
    with kept(options.keep) as folder:
        runs = Runs(folder)
        lines = list(page(runs, options.cases))
    runs.write(PAGE, "Schedules compared with PyTorch's", lines)


if __name__ == "__main__":
    main()
