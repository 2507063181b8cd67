"""Random collectives by counters in shared memory, with delays: every result must be right on every rank.

    mpirun -n 3 python -m tests.counter_checks 1000000

makes a million calls. Ranks spin even if they share cores: that is where they overtake each other most.
"""

import random
import sys
import time
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
from mpi4py import MPI

from dear_mpi.collectives import all_gather, all_reduce, barrier, make_plan
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.collectives.transports import counters
from dear_mpi.collectives.transports.mpi import MpiTransport
from dear_mpi.kernels.dtypes import DTYPES

COUNTS = (1, 2, 5, 16, 77, 1000, 4096, 20_000)
TYPES = (*DTYPES.values(), np.dtype(np.int32), np.dtype(np.uint8))
UNCROWDED = SimpleNamespace(crowded=False)


def spinning(comm: MPI.Intracomm) -> MpiTransport:
    """Collective: return a transport whose ranks spin although cores are few."""
    transport = MpiTransport(comm)
    with patch.object(counters, "crowd_of", lambda transport, threads: UNCROWDED):
        transport.counters()
    return transport


def contribution(rank: int, number: int, plan_number: int, array: np.ndarray) -> np.ndarray:
    """Small whole numbers, whose sums every type holds exactly."""
    values = (np.arange(array.size) + 3 * rank + 5 * number + plan_number) % 7
    return values.astype(array.dtype)


def expected(plan: Plan, number: int, at: int, size: int, rank: int) -> np.ndarray:
    buffer, call = plan.call.x, plan.call
    given = [contribution(each, number, at, buffer) for each in range(size)]
    total, borders = sum(each.astype(np.int64) for each in given), call.partition(size).borders
    if call.collective == "all_gather":
        return np.concatenate([given[each][borders[each] : borders[each + 1]] for each in range(size)])
    total = total.astype(buffer.dtype)
    if call.collective in ("broadcast", "reduce"):
        own = given[rank if call.collective == "reduce" else call.root]
        return total if call.collective == "reduce" and rank == call.root else own
    return total[borders[rank] : borders[rank + 1]] if call.collective == "reduce_scatter" else total


def check_calls(comm: MPI.Intracomm, calls: int, seed: int) -> int:
    """Make random calls and return how many plans met by counters."""
    rank, size = comm.Get_rank(), comm.Get_size()
    common, own = random.Random(seed), random.Random(f"{seed} {rank}")
    transport = spinning(comm)
    plans = []
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"):
        for count in COUNTS:
            x, root = np.zeros(count * size, common.choice(TYPES)), common.randrange(size)
            root = root if collective in ("broadcast", "reduce") else 0
            plans.append(make_plan(collective, x, transport, algorithm="auto", root=root))
    met = sum(plan.algorithm == "shared" and plan.task.reached.counters is not None for plan in plans)
    begin_s = time.perf_counter()
    for number in range(calls):
        at = common.randrange(len(plans) + 3)
        if own.random() < 0.02:
            time.sleep(own.random() * 3e-4)
        if at == len(plans):
            barrier(transport)
        elif at == len(plans) + 1:
            x = np.full(9, rank + 1.0 + number)
            assert (all_reduce(x, transport, algorithm="auto") == size * (size + 1) / 2 + number * size).all()
        elif at == len(plans) + 2:
            x = np.full(size, rank + number)
            assert (all_gather(x, transport, algorithm="auto") == np.arange(size) + number).all()
        else:
            plan = plans[at]
            plan.call.x[...] = contribution(rank, number, at, plan.call.x)
            if common.random() < 0.2:
                plan.start()
                while own.random() < 0.5:
                    plan.advance()
                found = plan.wait()
            else:
                found = plan()
            right = expected(plan, number, at, size, rank)
            assert np.array_equal(found, right), f"rank {rank}, call {number}, {plan.call.collective}: {found} {right}"
        if number % 100_000 == 99_999 and rank == 0:
            print(f"{number + 1} calls, {time.perf_counter() - begin_s:.0f} s", flush=True)
    for plan in plans:
        plan.free()
    transport.free()
    return met


if __name__ == "__main__":
    print(check_calls(MPI.COMM_WORLD, int(sys.argv[1]), seed=1), "plans by counters", flush=True)
