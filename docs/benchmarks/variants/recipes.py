"""The recipes of dear_mpi/contrib/recipes: CoDA, TAMUNA, and participants."""

from functools import cache, partial
from pathlib import Path

import numpy as np

from dear_mpi.contrib.recipes import auc, logistic, participants, tamuna
from dear_mpi.ranks.world import World, run_world
from dear_mpi.training import Session
from docs.benchmarks.variants.target import Target


def coda_auc() -> tuple[str, bool]:
    found = []
    for schedule in ("local:1", "local:32"):
        each = [partial(auc.train, schedule=schedule, seed=seed) for seed in range(3)]
        found.append(float(np.mean([run_world(body, threads=4) for body in each])))
    often, seldom = found
    return f"{seldom:.4f} beside {often:.4f}", seldom >= often - 0.003


def coda_bytes() -> tuple[str, bool]:
    """Of collectives in 64 iterations: each carries all values, or all gradients, of the same type."""
    bodies = [partial(collectives_of, schedule=schedule) for schedule in ("dear", "local:32")]
    often, seldom = (run_world(body, threads=4) for body in bodies)
    return f"{seldom} collectives instead of {often}", 32 * seldom <= often


def collectives_of(world: World, schedule: str, iterations: int = 64) -> int:
    """How many the engine carried out, but for those of the loss; both halves count."""
    (x, y), _ = auc.rare()
    layers, loss = auc.build(x.shape[1:], 2, np.random.default_rng(0), x.dtype)
    found = 0
    with Session(layers, loss, world, schedule=schedule) as session:
        for _ in range(iterations):
            session.step(x[:32], y[:32])
            session.flush()
            done = [str(event.what) for event in session.group.fabric.log.last.engine]
            found += sum(what.startswith(("reduce_scatter of bucket", "all_gather of bucket")) for what in done)
    return found


@cache
def tamuna_rounds(name: str, steps: int) -> int:
    route = f"{Path(tamuna.__file__)}:{name}"
    return run_world(lambda world: logistic.train(world, logistic.Problem(), route, steps)[0], threads=8)


def tamuna_sends() -> tuple[str, bool]:
    """Four of eight clients send each coordinate, so each sends half of its floats."""
    rounds, descent = tamuna_rounds("route", 71), logistic.Problem().descent(1e-8)
    fewer, floats = descent / rounds, 2 * descent / rounds
    return f"{rounds} rounds instead of {descent}: 1/{fewer:.0f}, floats 1/{floats:.0f}", fewer >= 40 and floats >= 100


def tamuna_half() -> tuple[str, bool]:
    half, every = tamuna_rounds("half", 71), tamuna_rounds("route", 71)
    return f"{half} rounds beside {every}", half <= 1.3 * every


def fastest_in_time() -> tuple[str, bool]:
    """Over three seeds; a fast rank works for 10 ms on a batch, the slow one four times as long, both asleep."""
    taken = {}
    for name in ("all_ranks", "fastest"):
        each = [partial(participants.train, name=name, seed=seed, second=0.01) for seed in range(3)]
        taken[name] = sum(run_world(body, threads=8)[1] for body in each)
    found = taken["fastest"] / taken["all_ranks"]
    return f"{found:.2f}", found <= 0.5


TARGETS = [
    Target("CoDA", "AUC with averages every 32 iterations at most .003 below every iteration", coda_auc),
    Target("CoDA", "1/32 of the bytes", coda_bytes),
    Target("TAMUNA", "to 1e-8: at most 1/40 of the rounds of descent, 1/100 of the floats", tamuna_sends),
    Target("TAMUNA", "half of the clients in each round: at most 1.3 times the rounds", tamuna_half),
    Target(
        "participants",
        "6 fastest of 8 ranks, one 4 times slower: 93 % of the digits right in at most .5 of the time of all 8",
        fastest_in_time,
    ),
]
