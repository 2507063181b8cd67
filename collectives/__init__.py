"""Ranks, chunks, programs, plans and transports: who sends what to whom, and when.

    from mpi4py import MPI
    from dear_mpi.collectives import all_reduce
    all_reduce(x, MPI.COMM_WORLD, algorithm="ring", op="sum")      # x now holds the sum, on every rank

Without ``out`` a call works in place. The chunk of a rank is the part of the buffer that ``chunk_bounds`` gives:

    collective       x before                   in place, x after             with out, x is left alone and
    reduce_scatter   a full buffer              own chunk holds the result    out is the rank's chunk
    all_gather       full buffer, own chunk set the full buffer               x is the rank's chunk, out is full
    all_reduce       a full buffer              the full result               out is full

``comm`` is an mpi4py communicator or any ``Transport``. A call prepares a plan, runs it once and frees it; whoever
repeats a collective on one buffer keeps the plan (``make_plan``).
"""

from __future__ import annotations

from typing import Any

from dear_mpi.collectives.algorithms import ALGORITHMS, programs
from dear_mpi.collectives.arguments import SEGMENT_BYTES
from dear_mpi.collectives.errors import CollectiveError, MismatchError, ProgramError, TransportError
from dear_mpi.collectives.make_plan import make_plan, transport_of
from dear_mpi.collectives.partition import chunk_bounds
from dear_mpi.collectives.plan import Plan
from dear_mpi.collectives.transport import Transport
from dear_mpi.collectives.verify import verify
from dear_mpi.kernels.array import Array

__all__ = [
    "ALGORITHMS",
    "CollectiveError",
    "MismatchError",
    "Plan",
    "ProgramError",
    "Transport",
    "TransportError",
    "all_gather",
    "all_reduce",
    "chunk_bounds",
    "make_plan",
    "programs",
    "reduce_scatter",
    "transport_of",
    "verify",
]


def all_reduce(
    x: Array,
    comm: Any,
    *,
    out: Array | None = None,
    algorithm: str = "ring",
    op: str = "sum",
    segment_bytes: int = SEGMENT_BYTES,
) -> Array:
    """Combine x over all ranks; every rank gets the whole result, with the same bits.

    >>> import numpy as np
    >>> from dear_mpi.collectives.loopback import run_loopback
    >>> run_loopback(2, lambda transport: all_reduce(np.full(2, transport.rank + 1.0), transport).tolist())
    [[3.0, 3.0], [3.0, 3.0]]
    """
    return once("all_reduce", x, comm, out=out, algorithm=algorithm, op=op, segment_bytes=segment_bytes)


def reduce_scatter(
    x: Array,
    comm: Any,
    *,
    out: Array | None = None,
    algorithm: str = "ring",
    op: str = "sum",
    segment_bytes: int = SEGMENT_BYTES,
) -> Array:
    """Combine x over all ranks; rank r gets chunk r of the result (a view into x where there is no ``out``).

    >>> import numpy as np
    >>> from dear_mpi.collectives.loopback import run_loopback
    >>> run_loopback(2, lambda transport: reduce_scatter(np.arange(4.0), transport).tolist())
    [[0.0, 2.0], [4.0, 6.0]]
    """
    return once("reduce_scatter", x, comm, out=out, algorithm=algorithm, op=op, segment_bytes=segment_bytes)


def all_gather(
    x: Array, comm: Any, *, out: Array | None = None, algorithm: str = "ring", segment_bytes: int = SEGMENT_BYTES
) -> Array:
    """Collect chunk r from every rank r; every rank gets all chunks.

    >>> import numpy as np
    >>> from dear_mpi.collectives.loopback import run_loopback
    >>> run_loopback(2, lambda t: all_gather(np.full(1, t.rank), t, out=np.empty(2, int)).tolist())
    [[0, 1], [0, 1]]
    """
    return once("all_gather", x, comm, out=out, algorithm=algorithm, op="sum", segment_bytes=segment_bytes)


def once(collective: str, x: Array, comm: Any, **options: Any) -> Array:
    """Prepare, run and free."""
    with make_plan(collective, x, comm, **options) as plan:
        return plan()
