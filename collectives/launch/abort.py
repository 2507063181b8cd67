"""End the whole job from one of its ranks."""

import sys

from dear_mpi.collectives.launch.neighbours import own_notice


def abort_job(message: str) -> None:
    """Say why, and end all ranks. MPI is started if it has not been: the others may wait for it there."""
    print(message, file=sys.stderr, flush=True)
    try:
        own_notice().part()
    finally:
        from mpi4py import MPI

        MPI.COMM_WORLD.Abort(1)
