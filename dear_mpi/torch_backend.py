"""Our collectives as a backend of ``torch.distributed``: DDP and FSDP as they are, over any algorithm of ours.

    from dear_mpi.torch_backend import init_process_group
    init_process_group(MPI.COMM_WORLD, algorithm="mine.py:my_ring")
    model = torch.nn.parallel.DistributedDataParallel(model)

A collective is carried out by a thread of its group, in the order in which it was started, while the caller computes;
its ``Work`` is over when the thread says so. Tensors are of the host. All bytes go over the communicator that is given,
so ``torch.distributed`` needs no address and no port: its store is one that each rank has for itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dear_mpi.collectives import all_gather, all_reduce, barrier, broadcast, reduce_scatter, transport_of
from dear_mpi.collectives.plans.runners import check_algorithm
from dear_mpi.collectives.program.errors import ArgumentError, CollectiveError
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.collectives.transports.watchdog import Watchdog
from dear_mpi.kernels.array import Array
from dear_mpi.models.adapters.torch_parameter import array_of
from dear_mpi.reporting.units import check_seconds

__all__ = ["DearGroup", "init_process_group"]

NAME = "dear"
OPS = {"SUM": "sum", "AVG": "average", "PRODUCT": "prod", "MIN": "min", "MAX": "max"}  # PyTorch's names and ours


def init_process_group(comm: Any, *, algorithm: str = "ring", stall_after_s: float = 0.0, **options: Any) -> None:
    """Collective: make torch.distributed's default group of all ranks of a communicator.

    Args:
        comm: an mpi4py communicator, or a ``Transport``.
        algorithm: of all-reduce, reduce-scatter and all-gather; a broadcast goes by a binomial tree.
        stall_after_s: say so when a rank has waited for so long (``docs/faults.md``); 0 for never.
        options: more of ``make_plan``, such as ``segment_bytes``.

    Raises:
        ArgumentError, MismatchError: there is no such algorithm, or ranks differ in what they give; on all ranks.
    """
    transport = transport_of(comm)
    chosen = {"algorithm": algorithm, **options}

    def facts() -> dict[str, object]:
        check_algorithm(algorithm, transport, "all_reduce")
        return {**chosen, "stall_after_s": check_seconds("stall_after_s", stall_after_s)}

    agree(transport, "init_process_group", facts)
    make = partial(group_of, transport, chosen, stall_after_s)
    dist.Backend.register_backend(NAME, make, extended_api=True, devices=["cpu"])
    dist.init_process_group(NAME, store=dist.HashStore(), rank=transport.rank, world_size=transport.size)


def group_of(transport: Transport, chosen: dict[str, Any], stall_after_s: float, asked: Any, _: Any) -> DearGroup:
    """The group that torch.distributed asks for: of all ranks, or of those that it names.

    Each has a communicator of its own, also where several have all ranks: their threads start collectives in no common
    order. It stays until the program ends, because a thread may still wait on it.

    Raises:
        ValueError: it names some, and the ranks are no processes of MPI.
    """
    ranks = list(asked.global_ranks_in_group)
    if ranks not in ([], list(range(transport.size))):
        own = transport_of(among(transport, ranks))
    else:
        own = transport if transport.native is None else transport_of(transport.native.Dup())
    return DearGroup(own, chosen, asked.group_id, stall_after_s)


def among(transport: Transport, ranks: Sequence[int]) -> Any:
    """A communicator of some ranks, made by them alone.

    Raises:
        ValueError: the ranks are no processes of MPI.
    """
    if transport.native is None:
        raise ValueError(f"a group of ranks {ranks} alone needs MPI, and these ranks are {transport.name}")
    everyone = transport.native.Get_group()
    some = everyone.Incl(ranks)
    found = transport.native.Create_group(some)
    for group in (everyone, some):
        group.Free()
    return found


class Work(dist.Work):  # type: ignore[misc]
    """A collective under way; ``future`` is done when it is over."""

    def __init__(self, future: Any) -> None:
        super().__init__()
        self.future = future

    def wait(self, timeout: Any = None) -> bool:
        """Block until it is over; raises what went wrong."""
        self.future.wait()
        return True

    def is_completed(self) -> bool:
        return bool(self.future.done())

    def get_future(self) -> Any:
        """What C++ waits for: an exception is an error there only if it leaves a callback."""
        return self.future.then(lambda future: future.wait())


class DearGroup(dist.ProcessGroup):  # type: ignore[misc]
    """Ranks that communicate by our collectives; the methods are those that torch.distributed calls."""

    group_name: str = ""

    def __init__(self, transport: Transport, chosen: dict[str, Any], name: str, stall_after_s: float = 0.0) -> None:
        super().__init__(transport.rank, transport.size)
        self.group_name = name  # that of the base class is one of C++'s backends, which this group has not
        self.transport, self.chosen = transport, chosen
        self.queue: SimpleQueue[tuple[Any, Any, Callable[[], object]] | None] = SimpleQueue()
        # A daemon: a rank that failed elsewhere ends, and the job with it, though the thread still waits.
        threading.Thread(target=self.serve, args=[stall_after_s], name="torch_backend", daemon=True).start()

    def serve(self, stall_after_s: float) -> None:
        """Run what was started; after a failure nothing on the wire can be relied on, and nothing more is run."""
        with Watchdog(self.transport, stall_after_s) if stall_after_s else nullcontext():
            failure: BaseException | None = None
            while (item := self.queue.get()) is not None:
                failure = carried_out(*item, failure) or failure

    def start(self, result: Any, call: Callable[[], object]) -> Work:
        future: Any = torch.futures.Future()
        self.queue.put((future, result, call))
        return Work(future)

    def shutdown(self) -> None:
        """End the thread when it has run what was started."""
        self.queue.put(None)

    def getBackendName(self) -> str:
        return NAME

    def allreduce(self, tensors: Sequence[Any], opts: Any) -> Work:
        op = op_of(opts)

        def run() -> None:
            for tensor in tensors:
                with plain(tensor) as array:
                    all_reduce(array, self.transport, op=op, **self.chosen)

        return self.start(tensors, run)

    allreduce_coalesced = allreduce

    def broadcast(self, tensors: Sequence[Any], opts: Any) -> Work:
        def run() -> None:
            for tensor in tensors:
                with plain(tensor) as array:
                    broadcast(octets(array), self.transport, root=opts.rootRank)

        return self.start(tensors, run)

    def all_gather_single(self, output: Any, given: Any, opts: Any = None) -> Work:
        """Output: what the ranks give, one behind the other."""

        def run() -> None:
            with plain(output) as whole:
                rows = octets(whole).reshape(self.size(), -1)
                rows[self.rank()] = octets(np.ascontiguousarray(array_of(given)))
                all_gather(rows, self.transport, **self.chosen)

        return self.start(output, run)

    def allgather(self, outputs: Sequence[Sequence[Any]], given: Sequence[Any], opts: Any = None) -> Work:
        def run() -> None:
            for tensors, own in zip(outputs, given, strict=True):
                rows = np.empty((self.size(), own.nbytes), np.uint8)
                rows[self.rank()] = octets(np.ascontiguousarray(array_of(own)))
                all_gather(rows, self.transport, **self.chosen)
                for tensor, row in zip(tensors, rows, strict=True):
                    with plain(tensor) as array:
                        octets(array)[...] = row

        return self.start(outputs, run)

    def reduce_scatter_single(self, output: Any, given: Any, opts: Any) -> Work:
        """Given: as many parts as ranks, one behind the other; output: the sum of those of this rank's number."""
        op = op_of(opts)

        def run() -> None:
            whole = np.ascontiguousarray(array_of(given)).reshape(-1)
            with plain(output) as array:
                reduce_scatter(whole, self.transport, out=array.reshape(-1), op=op, **self.chosen)

        return self.start(output, run)

    def reduce_scatter(self, outputs: Sequence[Any], given: Sequence[Sequence[Any]], opts: Any) -> Work:
        (output,), (parts,) = outputs, given
        return self.reduce_scatter_single(output, torch.cat([part.reshape(-1) for part in parts]), opts)

    def barrier(self, opts: Any = None) -> Work:
        return self.start(None, partial(barrier, self.transport))


def carried_out(future: Any, result: Any, call: Callable[[], object], before: BaseException | None) -> Any:
    """Make a call, and tell its future; what went wrong, unless it is an argument that all ranks refuse."""
    try:
        if before is not None:
            raise CollectiveError(f"the collective was not run, because one before it failed: {before}")
        call()
    except BaseException as error:
        future.set_exception(error)
        return None if isinstance(error, ArgumentError) else before or error
    future.set_result(result)
    return None


def op_of(opts: Any) -> str:
    """What a collective is to reduce by.

    Raises:
        ValueError: we have no such operation.
    """
    name = opts.reduceOp.op.name
    if name not in OPS:
        raise ValueError(f"reduction {name} is not offered by backend {NAME!r}. Allowed: {', '.join(OPS)}")
    return OPS[name]


@contextmanager
def plain(tensor: Any) -> Iterator[Array]:
    """A contiguous array with a tensor's elements, which go back into the tensor behind the block."""
    array = array_of(tensor)
    contiguous = np.ascontiguousarray(array)
    yield contiguous
    if not np.may_share_memory(array, contiguous):
        array[...] = contiguous


def octets(array: Array) -> Array:
    """The bytes of a contiguous array, flat: what is not reduced may have any type."""
    return array.reshape(-1).view(np.uint8)
