"""TorchSession beside PyTorch's DDP over gloo on models of real torch compute, taking turns in one run.

mpirun -n 2 python -m tests.ddp.real [--models resnet transformer] [--schedules dear wfbp ddp] [--busy]

Rank 0 prints a table for each model. `make bench-torch` makes a page of several runs.
"""

import argparse
import datetime
import os
import platform
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import fmean

import torch

from dear_mpi.bench.gloo import gloo_group
from dear_mpi.kernels.optimizers import SGD
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.stats import median
from dear_mpi.training.torch_session import TorchSession
from tests.ddp.models import MODELS
from tests.stolen import ATTEMPTS, QUIET, await_quiet, stolen_since, ticks

LR, MOMENTUM = 0.001, 0.9
DDP = "torch DDP, gloo"
BLOCK = 3  # counted iterations in a turn


class Ddp:
    """DDP and its optimiser, which has torch's loops over all tensors at once."""

    def __init__(self, model):
        self.module = model
        # Gradients that are views of its buckets save it a copy.
        self.model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, foreach=True)
        self.loss = torch.nn.CrossEntropyLoss()

    def step(self, x, targets):
        self.optimizer.zero_grad()
        loss = self.loss(self.model(x), targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def flush(self):
        """Nothing is under way."""


def session_of(stack, world, model, example, name):
    """Collective: a session of ours; its name is a schedule, perhaps with a fusion, and the kind of its updates."""
    given = {"fusion": "own"} | dict(zip(("schedule", "fusion", "update"), name.split(", "), strict=False))
    given |= {"optimizer": SGD(lr=LR, momentum=MOMENTUM)}
    loss = torch.nn.CrossEntropyLoss(reduction="sum")
    session = TorchSession(model, loss, world.transport.native.Dup(), example=example, **given)
    return stack.enter_context(session)


def seeded(model, seed=0):
    """The model, and a batch."""
    torch.manual_seed(seed)
    return MODELS[model]()


def run(world, model, names, turns):
    """Collective: seconds of an iteration in each turn, the mean over ranks, by name; the share of lost processors."""
    _, example, _ = seeded(model)
    _, x, targets = seeded(model, 1 + world.rank)
    with gloo_group(world), ExitStack() as stack:
        rows = {DDP: Ddp(seeded(model)[0])}
        rows |= {name: session_of(stack, world, seeded(model)[0], example, name) for name in names}
        found = {name: [] for name in rows}
        for each in rows.values():
            for _ in range(4):  # DDP cuts its buckets anew behind the first, dear-eager decides its order in three
                each.step(x, targets)
            each.flush()
        check_alike(rows)
        before = ticks()
        for _ in range(turns):
            for name, each in rows.items():
                world.transport.barrier(asleep=True)
                each.step(x, targets)  # fills caches and pipelines
                begin_s = time.perf_counter()
                for _ in range(BLOCK):
                    each.step(x, targets)
                found[name].append((time.perf_counter() - begin_s) / BLOCK)
                each.flush()
        stolen, *_ = world.transport.gather_values(stolen_since(before))
        ranks = world.transport.gather_values(found)
    return {name: [fmean(each) for each in zip(*(rank[name] for rank in ranks), strict=True)] for name in found}, stolen


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


def quietest(world, *case, attempts, busy):
    """Collective: of a few runs that of which least was lost; there is one alone if that was quiet."""
    found = []
    while len(found) < attempts and not any(stolen <= QUIET for *_, stolen in found):
        if world.rank == 0 and attempts > 1:
            await_quiet()
        world.transport.barrier(asleep=True)
        with spinning(busy and world.rank == 0):
            found.append(run(world, *case))
    return min(found, key=lambda each: each[-1])


def table(found):
    """The lines of a model, DDP first. Ratios are those of turns next to each other: the machine changes in time."""
    yield "| schedule, fusion | ms | of DDP's time |"
    yield "|---|---|---|"
    for name, samples in found.items():
        middle = median(samples)
        relative = median([own_s / ddp_s for own_s, ddp_s in zip(samples, found[DDP], strict=True)])
        half_s = max(middle.high - middle.value, middle.value - middle.low)
        share = f"{relative.value:.3f} ({relative.low:.3f} to {relative.high:.3f})"
        yield f"| {name} | {middle.value * 1e3:.1f} ±{half_s * 1e3:.1f} | {share} |"
    yield ""


def title(world, model, stolen, *, busy):
    """What a table is of."""
    ranks, hosts = world.size, len(world.ranks_per_host)
    where = f"{hosts} hosts" if hosts > 1 else "one machine"
    said = f"{ranks} ranks" if ranks > 1 else "1 rank"
    return (
        f"## {model}, {said} on {where}, {'busy' if busy else 'quiet'}\n\n"
        f"Other machines of the host took {stolen:.1%} of the processors meanwhile.\n"
    )


HEADER = """# Real torch compute beside DDP

`make bench-torch`: {date}, commit {commit}, {cores} cores of {cpu}, Linux {kernel}, Python {python}, torch {torch} with
one thread a rank ({flags}). DDP and ours take turns in one run, {block} iterations at a time behind one that does not
count. DDP is over gloo, its gradients are views of its buckets, its optimiser is SGD with momentum and `foreach=True`.
Ours is `TorchSession` as it comes, with the fusion of each schedule's source. Updates are full unless a row says
`sharded`. resnet: 1.2 million parameters, GroupNorm, 8 images of 3x32x32 a rank. transformer: 20 million parameters, 2
sequences of 64 tokens a rank. ms of an iteration: the mean over ranks, the median of turns, its 95 % interval. The last
column: the median of ratios of neighbouring turns, so what others do to the machine hits both. Busy: a program spins on
each core. Hosts are network namespaces of this machine, with links of 1 Gbit/s and reno; they share its cores.
"""


def header():
    """The head of the page: what is measured, when, on what, with what."""
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    return HEADER.format(
        date=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        commit=commit.stdout.strip(),
        cores=len(os.sched_getaffinity(0)),
        cpu=next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "an unknown CPU"),
        kernel=platform.release(),
        python=platform.python_version(),
        torch=torch.__version__,
        flags=torch.backends.cpu.get_cpu_capability(),
        block=BLOCK,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--schedules", nargs="*", default=["dear", "wfbp", "ddp"], help="such as 'dear, sharded'")
    parser.add_argument("--turns", type=int, default=15, help="of each row")
    parser.add_argument("--attempts", type=int, default=ATTEMPTS, help="runs until one is quiet")
    parser.add_argument("--busy", action="store_true", help="beside a program that spins on each core")
    parser.add_argument("--header", action="store_true", help="print the head of the page, and end")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.header:
        print(header())
        return

    def body(world):
        for model in options.models:
            case = model, options.schedules, options.turns
            found, stolen = quietest(world, *case, attempts=options.attempts, busy=options.busy)
            if world.rank == 0:
                print(title(world, model, stolen, busy=options.busy), *table(found), sep="\n", flush=True)

    run_world(body)


if __name__ == "__main__":
    main()
