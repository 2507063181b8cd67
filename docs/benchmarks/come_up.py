"""A rank of a job that comes up, times 1 KiB and ends; leaves in FOLDER when it came to the end of each phase.
It imports late, because imports are a phase.

mpirun -n 4 python -m docs.benchmarks.come_up FOLDER
"""

import json
import sys
import time
from pathlib import Path


class Marks:
    """Seconds of the clock that all processes of a machine share."""

    def __init__(self):
        self.seconds = {}
        self.end_of("launched")

    def end_of(self, phase):
        self.seconds[phase] = time.clock_gettime(time.CLOCK_MONOTONIC)


def main():
    marks = Marks()
    import dear_mpi.cli.app
    import dear_mpi.cli.bench  # noqa: F401

    marks.end_of("imported")
    from dear_mpi.ranks.world import run_world, started

    started()
    marks.end_of("MPI")
    rank = run_world(lambda world: call_and_time(world, marks))
    (Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps(marks.seconds))


def call_and_time(world, marks):
    import numpy as np

    from dear_mpi.bench.run import bench
    from dear_mpi.bench.suite import Suite
    from dear_mpi.collectives.plans.functions import all_reduce

    marks.end_of("agreed")
    all_reduce(np.ones(256, np.float32), world.transport, algorithm="ring")
    marks.end_of("first call")
    rows = bench(Suite(sizes=(1024,), algorithms=("ring", "native"), budget_s=0.5), world).rows
    if any(row.wrong for row in rows):
        raise RuntimeError(f"wrong elements: {rows}")
    marks.end_of("benchmark")
    return world.rank


if __name__ == "__main__":
    main()
