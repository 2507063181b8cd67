"""DistributedOptimizer beside PyTorch's DDP over gloo on models of real torch compute, taking turns in one run.

mpirun -n 2 python -m tests.ddp.real [--models resnet transformer] [--schedules dear wfbp ddp] [--busy]

Rank 0 prints a table for each model. `make bench-torch` makes a page of several runs (real_page.py).
"""

import argparse
import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from statistics import fmean

import torch

import dear_mpi.torch as dear
from dear_mpi.bench.backends import gloo_group
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.stats import median
from dear_mpi.reporting.terminal import interval
from tests.ddp.models import MODELS

PLAIN = "torch without DDP"  # on one rank
LR, MOMENTUM = 0.001, 0.9
DDP = "torch DDP, gloo"
BLOCK = 3  # counted iterations in a turn


class Loop:
    """A user's loop."""

    def __init__(self, module):
        self.module = self.model = module
        # torch's loops over all tensors at once
        self.optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM, foreach=True)
        self.loss = torch.nn.CrossEntropyLoss()

    def step(self, x, targets):
        self.optimizer.zero_grad()
        self.loss(self.model(x), targets).backward()
        self.optimizer.step()

    def flush(self):
        """Nothing is under way."""


class Ddp(Loop):
    def __init__(self, module):
        super().__init__(module)
        # Gradients that are views of its buckets save it a copy.
        self.model = torch.nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True)


class Ours(Loop):
    """Collective; its name is a schedule, perhaps with a fusion, and the kind of its updates."""

    def __init__(self, module, stack, world, name):
        super().__init__(module)
        given = {"fusion": "own"} | dict(zip(("schedule", "fusion", "update"), name.split(", "), strict=False))
        wrapped = dear.DistributedOptimizer(self.optimizer, module, comm=world.transport.native.Dup(), **given)
        self.optimizer = stack.enter_context(wrapped)

    def flush(self):
        self.optimizer.flush()


def seeded(model, seed=0):
    """The model, and a batch."""
    torch.manual_seed(seed)
    return MODELS[model]()


def run(world, model, names, turns):
    """Collective: seconds of an iteration in each turn, the mean over ranks, by name."""
    _, x, targets = seeded(model, 1 + world.rank)
    with gloo_group(world), ExitStack() as stack:
        rows = {PLAIN: Loop(seeded(model)[0])} if world.size == 1 else {}
        rows |= {DDP: Ddp(seeded(model)[0])}
        rows |= {name: Ours(seeded(model)[0], stack, world, name) for name in names}
        found = {name: [] for name in rows}
        for each in rows.values():
            for _ in range(4):  # DDP cuts its buckets anew behind the first, dear-eager decides its order in three
                each.step(x, targets)
            each.flush()
        check_alike(rows)
        for _ in range(turns):
            for name, each in rows.items():
                world.transport.barrier(asleep=True)
                each.step(x, targets)  # fills caches and pipelines
                begin_s = time.perf_counter()
                for _ in range(BLOCK):
                    each.step(x, targets)
                found[name].append((time.perf_counter() - begin_s) / BLOCK)
                each.flush()
        ranks = world.transport.gather_values(found)
    return {name: [fmean(each) for each in zip(*(rank[name] for rank in ranks), strict=True)] for name in found}


def check_alike(rows):
    """All rows have done the same steps, so they have the same parameters; but for rounding, since sums of buckets that
    are cut elsewhere are added up in another order."""
    expected, *ours = ([each.detach() for each in row.module.parameters()] for row in rows.values())
    for found in ours:
        assert all(torch.allclose(*pair, rtol=1e-3, atol=1e-5) for pair in zip(expected, found, strict=True))


@contextmanager
def spinning(busy):
    """One process that spins on each core of this machine."""
    cores = sorted(os.sched_getaffinity(0)) if busy else []
    spin = "import os, sys; os.sched_setaffinity(0, [int(sys.argv[1])])\nwhile True: pass"
    children = [subprocess.Popen([sys.executable, "-c", spin, str(core)]) for core in cores]
    try:
        yield
    finally:
        for each in children:
            each.kill()
            each.wait()


def table(found):
    """The lines of a model, DDP first. Ratios are those of turns next to each other: the machine changes in time."""
    yield "| schedule, fusion | ms | of DDP's time |"
    yield "|---|---|---|"
    for name, samples in found.items():
        middle = median(samples)
        relative = median([own_s / ddp_s for own_s, ddp_s in zip(samples, found[DDP], strict=True)])
        share = f"{relative.value:.3f} ({relative.low:.3f} to {relative.high:.3f})"
        yield f"| {name} | {interval(middle.value, middle.low, middle.high, 1e3, 1)} | {share} |"
    yield ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--schedules", nargs="*", default=["dear", "wfbp", "ddp"], help="such as 'dear, sharded'")
    parser.add_argument("--turns", type=int, default=15, help="of each row")
    parser.add_argument("--busy", action="store_true", help="beside a program that spins on each core")
    options = parser.parse_args()
    torch.set_num_threads(1)

    def body(world):
        for model in options.models:
            with spinning(options.busy and world.rank == 0):
                found = run(world, model, options.schedules, options.turns)
            if world.rank == 0:
                print(*table(found), sep="\n", flush=True)

    run_world(body)


if __name__ == "__main__":
    main()
