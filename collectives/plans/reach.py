"""Find memory that all ranks can reach: their buffers, or additional mailboxes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.lowering.phases import Share
from dear_mpi.collectives.plans.call import Call
from dear_mpi.collectives.plans.tuning import rules_of
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, library_of
from dear_mpi.kernels.dtypes import compute_dtype, is_floating
from dear_mpi.kernels.slab import Slab

MESSAGES_BYTES = 4 * 1024  # below: messages beat copies and a barrier
SMALL_BYTES = 16 * 1024  # below: one barrier and a copy beat two barriers
BLOCK_BYTES = 256 * 1024  # fits a second-level cache; see docs/benchmarks
MAILBOXES_BYTES = 2 * 1024 * 1024  # below: mailboxes beat messages between ranks of a host, warm or cold
MAILBOX_BYTES = 1024 * 1024  # for one set of blocks; smaller with many ranks


@dataclass(frozen=True)
class Reach:
    """Buffers or mailboxes of all ranks, and this rank's share of the work."""

    share: Share
    arrays: Sequence[Array]
    mailboxes: bool


def wants_shared(algorithm: str, hosts: Sequence[int], collective: str = "", nbytes: float = math.inf) -> bool:
    """Return whether a buffer should be allocated in shared memory, so that plans work in it directly.

    Under ``auto`` a rule of the table decides (without a collective: any). In private memory MPI is faster.
    """
    if len(set(hosts)) > 1 or nbytes <= SMALL_BYTES:
        return False
    rules = rules_of(algorithm)
    if rules is None:
        return runner_of(algorithm) == "shared"
    shared = [rule for rule in rules if rule.shared]
    return any(not collective or (rule.collective == collective and nbytes <= rule.limit) for rule in shared)


def reach_for(call: Call, buffer: Array, transport: Transport, slab: Slab | None) -> Reach | None:
    """Collective: return the memory of all ranks if the call can use it, else None.

    ArgumentError on all ranks: the call needs it, but it is out of reach.
    """
    needed = runner_of(call.algorithm) == "shared"
    if not needed and (not call.shared_rules or buffer.nbytes <= MESSAGES_BYTES):
        return None
    dtype, on_host = buffer.dtype, library_of(buffer) == "numpy"
    # Types that are summed in a wider type are rounded once, hence combined at once.
    at_once = is_floating(dtype) and compute_dtype(dtype) != dtype
    block = max(min(BLOCK_BYTES, MAILBOX_BYTES // transport.size) // dtype.itemsize, 1)
    share = Share(call.partition(transport.size), transport.rank, block, at_once)
    arrays = transport.reach(buffer) if on_host and buffer.nbytes > SMALL_BYTES else None
    mailboxes = arrays is None and on_host and (needed or buffer.nbytes <= MAILBOXES_BYTES)
    if mailboxes:
        count = 2 * max(share.mailbox_room, 1)  # an empty array would be in no block
        if slab is not None:
            arrays = transport.reach(slab.empty(count, dtype))
        if arrays is None:
            arrays = transport.reach(transport.allocate(count * dtype.itemsize).view(dtype))
    if needed and arrays is None:
        which = "ranks of one host that can open each other's memory; no GPU, no emulated link"
        raise ArgumentError(f"algorithm {call.algorithm!r} needs {which}")
    return None if arrays is None else Reach(share, arrays, mailboxes=mailboxes)
