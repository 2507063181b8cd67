"""What a call by function costs beside a plan that was made once, and beside MPI's own call: pairs, in turns.

    mpirun -n 2 python tests/one_off.py            # from the root of the repository, with hostfiles/local.env

A sample is a call on its slowest rank, from a barrier to the end; a row shows medians in us, and the median of the
ratios of neighbours. The plan and the call by function work on one array: two arrays of a size may be in pages of
different sizes, which alone makes a factor of two. A new array is one that no call has seen before.
"""

import itertools
import time
from functools import partial

import numpy as np
from mpi4py import MPI

from dear_mpi.collectives import all_gather, all_reduce, make_plan, reduce_scatter

FUNCTIONS = {"all_reduce": all_reduce, "reduce_scatter": reduce_scatter, "all_gather": all_gather}
SIZES = [36, 256, 1 << 10, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]


def timed(comm, call):
    comm.Barrier()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def measured(comm, collective, nbytes):
    """The time of each call, in us: MPI's, the plan's, that by function, and the same with a new array."""
    x, other = (np.zeros(nbytes // 4, np.float32) for _ in range(2))
    by_function = partial(FUNCTIONS[collective], x, comm)
    by_function()
    rows = []
    with make_plan(collective, x, comm) as plan, make_plan(collective, x, comm, algorithm="native") as native:
        for _ in range(min(max(20, (1 << 26) // nbytes), 1000)):
            other = other.copy()
            calls = [native, plan, by_function, partial(FUNCTIONS[collective], other, comm)]
            rows.append([timed(comm, call) * 1e6 for call in calls])
    return np.max(comm.allgather(rows), axis=0)[3:]


def main():
    comm = MPI.COMM_WORLD
    names = f"{'':14} {'bytes':>9} {'MPI':>9} {'plan':>9} {'one-off':>9} {'ratio':>6} {'new array':>10} {'ratio':>6}"
    if comm.rank == 0:
        print(f"{MPI.get_vendor()[0]}, {comm.size} ranks, median us\n{names}")
    for collective, nbytes in itertools.product(FUNCTIONS, SIZES):
        times = measured(comm, collective, nbytes)
        native, plan, again, other = np.median(times, axis=0)
        ratio, ratio_other = np.median(times[:, 2:] / times[:, 1:2], axis=0)
        if comm.rank == 0:
            print(f"{collective:14} {nbytes:9} {native:9.1f} {plan:9.1f} {again:9.1f} {ratio:6.2f}"
                  f" {other:10.1f} {ratio_other:6.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
