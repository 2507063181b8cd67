"""The collectives as functions. The first call of a kind makes a plan, which is kept for the next (``one_off.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from dear_mpi.collectives.plans.make_plan import transport_of
from dear_mpi.collectives.plans.one_off import OneOffs
from dear_mpi.kernels.array import Array

__all__ = ["all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "reduce", "reduce_scatter"]

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Keywords(TypedDict, total=False):
    """Keyword arguments of ``make_plan``."""

    out: Array | None
    algorithm: str
    op: object
    segment_bytes: int | None
    weights: Sequence[float] | None
    counts: Sequence[int] | None


def all_reduce(x: Array, comm: Any, **options: Unpack[Keywords]) -> Array:
    """Combine x over all ranks; every rank gets the whole result, with the same bits.

    >>> from dear_mpi.collectives.transports.loopback import run_loopback
    >>> run_loopback(2, lambda transport: all_reduce(np.full(2, transport.rank + 1.0), transport).tolist())
    [[3.0, 3.0], [3.0, 3.0]]
    """
    return once("all_reduce", x, comm, **options)


def reduce_scatter(x: Array, comm: Any, **options: Unpack[Keywords]) -> Array:
    """Combine x over all ranks; rank r gets shard r of the result (a view into x where there is no ``out``).

    >>> from dear_mpi.collectives.transports.loopback import run_loopback
    >>> run_loopback(2, lambda transport: reduce_scatter(np.arange(4.0), transport).tolist())
    [[0.0, 2.0], [4.0, 6.0]]
    """
    return once("reduce_scatter", x, comm, **options)


def all_gather(x: Array, comm: Any, **options: Unpack[Keywords]) -> Array:
    """Collect shard r from every rank r; every rank gets all shards.

    >>> from dear_mpi.collectives.transports.loopback import run_loopback
    >>> run_loopback(2, lambda t: all_gather(np.full(1, t.rank), t, out=np.empty(2, int)).tolist())
    [[0, 1], [0, 1]]
    """
    return once("all_gather", x, comm, **options)


def all_to_all(x: Array, comm: Any, **options: Unpack[Keywords]) -> Array:
    """Chunk c of x goes to rank c, for every c, and what rank c has for this rank comes in its place.

    The P chunks are equal: without a multiple of P elements, or with weights or counts, there is an ArgumentError. By
    pairwise exchange, unless an algorithm is given.

    >>> from dear_mpi.collectives.transports.loopback import run_loopback
    >>> run_loopback(2, lambda t: all_to_all(np.array([10, 11], np.uint8) + 10 * t.rank, t).tolist())
    [[10, 20], [11, 21]]
    """
    return once("all_to_all", x, comm, **{"algorithm": "pairwise", **options})


def broadcast(x: Array, comm: Any, *, root: int = 0, **options: Unpack[Keywords]) -> Array:
    """Every rank gets what the root has in x; by a binomial tree, unless an algorithm is given.

    >>> from dear_mpi.collectives.transports.loopback import run_loopback
    >>> run_loopback(3, lambda transport: broadcast(np.full(2, transport.rank), transport, root=2).tolist())
    [[2, 2], [2, 2], [2, 2]]
    """
    return once("broadcast", x, comm, root=root, **{"algorithm": "binomial", **options})


def reduce(x: Array, comm: Any, *, root: int = 0, **options: Unpack[Keywords]) -> Array:
    """Combine x for the root; by a binomial tree, in rank order from the root on, unless told otherwise."""
    return once("reduce", x, comm, root=root, **{"algorithm": "binomial", **options})


def barrier(comm: Any) -> None:
    """Return when all ranks have called it: an all-reduce of one byte."""
    once("all_reduce", np.zeros(1, np.uint8), comm, algorithm="recursive_doubling")


def once(collective: str, x: Array, comm: Any, **options: Any) -> Array:
    return OneOffs.of(transport_of(comm))(collective, x, **options)
