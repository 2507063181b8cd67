"""How much a collective and an update of parameters delay each other, where they run at once as in training.

    alone      | collective      |              | update |
    together   | collective . . . . . . . |     | update . . . |      both begin at the same time

Both need a processor: the update for its arithmetic, the collective to move its messages on. Where each rank has cores
to spare they do not notice each other; where ranks share few, ``dear-mpi simulate`` has to know how much they do.

The update is SGD without momentum, of as many fp32 parameters as the buffer of the collective has room for.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from time import perf_counter

import numpy as np

from dear_mpi.bench.case import Prepared
from dear_mpi.bench.data import Data
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.calls import updater
from dear_mpi.kernels.optimizers import SGD


def delays(prepared: Prepared, data: Data, transport: Transport, turns: int) -> dict[str, float]:
    """Collective: run a prepared collective and an update, alone and together.

    Returns what a row has of it, medians over so many turns after one that does not count, in us: how much longer the
    collective takes on its slowest rank together with the update; and how long the update takes, alone and together
    with it, in the mean over ranks.
    """
    data.clear()
    count, optimizer = max(1, data.x.nbytes // 4), SGD(lr=0.01)
    update = partial(updater(np.zeros(count, "f4"), np.ones(count, "f4"), [], optimizer), optimizer, 1, 1.0)
    with ThreadPoolExecutor(1) as thread:
        mine = [turn(prepared.run, update, thread, transport) for _ in range(1 + turns)][1:]
    ranks = np.array(transport.gather_values(mine))
    together_s, alone_s = ranks[:, :, :2].max(axis=0).T
    update_s, update_beside_s = ranks[:, :, 2:].mean(axis=0).T
    found_s = {"delay_us": together_s - alone_s, "update_us": update_s, "update_beside_us": update_beside_s}
    return {name: 1e6 * median(seconds.tolist()) for name, seconds in found_s.items()}


def turn(
    run: Callable[[], object], update: Callable[[], object], thread: ThreadPoolExecutor, transport: Transport
) -> tuple[float, float, float, float]:
    """Seconds on this rank: of the collective with an update beside it, and alone; of the update alone, and with the
    collective beside it."""
    update_s = seconds_of(update, transport)
    alone_s = seconds_of(lambda: thread.submit(run).result(), transport)
    transport.barrier()
    together_s, update_beside_s = at_once(thread, run, update)
    return together_s, alone_s, update_s, update_beside_s


def seconds_of(call: Callable[[], object], transport: Transport) -> float:
    """Of a call that the ranks begin when they leave a barrier."""
    transport.barrier()
    begin = perf_counter()
    call()
    return perf_counter() - begin


def at_once(
    thread: ThreadPoolExecutor, run: Callable[[], object], compute: Callable[[], object]
) -> tuple[float, float]:
    """Run a collective on a thread and compute on this one: seconds until both are over, and until the compute is."""
    begin = perf_counter()
    running = thread.submit(run)
    computing = perf_counter()
    compute()
    computed = perf_counter() - computing
    running.result()
    return perf_counter() - begin, computed
