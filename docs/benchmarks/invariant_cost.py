"""Compare ``--invariant`` with the ring: bytes, memory and time on 1 to 5 ranks.

    python -m docs.benchmarks.invariant_cost [M [LINK]]

Ranks are threads over an emulated link. Layers take no time, so an iteration is communication, sums and updates.
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

RANKS = (1, 2, 3, 4, 5)
ELEMENTS, LAYERS, ITERATIONS = 1 << 19, 4, 9
HEAD = ("ranks", "micro-batches", "MB sent", "ring", "MB held", "ring", "ms", "ring")


def cost(world, table, micro_batches):
    """Bytes sent by the busiest rank, bytes held by rank 0 for gradients, seconds of the median iteration."""
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


def main():
    micro_batches = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    link = parse_link(sys.argv[2] if len(sys.argv) > 2 else "1gbit,50us")
    print(f"{LAYERS} x {ELEMENTS} elements of fp32, {link}, EMULATED, {micro_batches} micro-batches")
    print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|")
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "model.json"
        modules = [{"name": f"layer{each}", "params": [ELEMENTS], "fwd_flops": 1} for each in range(LAYERS)]
        table.write_text(json.dumps({"batch": 64, "modules": modules}))
        for ranks in RANKS:
            both = [
                run_world(lambda world, m=m: cost(world, table, m), threads=ranks, link=link)
                for m in (micro_batches, None)
            ]
            cells = [f"{1e-6 * both[which][what]:.1f}" for what in (0, 1) for which in (0, 1)]
            cells += [f"{1e3 * each[2]:.1f}" for each in both]
            print(f"| {ranks} | {', '.join(map(str, both[0][3]))} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
