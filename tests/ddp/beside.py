"""Our schedules beside PyTorch's DDP over gloo, taking turns in one run. On the ranks of a job, as rank 0 prints it:

hostfiles/namespaces.sh with 4 1gbit python -m tests.ddp.beside [--cases resnet50:0.31:9 bert_base:1.32:3:full ...]

`make bench-ddp` makes a page of it.
"""

import argparse
from dataclasses import dataclass

import torch

from dear_mpi.bench.gloo import gloo_group
from dear_mpi.models.paper_models import load_modules
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.stats import median, ratio
from dear_mpi.training.runs.compare import turns
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.contestant import Contestant
from dear_mpi.training.runs.job import Job
from tests.ddp.loop import DdpLoop
from tests.stolen import ATTEMPTS, QUIET, await_quiet, stolen_since, ticks

READING = """## Reading

Four ranks share two processors here, so that TCP, packing, updates and Python of all of them take turns. A prediction
takes compute and collectives as each was measured alone; nearly all are below the measurement, because here they slow
each other down. Other machines of the host take processors, too; how much stands above each table. A case that lost
more than 3 % may run up to three times, and the quietest run counts.

TCP of these hosts has reno as its congestion control. With bbr, which slows down now and then to measure its path,
BERT-Base took 6917 ms under `dear-eager`, 1.13 times as fast as DDP, on another day.

DDP updates all parameters on each rank, ours a shard of them. So the last column has the gain of sharded updates, and
of `ring` over gloo, too; in the case with full updates of ours it has that of `ring` alone. The row `ddp, ddp` is the
control: DDP's schedule and buckets in our runtime.

On BERT-Base no schedule comes near to its bound. The decoder (`cls.predictions`) takes 0.28 s forward and 0.57 s
backward. All values must be there before it, and the first gradients come behind it: the wire has nothing to carry for
0.85 s of each iteration, whatever the order. The timeline shows 5.66 s of messages and 0.9 s of an idle wire:

    dear-mpi simulate --model synthetic:bert_base --ranks 4 --forward-time 1.32 --network 0.945gbit,100us \\
        --schedules dear-eager --fusion cut:4MB --timeline FILE.json
"""

CASES = ("resnet50:0.31:9", "resnet50:0.31:9:full", "resnet50:0.43:9", "densenet201:0.24:9", "bert_base:1.32:3")
# Schedules at the fusion of their sources, and dear at others to find its best.
OURS = (
    ("wfbp", "25MB"),
    ("ddp", "ddp"),
    ("bytescheduler", "cut:4MB"),
    ("dear", "25MB"),
    ("dear", "cut:4MB"),
    ("dear-eager", "cut:4MB"),
    ("dear-eager", "cut:2MB"),
)


@dataclass(frozen=True)
class Case:
    """A model, the seconds of its forward pass (backward takes twice as long), how many iterations count, and whether
    each of our ranks updates a shard, or all parameters as a rank of DDP does."""

    model: str
    forward_s: float
    iterations: int
    update: str = "sharded"

    @classmethod
    def of(cls, text):
        model, forward_s, iterations, *update = text.split(":")
        return cls(model, float(forward_s), int(iterations), *update)

    @property
    def config(self):
        given = {"model": f"synthetic:{self.model}", "forward_time": self.forward_s, "iterations": self.iterations}
        return Config.of(given | {"fusion": OURS[0][1], "update": self.update})


def run(world, case):
    """Collective: seconds of iterations, of torch's loop and of ours, by name; bounds and predictions of ours; and the
    share of the processors that was lost to other machines of the host."""
    modules = load_modules(case.model)
    with gloo_group(world), Job(case.config, world, list(dict(OURS))) as job:
        loop = DdpLoop(modules, forward_s=case.forward_s, backward_s=2 * case.forward_s)
        ours = {f"{name}, {fusion}": Contestant(job, name, fusion) for name, fusion in OURS}
        torch_s: list[float] = []
        for _ in range(3):  # it cuts its buckets anew behind the first
            loop.iterate()
        for each in ours.values():
            each.settle()
        before = ticks()
        for count in turns(case.iterations):
            world.transport.barrier()
            torch_s += [loop.iterate() for _ in range(1 + count)][1:]
            for each in ours.values():
                each.turn(count)
        stolen, *_ = world.transport.gather_values(stolen_since(before))
        ranks = world.transport.gather_values(torch_s)
        found = {name: each.timing() for name, each in ours.items()}
        expected = {name: (each.predicted_s(found[name]), found[name].bound_s) for name, each in ours.items()}
        return [max(each) for each in zip(*ranks, strict=True)], found, expected, stolen


def quietest(world, case):
    """Collective: of a few runs that of which least was lost; there is one alone if that was quiet."""
    found = []
    while len(found) < ATTEMPTS and not any(stolen <= QUIET for *_, stolen in found):
        if world.rank == 0:
            await_quiet()
        world.transport.barrier(asleep=True)
        found.append(run(world, case))
    return min(found, key=lambda each: each[-1])


def table(case, torch_s, found, expected, stolen):
    """The lines of a case, the fastest first."""
    passes = f"forward {case.forward_s:g} s, backward {2 * case.forward_s:g} s"
    yield f"## {case.model}, {passes}, {case.update} updates of ours\n"
    yield f"Other machines of the host took {stolen:.1%} of the processors meanwhile.\n"
    yield "| schedule, fusion | ms | predicted | bound | torch DDP / it |"
    yield "|---|---|---|---|---|"
    rows = [("torch DDP, gloo", torch_s, None, None)]
    rows += [(name, figures.steady_s, *expected[name]) for name, figures in found.items()]
    for name, samples, predicted_s, bound_s in sorted(rows, key=lambda row: median(row[1]).value):
        middle, faster = median(samples), ratio(torch_s, samples)
        half_s = max(middle.high - middle.value, middle.value - middle.low)
        foreseen = ["-" if each is None else f"{each * 1e3:.0f}" for each in (predicted_s, bound_s)]
        gain = f"{faster.value:.2f} ({faster.low:.2f} to {faster.high:.2f})"
        yield f"| {' | '.join([name, f'{middle.value * 1e3:.0f} ±{half_s * 1e3:.0f}', *foreseen, gain])} |"
    yield ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Case.of, nargs="+", default=[Case.of(text) for text in CASES])
    options = parser.parse_args()
    torch.set_num_threads(1)

    def body(world):
        for case in options.cases:
            found = quietest(world, case)
            if world.rank == 0:
                print("\n".join(table(case, *found)), flush=True)
        if world.rank == 0:
            print(READING)

    run_world(body)


if __name__ == "__main__":
    main()
