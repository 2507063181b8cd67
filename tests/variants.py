"""What travels, how often, and between whom: a target for each variant, and what was seen. Writes a page.

python -m tests.variants [--keep FILE]

Each row is a claim that could fail: with what is beside it, on the same machine, a few minutes in all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from dear_mpi.collectives.transports.emulated import Link
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.models.layer import Parameter
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.links import parse_links
from dear_mpi.training import SGD, Session
from dear_mpi.training.costs.plan_cost import traffic
from dear_mpi.training.fabric.costs import Costs
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import train
from dear_mpi.training.schedules import SCHEDULES
from dear_mpi.training.virtual_trainer import predict
from dear_mpi.training.wires.find import find_code
from tests.fewer_iterations import kfac_beside_sgd
from tests.provenance import Watch, write_page
from tests.recipes import targets as recipes
from tests.simulate.dimensions import gain
from tests.training_checks import cut_of

PAGE = "docs/benchmarks/variants.md"
HEAD = """Each row has a target, what was seen, and whether that meets it. The model is `mlp` on the digits where no
other is named, on 4 ranks that are threads of one process, over the emulated link that the row names, with the preset's
batch and seed 0. "Exposed" is the waiting of the median iteration. How each variant works, and when it pays, is in
[variants](../variants.md).

A small classifier says whether training goes on as before. It does not say what a large model would lose.
"""
SLOW, BASE, HOSTS = "10mbit,100us", "100mbit,100us", "1gbit,20us/20mbit,100us,hosts=2"


@cache
def trained(iterations: int = 300, *, link: str | None = BASE, ranks: int = 4, **choices: object) -> dict:
    """A run's report; the same one for the same choices."""
    config = Config.of({"model": "mlp", "data": "digits", "iterations": iterations, **choices})
    emulated: Link | None = None if link is None else parse_links(link)
    return run_world(lambda world: train(config, world), threads=ranks, link=emulated)


@dataclass(frozen=True)
class Target:
    """A claim.

    Attributes:
        variant, claim: in words.
        measure: gives what was seen, in words, and whether that is what was claimed.
    """

    variant: str
    claim: str
    measure: Callable[[], tuple[str, bool]]


def share(of: dict, base: dict) -> float:
    return of["exposed_comm_s"] / base["exposed_comm_s"]


def mean_ms(report: dict) -> float:
    return 1e3 * float(np.mean(report["iteration_s"][report["uncounted"] :]))


def late_loss(report: dict) -> float:
    """The mean of the last 20 losses: one alone is noise."""
    return float(np.mean(report["loss"][-20:]))


def accuracy(report: dict) -> float:
    return 100 * report["accuracy"]


def int8_exposed() -> tuple[str, bool]:
    dense, codes = (trained(60, link=SLOW, wire=wire) for wire in ("fp32", "int8"))
    found = share(codes, dense)
    return f"{found:.2f}", found <= 0.35


def between_hosts() -> tuple[str, bool]:
    """Both have one bucket, with which both were fastest."""
    how = {"link": HOSTS, "fusion": "25MB", "algorithm": "hierarchical"}
    dense, codes = (mean_ms(trained(60, wire=wire, **how)) for wire in ("fp32", "int4"))
    return f"{dense / codes:.2f}", dense / codes >= 3


def error_of_sums(wire: str, most: float) -> Callable[[], tuple[str, bool]]:
    def measure() -> tuple[str, bool]:
        found = [relative_error(wire, ranks) for ranks in (2, 8, 64)]
        return " / ".join(f"{each:.4f}" for each in found), max(found) < most

    return measure


def relative_error(wire: str, ranks: int, count: int = 1 << 16) -> float:
    """L2 error of a sum of normal numbers in two shots, over the norm of the sum."""
    code, draw = find_code(wire).wire, np.random.default_rng(0)
    row, part = np.empty(code.nbytes(count), np.uint8), np.empty(count, np.float32)
    exact, total = np.zeros(count), np.zeros(count, np.float32)
    for _ in range(ranks):
        x = draw.standard_normal(count).astype(np.float32)
        exact += x
        code.encode(x, row)
        code.decode(row, part)
        total += part
    code.encode(total, row)
    code.decode(row, part)
    return float(np.linalg.norm(part - exact) / np.linalg.norm(exact))


def as_accurate(wire: str, most: float = 1.0) -> Callable[[], tuple[str, bool]]:
    def measure() -> tuple[str, bool]:
        dense, codes = (accuracy(trained(link=None, wire=each)) for each in ("fp32", wire))
        return f"{codes:.1f} % beside {dense:.1f} %", codes >= dense - most

    return measure


def blocks_exposed() -> tuple[str, bool]:
    dense, blocks = (trained(40, link=SLOW, model="cnn", wire=wire) for wire in ("fp32", "blocks:10%"))
    found = share(blocks, dense)
    return f"{found:.2f}", found <= 0.2


def blocks_accuracy() -> tuple[str, bool]:
    runs = ((150, "fp32"), (300, "blocks:10%"))
    dense, blocks = (trained(count, link=None, model="cnn", wire=wire) for count, wire in runs)
    found = accuracy(blocks) - accuracy(dense)
    return f"{accuracy(blocks):.1f} % beside {accuracy(dense):.1f} %", found >= -1.0


def feedback(wire: str) -> Callable[[], tuple[str, bool]]:
    def measure() -> tuple[str, bool]:
        choices = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.5}
        with_it, without = (late_loss(trained(link=None, wire=each, **choices)) for each in (wire, f"{wire}:error=no"))
        return f"{with_it:.3f} beside {without:.3f}", with_it < without

    return measure


def diloco_time() -> tuple[str, bool]:
    found, dense = (mean_ms(trained(schedule=each, optimizer="adamw")) for each in ("diloco:10", "dear"))
    return f"{found:.1f} ms (dear {dense:.1f} ms)", found <= 8.0


def diloco_loss() -> tuple[str, bool]:
    """With 16 examples on each rank, over three seeds."""
    how = {"optimizer": "adamw", "lr": 1e-3, "batch": 64, "link": None}
    found = {}
    for name in ("dear", "local:10", "diloco:10"):
        reports = [trained(240, schedule=name, seed=seed, **how) for seed in range(3)]
        found[name] = [float(np.mean([figure(each) for each in reports])) for figure in (late_loss, accuracy)]
    said = ", ".join(f"{name} {loss:.3f} ({percent:.1f} %)" for name, (loss, percent) in found.items())
    return said, found["diloco:10"][0] <= found["dear"][0]


def themis_gain() -> tuple[str, bool]:
    found = gain(4, 4, 1)
    return f"{found:.2f}", found >= 1.9


def themis_least() -> tuple[str, bool]:
    found = min(gain(4, 4, 2.0**power) for power in range(-10, 10))
    return f"{found:.3f}", found >= 1 - 1e-9


def lancet_units() -> tuple[str, bool]:
    """Where dx, dw and an exchange take one unit each; without the exchanges of the forward pass."""
    layers = 12
    one, buckets = dict.fromkeys(range(layers), 1.0), cut_of(*((use,) for use in range(layers)))
    costs = Costs(forward_s=[0.0] * layers, backward_s=[2.0] * layers, weights_s=one, exchange_s=one)
    before, found = (
        predict(SCHEDULES[name], Rules(name, buckets, SCHEDULES[name]), costs).iteration_s - layers
        for name in ("dear", "lancet")
    )
    return f"{found:.1f} ({before:.0f} under dear)", found <= 26.8


class Wide:
    """A layer that has the gradients which it is given."""

    def __init__(self, given: np.ndarray) -> None:
        self.given, self.parameters = given, [Parameter.of("wide", np.zeros_like(given))]

    def forward(self, x: np.ndarray) -> np.ndarray:
        return x

    def backward(self, dy: np.ndarray) -> np.ndarray:
        self.parameters[0].grad[...] = self.given
        return dy


@dataclass(frozen=True)
class Summed:
    """An iteration in which ranks have gradients at common places alone.

    Attributes:
        unfit: how many buckets were summed whole.
        error: the largest, over the largest element of the sum.
        nbytes: that a rank sends.
        shas: of the parameters, on all ranks.
    """

    unfit: int
    error: float
    nbytes: float
    shas: set[str]


@cache
def summed(wire: str, density: float, ranks: int = 4, count: int = 1 << 20) -> Summed:
    draw = np.random.default_rng(0)
    common = draw.random(count) < density
    given = [(draw.standard_normal(count) * common).astype(np.float32) for _ in range(ranks)]
    exact = np.sum(given, axis=0, dtype=np.float64)

    def step(transport: Transport) -> tuple[int, float, float, str]:
        layers, loss = [Wide(given[transport.rank])], SoftmaxCrossEntropy()
        choices = {"optimizer": SGD(0.1), "fusion": "25MB", "algorithm": "ring", "wire": wire}
        with Session(layers, loss, transport, **choices) as session:
            session.step(np.ones((2, 3), np.float32), np.zeros(2, int))
            session.flush()
            group = session.group
            error = float(abs(group.arena.wire[:count] - exact).max() / abs(exact).max())
            (schedule,) = group.schedules.values()
            sent = traffic(group.fabric, schedule.collectives)
            assert sent is not None
            return group.fabric.tally[False], error, sent[1], session.parameters_sha256()

    unfit, errors, nbytes, shas = zip(*run_loopback(ranks, step), strict=True)
    return Summed(unfit[0], max(errors), nbytes[0], set(shas))


def sketch_finds_all() -> tuple[str, bool]:
    found = [summed("sketch:10", density).unfit for density in (0.01, 0.03, 0.065)]
    return " / ".join("no" if unfit else "all" for unfit in found), not any(found)


def sketch_error() -> tuple[str, bool]:
    found = summed("sketch:10", 0.065).error
    return f"{found:.1e}", found <= 1e-5


def sketch_bytes() -> tuple[str, bool]:
    found = summed("fp32", 0.065).nbytes / summed("sketch:10", 0.065).nbytes
    return f"{found:.1f} times", found >= 7


def sketch_shas() -> tuple[str, bool]:
    found = [summed("sketch:10", density) for density in (0.065, 0.09)]
    said = ", ".join(f"{len(each.shas)} ({'whole' if each.unfit else 'counters'})" for each in found)
    return said, all(len(each.shas) == 1 for each in found)


TARGETS = [
    Target("int8", f"at {SLOW}, exposed at most .35 of fp32", int8_exposed),
    Target("int8", "error of a sum below .011 on 2 / 8 / 64 ranks", error_of_sums("int8", 0.011)),
    Target("int8", "accuracy within 1 point of fp32", as_accurate("int8")),
    Target("int4", "error of a sum below .2 on 2 / 8 / 64 ranks", error_of_sums("int4", 0.2)),
    Target("int4", "accuracy within 1 point of fp32", as_accurate("int4")),
    Target("int4", f"at {HOSTS}, an iteration 3 times as fast as hierarchical in fp32", between_hosts),
    Target("topk:10%", "loss with error feedback below that without", feedback("topk:10%")),
    Target("blocks:10%", f"cnn at {SLOW}, exposed at most .2 of fp32", blocks_exposed),
    Target("blocks:10%", "cnn, accuracy at most 1 point below fp32 after twice the iterations", blocks_accuracy),
    Target("blocks:10%", "loss with error feedback below that without", feedback("blocks:10%")),
    Target("acp:4:after=50", "accuracy within 1 point of fp32", as_accurate("acp:4:after=50")),
    Target("powersgd:4:after=50", "accuracy within 1 point of fp32", as_accurate("powersgd:4:after=50")),
    Target("themis", "4 hosts of 4 ranks, equal loads: 1.9 times as fast as hierarchical, priced", themis_gain),
    Target("themis", "least gain at 20 ratios of rates, not below 1", themis_least),
    Target("lancet", "backward pass of 12 layers with exchanges: 36 units to at most 26.8, predicted", lancet_units),
    Target("sketch:10", "finds all elements where .01 / .03 / .065 of them are not zero on any rank", sketch_finds_all),
    Target("sketch:10", "error of a sum at most 1e-5 of its largest element, at .065", sketch_error),
    Target("sketch:10", "at least 7 times fewer bytes than fp32, at .065", sketch_bytes),
    Target("sketch:10", "one SHA-256 on all ranks, at .065 and at .09", sketch_shas),
    Target("diloco:10", f"mean iteration at most 8 ms at {BASE}", diloco_time),
    Target("diloco:10", "batch 64, adamw, 240 iterations: loss not above that of dear (and accuracy)", diloco_loss),
    Target("kfac", "mlp, loss .01 in at most .6 of the iterations of SGD at its best rate", kfac_beside_sgd("mlp")),
    Target("kfac", "cnn, the same", kfac_beside_sgd("cnn")),
    Target("CoDA", "AUC with averages every 32 iterations at most .003 below every iteration", recipes.coda_auc),
    Target("CoDA", "1/32 of the bytes", recipes.coda_bytes),
    Target("TAMUNA", "to 1e-8: at most 1/40 of the rounds of descent, 1/100 of the floats", recipes.tamuna_sends),
    Target("TAMUNA", "half of the clients in each round: at most 1.3 times the rounds", recipes.tamuna_half),
    Target(
        "participants",
        "6 fastest of 8 ranks, one 4 times slower: 93 % of the digits right in at most .5 of the time of all 8",
        recipes.fastest_in_time,
    ),
]


def main() -> None:
    watch, rows = Watch("make variants"), []
    for target in TARGETS:
        seen, met = target.measure()
        rows.append(f"| {target.variant} | {target.claim} | {seen} | {'yes' if met else 'no'} |")
        print(rows[-1], flush=True)
    table = ["| variant | target | seen | met |", "|---|---|---|---|", *rows]
    write_page(PAGE, "Variants: targets and what was seen", [watch.record()], [HEAD, *table])


if __name__ == "__main__":
    main()
