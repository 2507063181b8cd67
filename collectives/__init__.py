"""Run collectives on mpi4py communicators: programs, their proofs, plans and transports.

    from mpi4py import MPI
    from dear_mpi.collectives import all_reduce
    all_reduce(x, MPI.COMM_WORLD, algorithm="ring", op="sum")      # x now holds the sum, on every rank

Without ``out`` a call works in place. A rank's shard is given by ``chunk_bounds``, or by ``counts``:

    collective:      x before;                  in place, x after;            with out, x is unchanged and
    reduce_scatter:  a full buffer;             own shard holds the result;   out is the rank's shard
    all_gather:      full buffer, own shard set; the full buffer;             x is the rank's shard, out is full
    all_reduce:      a full buffer;             the full result;              out is full
    broadcast:       full at the root;          the root's;                   out is full, x of any contents elsewhere
    reduce:          a full buffer;             the result at the root,       out is full, but used only at the root
                                                undefined elsewhere;
    all_to_all:      a chunk for each rank;     a chunk from each rank;       out is full

``comm`` is an mpi4py communicator or any ``Transport``. Plans of calls are kept. To repeat a collective on one buffer,
or to compute meanwhile, use ``make_plan``, which explains all keyword arguments.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Loaded on access: proofs need neither MPI nor NumPy.
HOMES = {
    "algorithms.registry": ("ALGORITHMS", "programs"),
    "plans.functions": (
        *("all_gather", "all_reduce", "all_to_all", "barrier"),
        *("broadcast", "reduce", "reduce_scatter"),
    ),
    "plans.make_plan": ("make_plan", "transport_of"),
    "plans.plan": ("Plan",),
    "program.errors": ("CollectiveError", "MismatchError", "ProgramError", "TransportError"),
    "program.program": ("Partition", "chunk_bounds"),
    "program.verify": ("verify",),
    "transports.transport": ("Transport",),
}
__all__ = [name for names in HOMES.values() for name in names]

# ruff: noqa: F403 (each module lists its names in __all__)
if TYPE_CHECKING:
    from dear_mpi.collectives.algorithms.registry import *
    from dear_mpi.collectives.plans.functions import *
    from dear_mpi.collectives.plans.make_plan import *
    from dear_mpi.collectives.plans.plan import *
    from dear_mpi.collectives.program.errors import *
    from dear_mpi.collectives.program.program import *
    from dear_mpi.collectives.program.verify import *
    from dear_mpi.collectives.transports.transport import *


def __getattr__(name: str) -> Any:
    for home, names in HOMES.items():
        if name in names:
            found = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
