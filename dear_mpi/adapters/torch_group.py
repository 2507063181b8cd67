"""A process group of ``torch.distributed`` whose collectives a thread carries out, in the order in which they start.

A collective is a generator: the code above its ``yield`` looks at the arguments of this rank and moves nothing, and
what it yields is the result. So whatever is wrong with the arguments is raised by all ranks, and the group goes on.
"""

import atexit
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import wraps
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from dear_mpi.adapters.torch_tensors import octets, plain
from dear_mpi.collectives.program.errors import AgreedError, CollectiveError
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.collectives.transports.watchdog import Watchdog
from dear_mpi.kernels.array import Array

FAILED_S, EXIT_S = 2.0, 60.0  # for which a rank that fails, and one that ends, waits for collectives under way
NOTHING = np.empty(0, np.uint8)
Call = Callable[[], object]
Calls = Sequence[Call]
Steps = Iterator[Any]


class Work(dist.Work):  # type: ignore[misc]
    """A collective under way; ``future`` is done when it is over. ``wait`` raises what went wrong."""

    def __init__(self, future: Any) -> None:
        super().__init__()
        self.future = future

    def wait(self, timeout: Any = None) -> bool:
        self.future.wait()
        return True

    def is_completed(self) -> bool:
        return bool(self.future.done())

    def get_future(self) -> Any:
        """What C++ waits for: an exception is an error there only if it leaves a callback."""
        return self.future.then(lambda future: future.wait())


def collective(method: Callable[..., Calls]) -> Callable[..., Work]:
    """Let the thread of a group carry out a method: it is given the arrays of its first argument's tensors, to which
    results go, and looks at the other arguments of this rank. It moves nothing: the calls that it returns do."""

    def steps(outputs: Any, *others: Any, **options: Any) -> Steps:
        group, *arguments = others
        with plain(tree_leaves(outputs)) as arrays:
            calls = method(group, arrays, outputs, *arguments, **options)
            yield outputs
            for call in calls:
                call()

    @wraps(method)
    def start(group: TorchGroup, outputs: Any = (), *arguments: Any, **options: Any) -> Work:
        return group.start(method.__name__, steps(outputs, group, *arguments, **options))

    return start


class TorchGroup(dist.ProcessGroup):  # type: ignore[misc]
    """Ranks of a transport, and the thread of this one."""

    group_name: str = ""

    def __init__(self, transport: Transport, name: str, stall_after_s: float = 0.0) -> None:
        super().__init__(transport.rank, transport.size)
        self.group_name = name  # the base class's is from a C++ backend, which this group has not
        self.transport = transport
        self.queue: SimpleQueue[tuple[Any, str, Steps] | None] = SimpleQueue()
        self.failure: BaseException | None = None  # that the other ranks may not know of
        # A daemon: a rank that failed elsewhere ends, and the job with it, though the thread still waits.
        self.thread = threading.Thread(target=self.serve, args=[stall_after_s], name="torch_backend", daemon=True)
        self.thread.start()
        atexit.register(self.shutdown, EXIT_S)

    def serve(self, stall_after_s: float) -> None:
        """Run what was started; after a failure nothing on the wire can be relied on, and nothing more is run."""
        with Watchdog(self.transport, stall_after_s) if stall_after_s else nullcontext():
            while (item := self.queue.get()) is not None:
                self.carry_out(*item)

    def start(self, name: str, steps: Steps) -> Work:
        future: Any = torch.futures.Future()
        self.queue.put((future, name, steps))
        return Work(future)

    def carry_out(self, future: Any, name: str, steps: Steps) -> None:
        """Run a collective, and tell its future."""
        try:
            if self.failure is not None:
                raise CollectiveError(f"the collective was not run, because one before it failed: {self.failure}")
            result = self.prepared(name, steps)
            next(steps, None)
        except BaseException as error:
            if not isinstance(error, AgreedError):
                self.failure = self.failure or error
            future.set_exception(error)
        else:
            future.set_result(result)

    def prepared(self, name: str, steps: Steps) -> Any:
        """What a collective yields. If it raises before, all ranks get an ArgumentError: the others begin theirs."""
        try:
            return next(steps)
        except Exception as error:
            failure = error

        def facts() -> dict[str, Any]:
            raise failure

        self.transport.next_tag()  # as the others take one
        return agree(self.transport, name, facts)

    def shutdown(self, limit_s: float | None = None) -> None:
        """End the thread when it has run what was started: it must not touch a future while Python ends.

        What a rank that fails has started, the others may never start. So such a rank does not wait for long.
        """
        atexit.unregister(self.shutdown)
        self.queue.put(None)
        limit_s = FAILED_S if failing() else limit_s
        self.thread.join(limit_s)
        if self.thread.is_alive():
            said = f"rank {self.transport.rank} ends with collectives under way, for which it waited {limit_s:g} s"
            print(f"dear-mpi: {said}", file=sys.stderr, flush=True)


def failing() -> bool:
    """Whether an exception ends this rank: one is being handled, or has just left the program.

    At a prompt no exception ends it: there ``last_type`` is the type of any exception that was ever shown.
    """
    return sys.exc_info()[0] is not None or (hasattr(sys, "last_type") and not hasattr(sys, "ps1"))


def check_fits(name: str, tensor: Any, other: Any, times: int = 1) -> None:
    """See that a tensor has the type of another one, and so many times its elements."""
    found, expected = (tensor.numel(), tensor.dtype), (times * other.numel(), other.dtype)
    if found != expected:
        raise ValueError("{} must have {} elements of {}, not {} of {}".format(name, *expected, *found))


def counts(sizes: Sequence[int]) -> dict[str, Any]:
    """How many elements each rank owns, as an option of a collective; none where all own equally many."""
    return {} if len(set(sizes)) == 1 else {"counts": list(sizes)}


def for_each(arrays: Sequence[Array], ranks: int) -> list[Array]:
    """The bytes of an array for each rank; where there is no array, no bytes."""
    if len(arrays) not in (0, ranks):
        raise ValueError(f"a list must have a tensor for each of {ranks} ranks, not {len(arrays)}")
    return [octets(array) for array in arrays] or [NOTHING] * ranks


def only(rank: int, array: Array, ranks: int) -> list[Array]:
    """An array's bytes for one rank, and none for the others."""
    return [octets(array) if each == rank else NOTHING for each in range(ranks)]


def cut(array: Array, sizes: Sequence[int], ranks: int) -> list[Array]:
    """The bytes for each rank of an array that is cut along its first dimension, in these sizes or evenly.

    >>> [piece.tolist() for piece in cut(np.arange(3, dtype=np.uint8), [2, 1], 2)]
    [[0, 1], [2]]
    """
    if sizes and (sum(sizes) != len(array) or min(sizes) < 0):
        raise ValueError(f"split sizes must add up to {len(array)}, the first dimension, not be {list(sizes)}")
    if len(array) % ranks and not sizes:
        raise ValueError(f"the first dimension, {len(array)}, must be divisible by {ranks} ranks, or be split by sizes")
    return for_each(np.split(array, np.cumsum(sizes)[:-1] if sizes else ranks), ranks)
