"""Memory that all ranks can reach: their buffers themselves, or mailboxes beside them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.plans.call import Call
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, library_of
from dear_mpi.kernels.slab import Slab

__all__ = ["Reach", "reach_for"]

MESSAGES_BYTES = 4 * 1024  # up to here, the fewest messages are faster than copies and a barrier
SMALL_BYTES = 16 * 1024  # up to here, one barrier and a copy cost less than two barriers
ANY_BUFFER_BYTES = 64 * 1024  # up to here, mailboxes beat messages between ranks of a host


@dataclass(frozen=True)
class Reach:
    """The same memory of every rank: their buffers, or mailboxes, which have room for two of them."""

    arrays: Sequence[Array]
    mailboxes: bool


def reach_for(call: Call, buffer: Array, transport: Transport, slab: Slab | None) -> Reach | None:
    """Collective: the memory of all ranks, if the call needs it or could use it; else None.

    Raises:
        ArgumentError: the call needs it, and it is out of reach; on all ranks alike.
    """
    needed = runner_of(call.algorithm) == "shared"
    if not needed and (not call.shared_rules or buffer.nbytes <= MESSAGES_BYTES):
        return None
    reached = reach(buffer, transport, slab, most_bytes=math.inf if needed else ANY_BUFFER_BYTES)
    if needed and reached is None:
        which = "ranks of one host that can open each other's memory; no GPU, no emulated link"
        raise ArgumentError(f"algorithm {call.algorithm!r} needs {which}")
    return reached


def reach(buffer: Array, transport: Transport, slab: Slab | None, *, most_bytes: float) -> Reach | None:
    """Collective: how ranks can read and write each other's data, if they can; by mailboxes up to ``most_bytes``."""
    memory, dtype = transport.memory, buffer.dtype
    if library_of(buffer) != "numpy":
        return None
    if buffer.nbytes > SMALL_BYTES and (arrays := memory.reach(buffer)) is not None:
        return Reach(arrays, mailboxes=False)
    if buffer.nbytes > most_bytes:
        return None
    count = 2 * max(buffer.size, 1)  # an empty array would be in no block
    arrays = None if slab is None else memory.reach(slab.empty(count, dtype))
    if arrays is None:
        arrays = memory.reach(memory.allocate(count * dtype.itemsize).view(dtype))
    return None if arrays is None else Reach(arrays, mailboxes=True)
