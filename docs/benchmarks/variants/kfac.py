"""How many iterations K-FAC and SGD need until a loss is reached."""

from collections.abc import Callable

import numpy as np

from dear_mpi.ranks.world import run_world
from dear_mpi.training.runs.config import Config
from dear_mpi.training.runs.train import train
from docs.benchmarks.variants.target import Target

LOSS, BATCH, MOST, MEAN = 0.01, 256, 200, 3
RATES, SEEDS = (0.03, 0.1, 0.3), range(3)


def iterations(model: str, seed: int, **choices: object) -> int:
    """Until the mean of three losses of training is at most .01; ``MOST`` if that is not seen."""
    config = Config.of({"model": model, "batch": BATCH, "iterations": MOST, "seed": seed, **choices})
    losses = run_world(lambda world: train(config, world), threads=2)["loss"]
    reached = np.convolve(losses, np.ones(MEAN) / MEAN, "valid") <= LOSS
    return int(np.argmax(reached)) + MEAN if reached.any() else MOST


def kfac_beside_sgd(model: str) -> Callable[[], tuple[str, bool]]:
    """At its defaults, beside SGD with momentum .9 at the best of three rates, over three seeds."""

    def measure() -> tuple[str, bool]:
        found = np.mean([iterations(model, seed, optimizer="kfac", update="sharded") for seed in SEEDS])
        each = {lr: [iterations(model, seed, optimizer="sgd", lr=lr, momentum=0.9) for seed in SEEDS] for lr in RATES}
        best = min(each, key=lambda lr: np.mean(each[lr]))
        beside = np.mean(each[best])
        return f"{found:.0f} beside {beside:.0f} (rate {best}): {found / beside:.2f}", bool(found <= 0.6 * beside)

    return measure


TARGETS = [
    Target("kfac", "mlp, loss .01 in at most .6 of the iterations of SGD at its best rate", kfac_beside_sgd("mlp")),
    Target("kfac", "cnn, the same", kfac_beside_sgd("cnn")),
]
