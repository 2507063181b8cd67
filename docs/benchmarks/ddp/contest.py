"""PyTorch's ways to train and our schedules take turns in one run. On the ranks of a job; rank 0 writes the times.

python -m docs.benchmarks.ddp.contest resnet50:0.31:9 --json FILE
"""

import argparse
import json
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from dear_mpi.collectives import transport_of
from dear_mpi.contrib.gloo.candidate import gloo_group
from dear_mpi.models.synthetic import load_modules
from dear_mpi.ranks.world import run_world
from dear_mpi.training.runs.compare import Candidate, turns
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.job import Job
from docs.benchmarks.ddp.case import FULL, OURS, RING, SHARDED, TORCH, Case
from docs.benchmarks.ddp.loop import ddp, fsdp2, our_group, sleeping, zero

ALGORITHM = "ring"
LOOPS = {
    "DDP, 25 MB, gloo": (FULL, ddp),
    "DDP, 4 MB, gloo": (FULL, partial(ddp, bucket_mb=4)),
    "DDP, ZeroRedundancyOptimizer, gloo": (SHARDED, zero),
    "FSDP2, gloo": (SHARDED, fsdp2),
}
OVER_RING = {  # the same over our ring: what is the schedule, and what the transport
    "DDP, 25 MB, our ring": (FULL, ddp),
    "DDP, 4 MB, our ring": (FULL, partial(ddp, bucket_mb=4)),
}
# Our schedules at the fusion of their sources, and those that send early at 4 MB.
SCHEDULES = {
    FULL: (("ddp", "ddp"), ("bytescheduler", "cut:4MB"), ("dear", "cut:4MB"), ("dear-eager", "cut:4MB")),
    SHARDED: (("wfbp", "25MB"), ("bytescheduler", "cut:4MB"), ("dear", "cut:4MB"), ("dear-eager", "cut:4MB")),
}


def new_job(world, case, update):
    """Collective: a job on a communicator of its own, for our schedules."""
    own = replace(world, transport=transport_of(world.transport.native.Dup()))
    given = {"model": f"synthetic:{case.model}", "forward_time": case.forward_s, "iterations": case.iterations}
    given |= {"fusion": SCHEDULES[update][0][1], "update": update, "algorithm": ALGORITHM}
    return Job(Config.of(given), own, [name for name, _ in SCHEDULES[update]])


class Ours:
    """Collective: our schedules on their job."""

    def __init__(self, job, update):
        self.update = update
        self.candidates = {f"{name}, {fusion}": Candidate(job, name, fusion) for name, fusion in SCHEDULES[update]}

    def rows(self):
        """Collective: of each its seconds, and what was foreseen."""
        for name, each in self.candidates.items():
            found = each.timing()
            yield {
                "name": name,
                "kind": OURS,
                "update": self.update,
                "samples_s": list(found.steady_s),
                "rest_s": found.rest_s,
                "predicted_s": each.predicted_s(),
                "bound_s": found.bound_s,
            }


class Torch:
    """Collective: one of torch's loops."""

    def __init__(self, world, kind, name, update, loop):
        self.world, self.loop, self.facts = world, loop, {"name": name, "kind": kind, "update": update}
        self.samples_s = []

    def settle(self):
        for _ in range(2):  # DDP cuts its buckets anew after the first
            self.loop.iterate()

    def turn(self, count):
        """So many iterations that count, after one that does not."""
        self.world.transport.barrier()
        self.samples_s += [self.loop.iterate() for _ in range(1 + count)][1:]

    def row(self):
        """Collective: the seconds of each iteration on its slowest rank."""
        ranks = self.world.transport.gather_values(self.samples_s)
        slowest_s = [max(each) for each in zip(*ranks, strict=True)]
        return {**self.facts, "samples_s": slowest_s}


def contest(world, case):
    """Collective: a row for each."""
    modules = load_modules(case.model)
    new = partial(sleeping, modules, forward_s=case.forward_s, backward_s=2 * case.forward_s)
    with gloo_group(world), ExitStack() as stack:
        group = our_group(world.transport, ALGORITHM)
        loops = [Torch(world, TORCH, name, update, make(new())) for name, (update, make) in LOOPS.items()]
        for name, (update, make) in OVER_RING.items():
            loops.append(Torch(world, RING, name, update, make(new(), group=group)))
        ours = [Ours(stack.enter_context(new_job(world, case, update)), update) for update in SCHEDULES]
        everyone = [*loops, *(each for job in ours for each in job.candidates.values())]
        for each in everyone:
            each.settle()
        for count in turns(case.iterations):
            for each in everyone:
                each.turn(count)
        return [loop.row() for loop in loops] + [row for job in ours for row in job.rows()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", type=Case.of)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)

    def body(world):
        rows = contest(world, options.case)
        if world.rank == 0:
            options.json.write_text(json.dumps(rows), encoding="utf-8")

    run_world(body)


if __name__ == "__main__":
    main()
