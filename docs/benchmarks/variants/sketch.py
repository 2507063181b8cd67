"""The homomorphic sketch, summed where ranks have gradients at common places alone."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.training import SGD, Session
from dear_mpi.training.fabric.plan_cost import traffic
from docs.benchmarks.variants.target import Target
from tests.training_checks import Wide


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
    Target("sketch:10", "finds all elements where .01 / .03 / .065 of them are not zero on any rank", sketch_finds_all),
    Target("sketch:10", "error of a sum at most 1e-5 of its largest element, at .065", sketch_error),
    Target("sketch:10", "at least 7 times fewer bytes than fp32, at .065", sketch_bytes),
    Target("sketch:10", "one SHA-256 on all ranks, at .065 and at .09", sketch_shas),
]
