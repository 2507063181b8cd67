"""DistributedOptimizer beside DDP and FSDP2 over gloo on models of real torch compute, taking turns in one run.

mpirun -n 2 python -m docs.benchmarks.ddp.real [--models resnet transformer] [--schedules dear wfbp ddp]

Rank 0 prints a table for each model. `make bench-torch` makes a page of several runs (real_page.py).
"""

import argparse
import time
from contextlib import ExitStack
from itertools import islice
from statistics import fmean

import torch
from torch.distributed.fsdp import fully_shard

import dear_mpi.torch as dear
from dear_mpi.contrib.gloo.candidate import gloo_group
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.stats import median
from dear_mpi.reporting.terminal import interval
from docs.benchmarks.ddp.models import MODELS, ON_GPU, Block, Bottleneck

# On one rank: what hooks add is between the second and ours.
PLAIN, BUCKETED = "torch without DDP", "torch without DDP, an optimiser for each bucket"
LR, MOMENTUM = 0.001, 0.9
DDP, FSDP2 = {"DDP, 25 MB, gloo": 25, "DDP, 4 MB, gloo": 4}, "FSDP2, gloo"
BLOCK = 3  # counted iterations in a turn


class Loop:
    """A user's loop."""

    def __init__(self, module):
        self.module = self.model = module
        self.optimizer = sgd(module.parameters())
        self.loss = torch.nn.CrossEntropyLoss()

    def parameters(self):
        """Those after the last step."""
        self.flush()
        return [each.detach() for each in self.module.parameters()]

    def step(self, x, targets):
        self.optimizer.zero_grad()
        self.loss(self.model(x), targets).backward()
        self.optimizer.step()

    def flush(self):
        """Nothing is under way."""


def sgd(parameters):
    """Updates by torch's loops over all tensors at once."""
    return torch.optim.SGD(parameters, lr=LR, momentum=MOMENTUM, foreach=True)


class Bucketed(Loop):
    """One that updates as many parameters at a time as each of some buckets has, by an optimiser for each."""

    def __init__(self, module, counts):
        super().__init__(module)
        parameters = self.module.parameters()
        self.optimizers = [sgd(list(islice(parameters, count))) for count in counts]

    def step(self, x, targets):
        self.optimizer.zero_grad()
        self.loss(self.model(x), targets).backward()
        for each in self.optimizers:
            each.step()


class Ddp(Loop):
    def __init__(self, module, bucket_mb):
        super().__init__(module)
        # Gradients that are views of its buckets save it a copy.
        options = {"gradient_as_bucket_view": True, "bucket_cap_mb": bucket_mb}
        self.model = torch.nn.parallel.DistributedDataParallel(module, **options)


class Fsdp(Loop):
    """Collective: blocks of the module are gathered and freed by themselves, as its documentation advises."""

    def __init__(self, module):
        for each in module.modules():
            if isinstance(each, (Block, Bottleneck, torch.nn.TransformerEncoderLayer)):
                fully_shard(each)
        super().__init__(fully_shard(module))

    def parameters(self):
        return [each.detach().full_tensor() for each in self.module.parameters()]


class Ours(Loop):
    """Collective; its name is a schedule, perhaps with a fusion, and the kind of its updates."""

    def __init__(self, module, stack, world, name):
        super().__init__(module)
        given = {"fusion": "own"} | dict(zip(("schedule", "fusion", "update"), name.split(", "), strict=False))
        wrapped = dear.DistributedOptimizer(self.optimizer, module, comm=world.transport.native.Dup(), **given)
        self.optimizer = stack.enter_context(wrapped)

    def flush(self):
        self.optimizer.flush()

    @property
    def counts(self):
        """The numbers of parameters in its buckets."""
        return [len(each.pieces) for each in self.optimizer.updates.instances.values()]


def seeded(model, device, seed=0):
    """The model, and a batch."""
    torch.manual_seed(seed)
    return [each.to(device) for each in (MODELS | ON_GPU)[model]()]


def now_s(device):
    """The time when the device has done all that it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def run(world, model, names, turns, device):
    """Collective: seconds of an iteration in each turn, the mean over ranks, by name."""

    def new():
        return seeded(model, device)[0]

    _, x, targets = seeded(model, device, 1 + world.rank)
    with gloo_group(world), ExitStack() as stack:
        rows = {PLAIN: Loop(new())} if world.size == 1 else {FSDP2: Fsdp(new())}
        rows |= {name: Ddp(new(), size) for name, size in DDP.items()}
        rows |= {name: Ours(new(), stack, world, name) for name in names}
        for each in rows.values():
            for _ in range(4):  # DDP cuts its buckets anew behind the first, dear-eager decides its order in three
                each.step(x, targets)
        if world.size == 1:
            rows[BUCKETED] = Bucketed(new(), rows[names[0]].counts)
            for _ in range(4):
                rows[BUCKETED].step(x, targets)
        found = {name: [] for name in rows}
        check_alike(rows)
        for _ in range(turns):
            for name, each in rows.items():
                world.transport.barrier(asleep=True)
                each.step(x, targets)  # fills caches and pipelines
                begin_s = now_s(device)
                for _ in range(BLOCK):
                    each.step(x, targets)
                found[name].append((now_s(device) - begin_s) / BLOCK)
                each.flush()
        ranks = world.transport.gather_values(found)
    return {name: [fmean(each) for each in zip(*(rank[name] for rank in ranks), strict=True)] for name in found}


def check_alike(rows):
    """All rows have done the same steps, so they have the same parameters; but for rounding, since sums of buckets that
    are cut elsewhere are added up in another order."""
    expected, *ours = (row.parameters() for row in rows.values())
    for found in ours:
        assert all(torch.allclose(*pair, rtol=1e-3, atol=1e-5) for pair in zip(expected, found, strict=True))


def table(found):
    """The lines of a model. Ratios are those of turns next to each other: the machine changes in time."""
    base = PLAIN if PLAIN in found else min(DDP, key=lambda name: median(found[name]).value)
    yield f"| schedule, fusion | ms | of {'plain torch' if base == PLAIN else 'DDP'}'s time |"
    yield "|---|---|---|"
    for name, samples in sorted(found.items(), key=lambda row: row[0] != base):
        middle = median(samples)
        relative = median([own_s / base_s for own_s, base_s in zip(samples, found[base], strict=True)])
        share = f"{relative.value:.3f} ({relative.low:.3f} to {relative.high:.3f})"
        yield f"| {name} | {interval(middle.value, middle.low, middle.high, 1e3, 1)} | {share} |"
    yield ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS | ON_GPU, default=list(MODELS))
    parser.add_argument("--schedules", nargs="*", default=["dear", "wfbp", "ddp"], help="such as 'dear, sharded'")
    parser.add_argument("--turns", type=int, default=15, help="of each row")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args()
    torch.set_num_threads(1)

    def body(world):
        for model in options.models:
            found = run(world, model, options.schedules, options.turns, options.device)
            if world.rank == 0:
                print(*table(found), sep="\n", flush=True)

    run_world(body)


if __name__ == "__main__":
    main()
