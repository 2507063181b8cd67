"""Compares what `dear-mpi advise` predicts for three scripts with DDP on hosts of namespaces; writes its page.

python -m docs.benchmarks.advise.beside [--scripts resnet ...] [--keep FOLDER]

Linux, as root, with PyTorch. With --keep what was measured stays in a folder, so that scripts may be measured one by
one; the page has those that are named.
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from dear_mpi.contrib.advise.answer import of_ddp
from dear_mpi.contrib.advise.observation import read_observation
from dear_mpi.reporting.stats import median
from dear_mpi.reporting.terminal import interval
from dear_mpi.simulate.settings import Settings
from docs.benchmarks.advise.timed import go_first
from docs.benchmarks.attempts import Runs, kept, run
from docs.benchmarks.provenance import Watch
from docs.benchmarks.stolen import await_quiet
from tests.launch import mpis_at_hand

PAGE, COMMAND = "docs/benchmarks/advise.md", "make bench-advise"
SCRIPTS = ("resnet", "transformer", "accumulating")
RANKS, RATE = (2, 4), "1gbit"
NETWORK = "956mbit,50us"  # what TCP carries of it: 1448 bytes in a frame of 1514
STEPS, LIMIT_S = 20, 300
OFF = 0.10  # the target

HEAD = f"""How well does `dear-mpi advise` predict DDP from one rank?

- **Set-up**: three PyTorch scripts without this package, one thread per rank: `docs/benchmarks/advise/resnet.py` (11
  million parameters, BatchNorm), `docs/benchmarks/advise/transformer.py` (8 million, tied embeddings, AdamW) and
  `docs/benchmarks/advise/accumulating.py` (6 million, batches in three parts).
- **alone**: ms of an iteration without hooks: the median, and the distance to the farther end of its 95 % interval.
  **seen**: the sum that `advise` reports. **off**: the difference; bold if it misses the target, {OFF:.0%}.
- **DDP**: ms of an iteration under DDP over gloo on its slowest rank. Each rank has its own host: a network namespace
  of one machine of two cores, with a link of 1 Gbit/s.
- **predicted**: from one rank, with `--network {NETWORK}`, the part of 1 Gbit/s that TCP carries. Of 4 ranks, two
  share a core: `--ranks-per-core 2`.
"""
READING = """## Limits

- Messages need the cores that compute: gloo's all-reduce takes longer during layers. So predictions are too short.
- GPUs, NCCL and real hosts were not measured.
"""


def first_table(found):
    """What one rank takes, and what was seen of it."""
    yield "| script | alone | seen | off | forward | backward | updates | outside layers |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, (_, alone_s, seen, _) in found.items():
        forward_s, backward_s = seen.profile.passes_s
        parts = (forward_s, backward_s, seen.update_s, seen.profile.rest_s)
        told = " | ".join(f"{each * 1e3:.1f}" for each in parts)
        yield f"| {name} | {spread(alone_s)} | {seen.sum_s * 1e3:.1f} | {off(seen.sum_s, alone_s)} | {told} |"
    yield ""


def second_table(found):
    yield "| script | ranks | DDP | predicted | off |"
    yield "|---|---|---|---|---|"
    for name, (_, _, seen, by_ranks) in found.items():
        for ranks, measured_s in by_ranks.items():
            foreseen_s = predicted_s(seen, ranks)
            told = f"{spread(measured_s)} | {foreseen_s * 1e3:.1f} | {off(foreseen_s, measured_s)}"
            yield f"| {name} | {ranks} | {told} |"
    yield ""


def spread(samples):
    middle = median(samples)
    return interval(middle.value, middle.low, middle.high, 1e3, 1)


def off(seconds, samples):
    """How far that is above the median, in bold where it misses the target."""
    share = seconds / median(samples).value - 1
    return f"**{share:+.1%}**" if abs(share) > OFF else f"{share:+.1%}"


def predicted_s(seen, ranks):
    """As ``advise`` says it, without its other rows."""
    per_core = max(1, ranks // 2)
    given = {"ranks": (ranks,), "network": NETWORK, "ranks_per_core": float(per_core)}
    settings = Settings(profile=seen.profile, models=(seen.profile.model,), **given)
    return of_ddp(settings, seen).iteration_s


def measure(name, file):
    """Run a script alone, under ``advise``, and under DDP on the hosts."""
    mpi, script = mpis_at_hand()[0], f"docs/benchmarks/advise/{name}.py"
    part = {each: file.with_suffix(f".{each}.json") for each in ("alone", "seen", *map(str, RANKS))}
    environment = mpi.environment(1) | {"OMP_NUM_THREADS": "1"}
    timed = [sys.executable, "-m", "docs.benchmarks.advise.timed", name, "--steps", str(STEPS), "--json"]
    await_quiet()
    run([*mpi.mpirun, "-n", "1", *timed, str(part["alone"]), "--alone"], environment, LIMIT_S)
    advise = ["advise", script, "--ranks", "2", "--network", NETWORK, "--save", str(part["seen"])]
    run([sys.executable, "-m", "dear_mpi", *advise], environment, LIMIT_S)
    for ranks in RANKS:
        settings = {"MPIRUN": " ".join(mpi.mpirun), "LIMIT": str(LIMIT_S), "OMP_NUM_THREADS": "1"}
        hosts = ["hostfiles/namespaces.sh", "with", str(ranks), RATE]
        run([*hosts, *timed, str(part[str(ranks)])], mpi.environment(ranks) | settings, 2 * LIMIT_S)
    file.write_text(json.dumps({each: json.loads(path.read_text("utf-8")) for each, path in part.items()}), "utf-8")


def page(runs, names):
    found = {}
    for name in names:
        taken = runs.take(name, name, partial(Watch, COMMAND, hosts=True), partial(measure, name))
        if taken:
            file, record = taken
            content = json.loads(file.read_text("utf-8"))
            seen = read_observation(file.with_suffix(".seen.json"))
            found[name] = record, content["alone"], seen, {ranks: content[str(ranks)] for ranks in RANKS}
    yield HEAD
    yield "## One rank\n"
    yield from first_table(found)
    yield "## DDP on hosts with 1 Gbit/s\n"
    yield from second_table(found)
    yield READING


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripts", nargs="+", default=SCRIPTS, choices=SCRIPTS)
    parser.add_argument("--keep", type=Path, help="a folder for what is measured")
    options = parser.parse_args()
    go_first()
    with kept(options.keep) as folder:
        runs = Runs(folder)
        lines = list(page(runs, options.scripts))
    runs.write(PAGE, "Predictions of `advise`", lines)


if __name__ == "__main__":
    main()
