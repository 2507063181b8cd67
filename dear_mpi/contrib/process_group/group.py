"""Run the collectives of a ``torch.distributed`` process group on a thread, in their starting order.

A collective is a generator: the code before its ``yield`` checks this rank's arguments and communicates nothing; it
yields the communicating calls. So bad arguments raise on all ranks, and the group continues.

[Note: Order]
A callback may start a collective and wait for it, as DDP's PowerSGD hook does. It runs inside ``then`` if the future is
already done, and otherwise later, on the group's thread. This differs between ranks, but all ranks must run collectives
in one order. So each collective, and each future of ``get_future``, has a place in program order: (1,), (2,), ... The
thread always takes the lowest place: it runs a collective, or completes a future. A collective that a callback starts
on the thread gets the future's place and one more number: (2, 0), (2, 1), ... So it runs at the place that an
immediately completed future would give it. Only this thread can run it, and does so inside ``start``.
"""

import atexit
import itertools
import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial, wraps
from queue import PriorityQueue
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from dear_mpi.collectives.program.errors import AgreedError, CollectiveError
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.transport import Meeting, Transport
from dear_mpi.collectives.transports.watchdog import Watchdog
from dear_mpi.kernels.array import Array
from dear_mpi.torch.tensors import octets, plain

FAILED_S, EXIT_S = 2.0, 60.0  # wait for collectives in flight: of a failing rank, and of one that ends
NOTHING = np.empty(0, np.uint8)
Call = Callable[[], object]
Calls = Sequence[Call]
Steps = Iterator[Any]
Place = tuple[float, ...]
LAST: Place = (math.inf,)


class Work(dist.Work):  # type: ignore[misc]
    """A collective in flight; ``future`` is done when it completes. ``wait`` raises its error."""

    def __init__(self, group: "TorchGroup") -> None:
        super().__init__()
        self.group = group
        self.ready: Any = None  # an event of the caller's stream on its GPU
        self.future = torch.futures.Future()

    def wait(self, timeout: Any = None) -> bool:
        self.group.carry_on(self)
        self.future.wait()
        return True

    def is_completed(self) -> bool:
        return bool(self.future.done())

    def get_future(self) -> Any:
        """Return the future for C++, which sees an exception only if it leaves a callback."""
        due: Any = torch.futures.Future()
        result = due.then(lambda _: self.future.wait())
        place = self.group.next_place()
        if self.future.done():
            due.set_result(None)
        else:
            self.future.add_done_callback(lambda _: self.group.complete(due, place))
        return result


def collective(method: Callable[..., Calls]) -> Callable[..., Work]:
    """Make a group's thread run a method, which returns the communicating calls.

    It gets its first argument's tensors, dense, for the results, and checks other arguments without communication.
    """

    def steps(group: TorchGroup, outputs: Any, *arguments: Any, **options: Any) -> Steps:
        with plain(tree_leaves(outputs)) as outs:
            calls = method(group, outs, *arguments, **options)
            yield outputs
            for call in calls:
                call()

    @wraps(method)
    def start(group: TorchGroup, outputs: Any = (), *arguments: Any, **options: Any) -> Work:
        return group.start(method.__name__, steps(group, outputs, *arguments, **options))

    return start


class TorchGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A transport's ranks, and the thread of this rank; ``options``: of plans."""

    group_name: str = ""

    def __init__(self, transport: Transport, name: str, stall_after_s: float, options: dict[str, Any]) -> None:
        super().__init__(transport.rank, transport.size)
        self.group_name = name  # the base class takes it from a C++ backend, which this group lacks
        self.transport, self.options = transport, options
        self.queue: PriorityQueue[tuple[Place, Call]] = PriorityQueue()
        self.numbers = itertools.count(1)
        self.within: tuple[Place, Iterator[int]] = (), self.numbers  # the place of the thread's task
        self.failure: BaseException | None = None  # maybe unknown to the other ranks
        # A daemon: a failing rank ends, and the job with it, even if the thread still waits.
        self.thread = threading.Thread(target=self.serve, args=[stall_after_s], name="torch_backend", daemon=True)
        self.thread.start()
        atexit.register(self.shutdown, EXIT_S)

    def serve(self, stall_after_s: float) -> None:
        """Run started collectives; after a failure run no more, since messages in flight are undefined."""
        with Watchdog(self.transport, stall_after_s) if stall_after_s else nullcontext():
            while (task := self.queue.get())[0] < LAST:
                self.do(*task)

    @property
    def on_its_thread(self) -> bool:
        return threading.get_ident() == self.thread.ident

    def next_place(self) -> Place:
        """Return the place of a collective or a future that begins now: see [Note: Order]."""
        place, numbers = self.within if self.on_its_thread else ((), self.numbers)
        return (*place, next(numbers))

    def start(self, name: str, steps: Steps) -> Work:
        work = Work(self)
        if torch.cuda.is_initialized():
            work.device, work.ready = torch.cuda.current_device(), torch.cuda.current_stream().record_event()
        self.queue.put((self.next_place(), partial(self.carry_out, work, name, steps)))
        self.carry_on(work)
        return work

    def complete(self, future: Any, place: Place) -> None:
        """Complete the future of a completed collective: on the group's thread at its place, else at once."""
        if self.on_its_thread:
            self.queue.put((place, partial(future.set_result, None)))
        else:
            future.set_result(None)

    def carry_on(self, work: Work) -> None:
        """Let a callback on this thread use a collective: run the collectives before it, then run it."""
        while self.on_its_thread and not work.is_completed():
            self.do(*self.queue.get())

    def do(self, place: Place, task: Call) -> None:
        waits = self.transport.waits
        before, self.within = (self.within, waits.now), (place, itertools.count())
        waits.now = Meeting("a callback of torch.distributed")
        task()
        self.within, waits.now = before

    def carry_out(self, work: Work, name: str, steps: Steps) -> None:
        try:
            if self.failure is not None:
                raise CollectiveError(f"the collective was not run, because one before it failed: {self.failure}")
            if work.ready is not None:  # MPI needs the data, which its stream may still write
                torch.cuda.set_device(work.device)
                work.ready.synchronize()
            result = self.prepared(name, steps)
            next(steps, None)
            if work.ready is not None:
                torch.cuda.current_stream().synchronize()
        except BaseException as error:
            if not isinstance(error, AgreedError):
                self.failure = self.failure or error
            work.future.set_exception(error)
        else:
            work.future.set_result(result)

    def prepared(self, name: str, steps: Steps) -> Any:
        """Return the calls that a collective yields. If it raises first, all ranks agree on an ArgumentError."""
        try:
            return next(steps)
        except Exception as error:
            failure = error

        def facts() -> dict[str, Any]:
            raise failure

        self.transport.next_tag()  # the others also take one
        return agree(self.transport, name, facts)

    def shutdown(self, limit_s: float | None = None) -> None:
        """End the thread after all started collectives: it must not touch a future while Python ends.

        A failing rank waits only briefly: the other ranks may never start its collectives.
        """
        atexit.unregister(self.shutdown)
        self.queue.put(((*LAST, next(self.numbers)), lambda: None))
        limit_s = FAILED_S if failing() else limit_s
        self.thread.join(limit_s)
        if self.thread.is_alive():
            said = f"rank {self.transport.rank} ends with collectives under way, for which it waited {limit_s:g} s"
            print(f"dear-mpi: {said}", file=sys.stderr, flush=True)


def failing() -> bool:
    """Return whether an exception ends this rank: one is being handled, or has just left the program.

    At a prompt no exception ends it: there ``last_type`` is the type of the last exception shown.
    """
    return sys.exc_info()[0] is not None or (hasattr(sys, "last_type") and not hasattr(sys, "ps1"))


def check_fits(name: str, tensor: Any, other: Any, times: int = 1) -> None:
    """Check that a tensor has another one's type, and ``times`` its elements."""
    found, expected = (tensor.numel(), tensor.dtype), (times * other.numel(), other.dtype)
    if found != expected:
        raise ValueError("{} must have {} elements of {}, not {} of {}".format(name, *expected, *found))


def for_each(tensors: Sequence[Any], ranks: int) -> list[Array]:
    """Return a tensor's bytes for each rank; no bytes for a missing tensor."""
    if len(tensors) not in (0, ranks):
        raise ValueError(f"a list must have a tensor for each of {ranks} ranks, not {len(tensors)}")
    return [octets(tensor) for tensor in tensors] or [NOTHING] * ranks


def only(rank: int, tensor: Any, ranks: int) -> list[Array]:
    """Return a tensor's bytes for one rank, and none for the others."""
    return [octets(tensor) if each == rank else NOTHING for each in range(ranks)]


def cut(tensor: Any, sizes: Sequence[int], ranks: int) -> list[Array]:
    """Cut a tensor along its first dimension into each rank's bytes, in these sizes or evenly.

    >>> [piece.tolist() for piece in cut(torch.arange(3, dtype=torch.uint8), [2, 1], 2)]
    [[0, 1], [2]]
    """
    if sizes and (sum(sizes) != len(tensor) or min(sizes) < 0):
        raise ValueError(f"split sizes must add up to {len(tensor)}, the first dimension, not be {list(sizes)}")
    if len(tensor) % ranks and not sizes:
        raise ValueError(
            f"the first dimension, {len(tensor)}, must be divisible by {ranks} ranks, or be split by sizes"
        )
    return for_each(tensor.split(list(sizes) or [len(tensor) // ranks] * ranks), ranks)
