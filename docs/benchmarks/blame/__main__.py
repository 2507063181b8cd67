"""Blame of real runs with one planted cause each, and without any; what it costs, on and off in turns: its page.

python -m docs.benchmarks.blame [--each 20] [--pairs 20] [--keep FOLDER]

With --keep what was measured stays in a folder, so that the page may be made in parts.
"""

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from dear_mpi.contrib.blame.blamed import FAR
from dear_mpi.contrib.blame.job import Blamer
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.stats import median
from dear_mpi.reporting.terminal import interval
from dear_mpi.reporting.units import parse_link
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from dear_mpi.training.runs.train import train
from docs.benchmarks.attempts import run
from docs.benchmarks.blame.planted import LATE_S, LINK, MODEL_FILE, TRAINING, Cause, model_in, plant_in_layers, planted
from docs.benchmarks.provenance import Watch, write_page
from tests.launch import mpis_at_hand

PAGE, COMMAND = "docs/benchmarks/blame.md", "make bench-blame"
KINDS, RANKS, LIMIT_S = ("rank", "link", "layer", "none"), 4, 120
WHAT = {
    "rank": f"a rank sleeps {LATE_S * 1e3:.0f} ms in each iteration",
    "link": "a link of half the rate",
    "layer": "a layer takes twice as long",
    "none": "nothing",
}
HEAD = f"""Does `blame` name the cause of a slow iteration?

- **Set-up**: training on {RANKS} ranks under MPI, with an emulated link of {LINK} and layers that sleep. Each run
  slows down one thing (`docs/benchmarks/blame/planted.py`), drawn by its seed.
- **named rightly**: `blame` names this cause only, or reports that nothing stands out if nothing is planted.
- **saves**: how much shorter an iteration would be without the cause: the median of right runs. **twin**: an iteration
  of a run without the cause over the predicted one, farthest from 1.
- **Limits**: one cause at a time. A run that `blame` refuses ends the measurement without a page.
"""


def trained(world, cause, model, blame):
    prepare = Job.prepare

    def with_cause(job, world):
        facts = prepare(job, world)
        plant_in_layers(job.workload.layers, cause, world.rank)
        return facts

    Job.prepare = with_cause
    try:
        observers = {"blame": Blamer} if blame else {}
        return train(Config.of(TRAINING | {"model": model}), planted(world, cause), observers=observers)
    finally:
        Job.prepare = prepare


def on_rank(kind, seed, file, *, blame):
    cause = Cause.drawn(kind, random.Random(f"{kind} {seed}"), RANKS)
    model = f"synthetic:{Path(file).parent / MODEL_FILE}"
    rank, report = run_world(lambda world: (world.rank, trained(world, cause, model, blame)), link=parse_link(LINK))
    if rank == 0:
        found = report["blame"] if blame else {"causes": [], "off": 0.0}
        named = [[each["kind"], each["name"], each["share"], each["without_s"]] for each in found["causes"]]
        told = {"wanted": [cause.kind, cause.name], "named": named, "off": found["off"]}
        Path(file).write_text(json.dumps(told | {"iteration_s": report["iteration_s"][report["uncounted"] :]}), "utf-8")


def measured(folder, kind, seed, *, blame=True):
    file = folder / f"{kind}-{seed}-{'on' if blame else 'off'}.json"
    if not file.exists():
        model_in(folder)
        mpi = mpis_at_hand()[0]
        how = [sys.executable, "-m", "docs.benchmarks.blame", "--run", kind, str(seed), str(file)] + ["--without"] * (
            not blame
        )
        run([*mpi.mpirun, "-n", str(RANKS), *how], mpi.environment(RANKS), LIMIT_S)
    return json.loads(file.read_text("utf-8"))


def is_right(found):
    kind, name = found["wanted"]
    named = [each[:2] for each in found["named"]]
    return abs(found["off"]) <= FAR and named == ([] if kind == "none" else [[kind, name]])


def lines(folder, each, pairs):
    costs = list(overhead(folder, pairs))  # first: else its runs would be there already, and not in turns
    yield "| planted | named rightly | saves | twin | replay off by at most |"
    yield "|---|---|---|---|---|"
    wrong = []
    for kind in KINDS:
        found = [measured(folder, kind, seed) for seed in range(each)]
        right = [one for one in found if is_right(one)]
        wrong += [one for one in found if not is_right(one)]
        shares = [one["named"][0][2] for one in right if one["named"]]
        saves = f"{median(shares).value:.1%}" if shares else ""
        twins = [twin_of(folder, seed, one) for seed, one in enumerate(found) if one in right and one["named"]]
        twin = f"{max(twins, key=lambda ratio: abs(ratio - 1)):.2f}" if twins else ""
        off = max(abs(one["off"]) for one in found)
        yield f"| {WHAT[kind]} | {len(right)} of {each} | {saves} | {twin} | {off:.2%} |"
    yield ""
    for one in wrong:
        named = ", ".join(f"{kind} {name} ({share:.1%})" for kind, name, share, _ in one["named"]) or "nothing"
        off = f"; the replay was off by {abs(one['off']):.0%}" if abs(one["off"]) > FAR else ""
        yield f"- wrong: {' '.join(one['wanted']).strip()} was planted, and named was: {named}{off}"
    yield ""
    yield from costs


def twin_of(folder, seed, found):
    """An iteration with nothing planted, over what it was said to take without what was named."""
    return median(measured(folder, "none", seed)["iteration_s"]).value / found["named"][0][-1]


def overhead(folder, pairs):
    """On and off in turns: medians of iterations of each run, and of those the median with its interval."""
    yield "| ms of an iteration | median, to the farther end of its 95 % interval |"
    yield "|---|---|"
    taken = {True: [], False: []}
    for pair in range(pairs):
        for blame in (True, False) if pair % 2 else (False, True):
            found = measured(folder, "none", pair, blame=blame)
            taken[blame].append(median(found["iteration_s"]).value)
    taken["on - off"] = [on - off for on, off in zip(taken[True], taken[False], strict=True)]
    for name, samples in (
        ("with `--blame`", taken[True]),
        ("without", taken[False]),
        ("with - without, by pairs", taken["on - off"]),
    ):
        middle = median(samples)
        yield f"| {name} | {interval(middle.value, middle.low, middle.high, 1e3, 2)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--run", nargs=3)
    parser.add_argument("--without", action="store_true")
    given = parser.parse_args()
    if given.run:
        kind, seed, file = given.run
        on_rank(kind, int(seed), file, blame=not given.without)
        return
    watch = Watch(COMMAND)
    folder = given.keep or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(lines(folder, given.each, given.pairs))
    write_page(PAGE, "Causes that `blame` must name", [watch.record()], [HEAD, *rows])


if __name__ == "__main__":
    main()
