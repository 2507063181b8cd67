"""How much a collective and an update of parameters delay each other, where they run at once as in training.

    alone      | collective      |              | update |
    together   | collective . . . . . . . |     | update . . . |      both begin at the same time

Both need a processor: the update for its arithmetic, the collective to move its messages on. Where each rank has cores
to spare they do not notice each other; where ranks share few, ``dear-mpi simulate`` has to know how much they do.

The update is SGD without momentum, of as many fp32 parameters as the buffer of the collective has room for.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

import numpy as np

from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.calls import updater
from dear_mpi.kernels.optimizers import SGD

ITEM_BYTES = 4


@dataclass(frozen=True)
class Delays:
    """Seconds, medians over turns: how much longer a collective takes on its slowest rank when it runs together with an
    update, and how long that update takes, alone and together with it, in the mean over ranks."""

    delay_s: float
    update_s: float
    update_beside_s: float


def measure_delays(run: Callable[[], object], nbytes: int, transport: Transport, turns: int) -> Delays:
    """Collective: of a collective that is prepared, and has a buffer of ``nbytes``; one turn more does not count."""
    count, optimizer = max(1, nbytes // ITEM_BYTES), SGD(lr=0.01)
    apply = updater(np.zeros(count, "f4"), np.ones(count, "f4"), [], optimizer)
    update = partial(apply, optimizer, 1, 1.0)
    with ThreadPoolExecutor(1) as thread:
        start = partial(thread.submit, run)
        mine = [turn(start, update, transport.barrier) for _ in range(1 + turns)][1:]
    ranks = np.array(transport.gather_values(mine))
    together_s, alone_s = ranks[:, :, :2].max(axis=0).T
    update_s, update_beside_s = ranks[:, :, 2:].mean(axis=0).T
    return Delays(*(median(each.tolist()) for each in (together_s - alone_s, update_s, update_beside_s)))


def turn(
    start: Callable[[], Future[object]], update: Callable[[], object], barrier: Callable[[], object]
) -> tuple[float, float, float, float]:
    """Seconds on this rank: of the collective with an update beside it, and alone; of the update alone, and with the
    collective beside it."""

    def seconds(call: Callable[[], object]) -> float:
        """Of a call that all ranks begin at once."""
        barrier()
        begin = perf_counter()
        call()
        return perf_counter() - begin

    def together() -> None:
        running = start()
        begin = perf_counter()
        update()
        update_beside_s.append(perf_counter() - begin)
        running.result()

    update_beside_s: list[float] = []
    update_s, alone_s = seconds(update), seconds(lambda: start().result())
    return seconds(together), alone_s, update_s, update_beside_s[0]
