"""The collectives as functions. The first call of a kind makes a plan, which is kept for the next call of this kind: a
collective, a count, a type and options.

Each rank looks whether it has kept a plan of the kind, and all of them vote with its number. Where one rank has none,
or another one, all ranks make a new plan; so whatever they disagree about is found as for any plan.

    small calls      work in memory of the plan's own; arrays are copied into it and out again
    all others       work in the user's array; for another array the plan is bound again, without the other ranks

A plan knows only the address of a user's array: it runs for whatever array of its count and type now begins there.
"""

from __future__ import annotations

import ctypes
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from dear_mpi.collectives.plans.call import PLAIN, flat, plain
from dear_mpi.collectives.plans.make_plan import make_plan, transport_of, workspace_of
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, library_of

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


SMALL_BYTES = 64 * 1024  # up to here, two copies cost little beside the messages
MOST_PLANS = 32
MOST_BYTES = 64 << 20  # of buffers that kept plans own
MOST_ARRAYS = 8  # to which a plan is bound at a time
Key = tuple[Any, ...]


class OneOffs:
    """The plans that the functions have kept on one transport."""

    def __init__(self, transport: Transport) -> None:
        self.transport, self.made = transport, 0
        self.kept: OrderedDict[int, OneOff] = OrderedDict()  # by number, the longest unused first: as on all ranks
        self.numbers: dict[Key, int] = {}
        transport.kept.add(self)

    @classmethod
    def of(cls, transport: Transport) -> OneOffs:
        """The kept plans of a transport, which live as long as it does."""
        found: OneOffs = vars(transport).get("one_offs") or vars(transport).setdefault("one_offs", cls(transport))
        return found

    def __call__(self, collective: str, x: Array, out: Array | None = None, **options: Any) -> Array:
        """Collective: run the plan of this call, which is made if it was not kept."""
        if "op" in options:
            options["op"] = plain(options["op"])
        key = self.key(collective, x, out, options)
        try:
            number = self.numbers.get(key, 0)
        except TypeError:  # there is something in it that has no hash
            key, number = (), 0
        exclusively = self.transport.one_thread.run
        if number and (target := exclusively(self.again, number, x, out)) is not None:
            return target
        with make_plan(collective, x, self.transport, out=out, **options) as plan:
            kept = self.keep(key, plan, options)
            return plan() if kept is None else exclusively(self.run, kept, x, out)

    def again(self, number: int, x: Array, out: Array | None) -> Array | None:
        """Collective: run a plan that was kept, if all ranks mean the same one; else None."""
        if not self.transport.same(number):
            return None
        self.kept.move_to_end(number)
        return self.run(self.kept[number], x, out)

    def run(self, kept: OneOff, x: Array, out: Array | None) -> Array:
        try:
            return kept(x, out)
        except BaseException:
            self.numbers.pop(kept.key, None)  # the next call makes another one
            raise

    def key(self, collective: str, x: Array, out: Array | None, options: dict[str, Any]) -> Key:
        """What tells this call from others; empty if only a plan of its own can check or run it."""
        target = x if out is None else out
        if type(x) not in PLAIN or type(target) not in PLAIN or not (target.flags.carray or target.flags.farray):
            return ()
        if out is not None and (not x.flags.forc or not x.flags.aligned or np.may_share_memory(x, out)):
            return ()
        given = [(name, tuple(value) if type(value) is list else value) for name, value in options.items()]
        key: Key = (collective, x.size, x.dtype, x.flags.c_contiguous, *given)
        if out is not None:
            key = (*key, out.size, out.dtype, out.flags.c_contiguous)
        try:
            path = file_of(options.get("algorithm", "ring"))
            if path:  # the file may be another one by now
                found = os.stat(path)
                key = (*key, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
        except (OSError, TypeError, AttributeError):
            return ()
        return key

    def keep(self, key: Key, plan: Plan, options: dict[str, Any]) -> OneOff | None:
        """Keep a plan, if that is worth it; all ranks decide alike, and drop the same ones."""
        if library_of(plan.call.x) != "numpy" or not options.keys().isdisjoint(("slab", "debug")):
            return None
        kept = OneOff(key, plan)
        if kept.held > MOST_BYTES or not kept.bind(plan.call.x if plan.call.out is None else plan.call.out):
            return None
        self.made += 1
        self.kept[self.made] = kept
        if key:
            self.numbers[key] = self.made
        while len(self.kept) > MOST_PLANS or sum(each.held for each in self.kept.values()) > MOST_BYTES:
            number, oldest = self.kept.popitem(last=False)
            if self.numbers.get(oldest.key) == number:
                del self.numbers[oldest.key]
            oldest.free()
        return kept

    def free(self) -> None:
        for kept in self.kept.values():
            kept.free()
        self.kept.clear()
        self.numbers.clear()


@cache
def file_of(algorithm: str) -> str:
    """The file of an algorithm or of rules; "" for a name of ours."""
    name, _, path = algorithm.partition(":")
    return path if name == "auto" else algorithm.rpartition(":")[0]


class OneOff:
    """The plan of one kind of call, made of its first one, and where it is bound to; ``key`` is what tells the kind."""

    def __init__(self, key: Key, plan: Plan) -> None:
        call, transport = plan.call, plan.transport
        self.key, self.plan, self.into = key, plan, call.out is not None
        self.own = call.partition(transport.size).shard(transport.rank)
        self.scatters, self.gathers = call.collective == "reduce_scatter", call.collective == "all_gather"
        nbytes = call.count * call.x.dtype.itemsize
        self.held = nbytes * (self.scatters and self.into)  # mailboxes are small; side buffers are not counted
        self.private = nbytes <= SMALL_BYTES or (self.scatters and self.into)
        self.plans: dict[int, Plan] = {}  # by address; memory of its own is at 0

    def __call__(self, x: Array, out: Array | None) -> Array:
        target = x if out is None else out
        given = x if x.ndim == 1 else flat(x)
        into = target if target.ndim == 1 else flat(target)
        plan = self.plans.get(0 if self.private else target.ctypes.data) or self.bind(target)
        assert plan is not None, "it could be bound before"
        buffer = plan.call.x
        if self.private or self.into:
            np.copyto(buffer[self.own] if self.gathers and self.into else buffer, given)
        try:
            plan.once()
        except BaseException:
            plan.result = target  # it lives as long as the plan: messages may still be written there
            raise
        if self.scatters and not self.into:
            into = target = into[self.own]
        if self.private:
            np.copyto(into, buffer[self.own] if self.scatters else buffer)
        return target

    def bind(self, target: Array) -> Plan | None:
        """A plan in memory of its own or in the target's; None if the algorithm cannot be bound anew."""
        call, transport = self.plan.call, self.plan.transport
        address, dtype = 0, call.x.dtype
        if self.private:
            buffer: Array = np.empty(call.count, dtype)
        else:  # an array in the target's memory, which it does not keep alive
            address = target.ctypes.data
            memory: Any = (ctypes.c_char * (call.count * dtype.itemsize)).from_address(address)
            buffer = np.frombuffer(memory, np.uint8).view(dtype)
        run = self.plan.run.on(buffer)
        if run is None:
            return None
        call = replace(call, x=buffer, out=None)
        self.plan = self.plans[address] = Plan(run, workspace_of(call, transport.rank, transport.size), call, transport)
        if len(self.plans) > MOST_ARRAYS:
            self.plans.pop(next(iter(self.plans))).free()
        return self.plan

    def free(self) -> None:
        for plan in self.plans.values():
            plan.free()
