"""Compares ``--invariant`` with the ring in bytes, memory and time, and writes its page.

python -m docs.benchmarks.invariant_cost [--keep FOLDER]
"""

import json
import sys
import tempfile
from pathlib import Path
from statistics import median

from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.units import parse_link
from dear_mpi.training.fabric.plan_cost import traffic
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from docs.benchmarks.attempts import first_mpi, page_of_one_run, run

PAGE = "docs/benchmarks/invariant.md"
MICRO_BATCHES, LINK, RATE, LIMIT_S = 8, "1gbit,50us", "1gbit", 600
RANKS, HOSTS, ROUNDS = (2, 3, 4, 5), (2, 3, 4), 3
ELEMENTS, LAYERS, ITERATIONS = 1 << 19, 4, 9
TRAINED = ["--model", "synthetic:resnet50", "--forward-time", "0.05", "--backward-time", "0.1", "--fusion", "25MB"]
SUMS = {
    "ring": lambda passes: ["--accumulate", str(passes)],
    "invariant": lambda passes: ["--invariant", str(MICRO_BATCHES)],
    "fixed32": lambda passes: ["--invariant", str(MICRO_BATCHES), "--wire", "fixed32"],
}

HEAD = f"""`--invariant {MICRO_BATCHES}` sends more than the ring on 3 ranks only: they do not divide it.

- **MB sent**: by the busiest rank in an iteration; **MB held**: for gradients, by rank 0.
- **Threads**: {LAYERS} x {ELEMENTS} elements of fp32 under `sequential`, whose layers take no time, over an EMULATED
  {parse_link(LINK)}; the median of {ITERATIONS - 2} iterations.
- **Hosts**: network namespaces with one rank and a link of 1 Gbit/s each; `dear` on
  `{" ".join(TRAINED)}`.
  A cell is the median of {ROUNDS} runs in turns, with the least and the greatest. The ring takes as many passes
  (`--accumulate`). `fixed32` is `--invariant {MICRO_BATCHES} --wire fixed32`.
"""


def cost(world, table, micro_batches):
    """Bytes sent by the busiest rank, bytes held by rank 0 for gradients, seconds of an iteration, micro-batches."""
    choices = {"model": f"synthetic:{table}", "forward_time": 0.0, "backward_time": 0.0, "fusion": "layers:1"}
    config = Config.of(choices | {"invariant": micro_batches, "schedule": "sequential", "algorithm": "ring"})
    with Job(config, world, ["sequential"]) as job:
        times = [job.iterate("sequential", *job.batch(each))[1].iteration_s for each in range(ITERATIONS)]
        group = job.group
        sent = traffic(group.fabric, job.schedules["sequential"].collectives) if world.size > 1 else (0, 0)
        arrays = [group.arena.grads, *group.arena.buffers.values()]
        arrays += [each for side in group.fabric.sides.values() for each in side.values()]
        arrays += [each for call in group.calls for sums in call.partial for each in sums]
        return sent[1], sum(each.nbytes for each in arrays), median(times[2:]), list(map(len, group.shares))


def on_threads():
    """Yield a table's rows."""
    yield "| threads | micro-batches | MB sent | ring | MB held | ring | ms | ring |"
    yield "|---|---|---|---|---|---|---|---|"
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "model.json"
        modules = [{"name": f"layer{each}", "params": [ELEMENTS], "fwd_flops": 1} for each in range(LAYERS)]
        table.write_text(json.dumps({"batch": 64, "modules": modules}))
        for ranks in RANKS:
            both = [
                run_world(lambda world, m=m: cost(world, table, m), threads=ranks, link=parse_link(LINK))
                for m in (MICRO_BATCHES, None)
            ]
            cells = [f"{1e-6 * both[which][what]:.1f}" for what in (0, 1) for which in (0, 1)]
            cells += [f"{1e3 * each[2]:.1f}" for each in both]
            yield f"| {ranks} | {', '.join(map(str, both[0][3]))} | {' | '.join(cells)} |"


def measure(file):
    mpi, found = first_mpi(), {"threads": list(on_threads()), "hosts": {}}
    for hosts in HOSTS:
        environment = mpi.environment(hosts) | {"MPIRUN": " ".join(mpi.mpirun), "LIMIT": str(LIMIT_S)}
        for _ in range(ROUNDS):
            for name, flags in SUMS.items():
                report = file.with_name(f"{file.stem}-report.json")
                train = [sys.executable, "-m", "dear_mpi", "train", *TRAINED, "--schedule", "dear"]
                train += ["--iterations", "12", *flags(-(-MICRO_BATCHES // hosts)), "--json", str(report)]
                run(["hostfiles/namespaces.sh", "with", str(hosts), RATE, *train], environment, LIMIT_S)
                said = json.loads(report.read_text("utf-8"))
                row = {"ms": median(said["iteration_s"][said["uncounted"] :]) * 1e3, "sha": said["params_sha256"]}
                found["hosts"].setdefault(f"{hosts} {name}", []).append(row)
    file.write_text(json.dumps(found), encoding="utf-8")


def page(file):
    yield HEAD
    found = json.loads(file.read_text("utf-8"))
    yield from found["threads"]
    yield from (
        "",
        f"| hosts | {' | '.join(f'{name}, ms' for name in SUMS)} | invariant / ring |",
        "|---|---|---|---|---|",
    )
    for hosts in HOSTS:
        times = {name: sorted(row["ms"] for row in found["hosts"][f"{hosts} {name}"]) for name in SUMS}
        cells = [f"{median(each):.0f} ({each[0]:.0f} to {each[-1]:.0f})" for each in times.values()]
        yield f"| {hosts} | {' | '.join(cells)} | {median(times['invariant']) / median(times['ring']):.2f} |"
    yield ""
    for name in ("invariant", "fixed32"):
        bits = {row["sha"] for hosts in HOSTS for row in found["hosts"][f"{hosts} {name}"]}
        few = "one SHA-256" if len(bits) == 1 else f"{len(bits)} SHA-256, which is a fault"
        yield f"Parameters of all runs of `{name}` have {few}: `{min(bits)[:16]}`."


if __name__ == "__main__":
    page_of_one_run("docs.benchmarks.invariant_cost", __doc__, PAGE, "The cost of invariant sums", measure, page)
