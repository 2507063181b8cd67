"""Ranks, chunks, programs, plans and transports: who sends what to whom, and when.

    from mpi4py import MPI
    from dear_mpi.collectives import all_reduce
    all_reduce(x, MPI.COMM_WORLD, algorithm="ring", op="sum")      # x now holds the sum, on every rank

Without ``out`` a call works in place. The shard of a rank is the part of the buffer that ``chunk_bounds`` gives, or
``Partition.of`` where ranks have weights:

    collective       x before                   in place, x after             with out, x is left alone and
    reduce_scatter   a full buffer              own shard holds the result    out is the rank's shard
    all_gather       full buffer, own shard set the full buffer               x is the rank's shard, out is full
    all_reduce       a full buffer              the full result               out is full
    broadcast        full at the root           the root's                    out is full, x of any contents elsewhere
    reduce           a full buffer              the result at the root,       out is full, of use at the root alone
                                                of no use elsewhere

``comm`` is an mpi4py communicator or any ``Transport``. A call prepares a plan, runs it once and frees it; whoever
repeats a collective on one buffer keeps the plan. All take the keyword arguments of ``make_plan``, which says what they
mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from dear_mpi.collectives.algorithms import ALGORITHMS, programs
from dear_mpi.collectives.errors import CollectiveError, MismatchError, ProgramError, TransportError
from dear_mpi.collectives.make_plan import make_plan, transport_of
from dear_mpi.collectives.partition import Partition, chunk_bounds
from dear_mpi.collectives.plan import Plan
from dear_mpi.collectives.transport import Transport
from dear_mpi.collectives.verify import verify
from dear_mpi.kernels.array import Array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

__all__ = [
    "ALGORITHMS",
    "CollectiveError",
    "MismatchError",
    "Partition",
    "Plan",
    "ProgramError",
    "Transport",
    "TransportError",
    "all_gather",
    "all_reduce",
    "barrier",
    "broadcast",
    "chunk_bounds",
    "make_plan",
    "programs",
    "reduce",
    "reduce_scatter",
    "transport_of",
    "verify",
]


class Options(TypedDict, total=False):
    """Keyword arguments of ``make_plan``."""

    out: Array | None
    algorithm: str
    op: str
    segment_bytes: int | None
    weights: Sequence[float] | None


def all_reduce(x: Array, comm: Any, **options: Unpack[Options]) -> Array:
    """Combine x over all ranks; every rank gets the whole result, with the same bits.

    >>> import numpy as np
    >>> from dear_mpi.collectives.loopback import run_loopback
    >>> run_loopback(2, lambda transport: all_reduce(np.full(2, transport.rank + 1.0), transport).tolist())
    [[3.0, 3.0], [3.0, 3.0]]
    """
    return once("all_reduce", x, comm, **options)


def reduce_scatter(x: Array, comm: Any, **options: Unpack[Options]) -> Array:
    """Combine x over all ranks; rank r gets shard r of the result (a view into x where there is no ``out``).

    >>> import numpy as np
    >>> from dear_mpi.collectives.loopback import run_loopback
    >>> run_loopback(2, lambda transport: reduce_scatter(np.arange(4.0), transport).tolist())
    [[0.0, 2.0], [4.0, 6.0]]
    """
    return once("reduce_scatter", x, comm, **options)


def all_gather(x: Array, comm: Any, **options: Unpack[Options]) -> Array:
    """Collect shard r from every rank r; every rank gets all shards.

    >>> import numpy as np
    >>> from dear_mpi.collectives.loopback import run_loopback
    >>> run_loopback(2, lambda t: all_gather(np.full(1, t.rank), t, out=np.empty(2, int)).tolist())
    [[0, 1], [0, 1]]
    """
    return once("all_gather", x, comm, **options)


def broadcast(x: Array, comm: Any, *, root: int = 0, **options: Unpack[Options]) -> Array:
    """Every rank gets what the root has in x; by a binomial tree, unless an algorithm is given.

    >>> import numpy as np
    >>> from dear_mpi.collectives.loopback import run_loopback
    >>> run_loopback(3, lambda transport: broadcast(np.full(2, transport.rank), transport, root=2).tolist())
    [[2, 2], [2, 2], [2, 2]]
    """
    return once("broadcast", x, comm, root=root, **{"algorithm": "binomial", **options})


def reduce(x: Array, comm: Any, *, root: int = 0, **options: Unpack[Options]) -> Array:
    """Combine x for the root; by a binomial tree, in rank order from the root on, unless told otherwise."""
    return once("reduce", x, comm, root=root, **{"algorithm": "binomial", **options})


def barrier(comm: Any) -> None:
    """Return when all ranks have called it: an all-reduce of one byte. Who needs many of them keeps such a plan."""
    once("all_reduce", np.zeros(1, np.uint8), comm, algorithm="recursive_doubling")


def once(collective: str, x: Array, comm: Any, **options: Any) -> Array:
    """Prepare, run and free."""
    with make_plan(collective, x, comm, **options) as plan:
        return plan()
