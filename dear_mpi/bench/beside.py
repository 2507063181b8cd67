"""How much a collective and an update of parameters delay each other, where they run at once as in training.

    alone      | collective      |              | update |
    together   | collective . . . . . . . |     | update . . . |      both begin at the same time

Both need a processor: the update for its arithmetic, the collective to move its messages on. Where each rank has cores
to spare they do not notice each other; where ranks share few, ``dear-mpi simulate`` has to know how much they do.

The update is SGD without momentum, of as many fp32 parameters as the buffer of the collective has room for.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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


class Beside:
    """Collective: runs a collective and an update, alone and together.

    Args:
        run: the collective, prepared.
        nbytes: of its buffer.
    """

    def __init__(self, run: Callable[[], object], nbytes: int, transport: Transport) -> None:
        self.run, self.transport = run, transport
        count, optimizer = max(1, nbytes // ITEM_BYTES), SGD(lr=0.01)
        apply = updater(np.zeros(count, "f4"), np.ones(count, "f4"), [], optimizer)
        self.update = partial(apply, optimizer, 1, 1.0)

    def measure(self, turns: int) -> Delays:
        """So many turns, after one that does not count."""
        with ThreadPoolExecutor(1) as thread:
            mine = [self.turn(thread) for _ in range(1 + turns)][1:]
        ranks = np.array(self.transport.gather_values(mine))
        together_s, alone_s = ranks[:, :, :2].max(axis=0).T
        update_s, update_beside_s = ranks[:, :, 2:].mean(axis=0).T
        return Delays(*(median(each.tolist()) for each in (together_s - alone_s, update_s, update_beside_s)))

    def turn(self, thread: ThreadPoolExecutor) -> tuple[float, float, float, float]:
        """Seconds on this rank: of the collective with an update beside it, and alone; of the update alone, and with
        the collective beside it."""
        update_s = self.seconds(self.update)
        alone_s = self.seconds(lambda: thread.submit(self.run).result())
        update_beside_s: list[float] = []

        def together() -> None:
            running = thread.submit(self.run)
            begin = perf_counter()
            self.update()
            update_beside_s.append(perf_counter() - begin)
            running.result()

        return self.seconds(together), alone_s, update_s, update_beside_s[0]

    def seconds(self, call: Callable[[], object]) -> float:
        """Of a call that all ranks begin at once."""
        self.transport.barrier()
        begin = perf_counter()
        call()
        return perf_counter() - begin
