"""Who updates what: owners of whole matrices (Muon), and shares by speed (PARTEL)."""

from threading import Barrier, Lock
from time import perf_counter

import numpy as np

from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.optimizers import Muon
from dear_mpi.models.data import Batches, load_digits
from dear_mpi.models.layers import SoftmaxCrossEntropy
from dear_mpi.models.networks import ALL_MODELS, mlp
from dear_mpi.training import SGD, Session
from dear_mpi.training.routes.stages import Update
from docs.benchmarks.variants.target import Target, mean_ms, trained

RANKS, LOOKS, SPEEDS = 4, 5, (1, 3, 3, 3)


def muon_time() -> tuple[str, bool]:
    """Of the rank that takes longest; one after the other, so that no rank shares a core."""
    taken = {update: max(run_loopback(RANKS, Updates(update))) for update in ("full", "sharded")}
    found = taken["sharded"] / taken["full"]
    return f"{found:.2f}", found <= 0.35


class Updates:
    """How long the updates of all buckets take a rank: the least of some looks."""

    def __init__(self, update: str) -> None:
        self.update, self.turn, self.all_looked = update, Lock(), Barrier(RANKS)

    def __call__(self, transport: Transport) -> float:
        tokens, rng = np.arange(64)[None] % 256, np.random.default_rng(0)
        layers = ALL_MODELS["gpt"]((64,), 256, rng, np.dtype(np.float32))
        choices = {"optimizer": Muon(), "update": self.update, "fusion": "25MB"}
        with Session(layers, SoftmaxCrossEntropy(), transport, **choices) as session:
            session.step(tokens, tokens, total=64 * transport.size)
            session.flush()
            with self.turn:
                found = min(self.look(session) for _ in range(LOOKS))
            self.all_looked.wait()  # asleep: a rank that waits for messages takes turns with one that looks
            session.step(tokens, tokens, total=64 * transport.size)  # gathers what owners have updated alone
            return found

    def look(self, session: Session) -> float:
        fabric, begin = session.group.fabric, perf_counter()
        for stage in (stage for stage in fabric.route.stages if isinstance(stage, Update)):
            for bucket in fabric.buckets:
                fabric.run(stage, bucket, 1.0)
        return perf_counter() - begin


def muon_shas() -> tuple[str, bool]:
    how = {"model": "gpt", "data": "README.md", "optimizer": "muon", "fusion": "25MB", "link": None}
    found = {trained(6, update=update, **how)["params_sha256"] for update in ("full", "sharded")}
    return f"{len(found)} SHA-256", len(found) == 1


def weights_time() -> tuple[str, bool]:
    how = {"model": "synthetic:resnet50", "data": None, "forward_time": 0.1, "straggler": "0:3", "link": None}
    equal, measured = (mean_ms(trained(24, **how, **more)) for more in ({}, {"weights": "measured"}))
    return f"{measured:.0f} ms instead of {equal:.0f}: {measured / equal:.2f}", measured <= 0.6 * equal


def weights_values() -> tuple[str, bool]:
    (alone,), (weighted, *_) = run_loopback(1, values), run_loopback(4, values)
    found = max(float(abs(one - other).max() / abs(other).max()) for one, other in zip(weighted, alone, strict=True))
    return f"{found:.0e}", found <= 1e-6


def values(transport: Transport) -> list[np.ndarray]:
    """Of all parameters of ``mlp``, after 20 iterations."""
    examples, rng = load_digits(np.dtype(np.float32)).train, np.random.default_rng(0)
    layers = mlp(examples.x.shape[1:], 10, rng, np.dtype(np.float32))
    batches = Batches(examples, 64, rank=transport.rank, size=transport.size, seed=0)
    weights = SPEEDS if transport.size > 1 else None
    with Session(layers, SoftmaxCrossEntropy(), transport, optimizer=SGD(0.1), weights=weights) as session:
        for iteration in range(20):
            session.step(*batches.part(iteration, session.weights), total=64)
        session.flush()
        return [parameter.value.copy() for parameter in session.parameters]


TARGETS = [
    Target("muon", "gpt, 25 MB: the costliest owner's updates take at most .35 of all updates", muon_time),
    Target("muon", "gpt: the SHA-256 of full updates", muon_shas),
    Target("--weights measured", "one of 4 ranks 3 times slower: at most .6 of the time of equal shares", weights_time),
    Target("--weights 1,3,3,3", "parameters within 1e-6 of those of one process", weights_values),
]
