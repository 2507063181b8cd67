"""Provide the collectives as functions, with cached plans.

All ranks vote with the number of their cached plan. If one has none, or another, all make a new plan, which finds
disagreements. The vote is also the barrier of small calls in shared memory.

    small calls      work in private memory of the plan; arrays are copied in and out
    all others       work in the user's array; for another array the plan is bound again, without the other ranks

A plan knows only an array's address: it runs for any of its count and type that begins there.
"""

from __future__ import annotations

import ctypes
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from dear_mpi.collectives.plans.call import PLAIN
from dear_mpi.collectives.plans.make_plan import make_plan, transport_of
from dear_mpi.collectives.plans.plan import Action, AroundBarrier, Plan
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, library_of

__all__ = ["all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "reduce", "reduce_scatter"]

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Keywords(TypedDict, total=False):
    """Options of ``make_plan``."""

    out: Array | None
    algorithm: str
    op: str
    segment_bytes: int | None
    counts: Sequence[int] | None


def all_reduce(x: Array, comm: Any, **options: Unpack[Keywords]) -> Array:
    """Combine x over all ranks; every rank gets the whole result, with the same bits.

    >>> from dear_mpi.collectives.transports.loopback import run_loopback
    >>> run_loopback(2, lambda transport: all_reduce(np.full(2, transport.rank + 1.0), transport).tolist())
    [[3.0, 3.0], [3.0, 3.0]]
    """
    return once("all_reduce", x, comm, options)


def reduce_scatter(x: Array, comm: Any, **options: Unpack[Keywords]) -> Array:
    """Combine x; rank r gets shard r of the result (without ``out`` a view into x)."""
    return once("reduce_scatter", x, comm, options)


def all_gather(x: Array, comm: Any, **options: Unpack[Keywords]) -> Array:
    """Collect shard r from every rank r on all ranks."""
    return once("all_gather", x, comm, options)


def all_to_all(x: Array, comm: Any, **options: Unpack[Keywords]) -> Array:
    """Send chunk c of x to rank c and receive rank c's chunk in its place, for every c.

    The P chunks are equal; ArgumentError for counts and other sizes.
    """
    return once("all_to_all", x, comm, {"algorithm": "pairwise", **options})


def broadcast(x: Array, comm: Any, *, root: int = 0, **options: Unpack[Keywords]) -> Array:
    """Copy the root's x to every rank."""
    return once("broadcast", x, comm, {"root": root, "algorithm": "binomial", **options})


def reduce(x: Array, comm: Any, *, root: int = 0, **options: Unpack[Keywords]) -> Array:
    """Combine x on the root, in rank order from the root on."""
    return once("reduce", x, comm, {"root": root, "algorithm": "binomial", **options})


def barrier(comm: Any) -> None:
    """Return when all ranks have called it: an all-reduce of one byte; without an emulated link, only its vote."""
    CachedPlans.of(transport_of(comm)).barrier()


def once(collective: str, x: Array, comm: Any, options: Mapping[str, Any]) -> Array:
    return CachedPlans.of(transport_of(comm))(collective, x, options)


COPIED_BYTES = 64 * 1024  # below: two copies cost little
BARRIER = {"algorithm": "recursive_doubling"}
MOST_PLANS = 32
MOST_BYTES = 64 << 20  # buffers owned by cached plans
MOST_ARRAYS = 8  # bound per plan at a time
Key = tuple[Any, ...]


class CachedPlans:
    def __init__(self, transport: Transport) -> None:
        self.transport, self.made = transport, 0
        # By number, least recently used first; equal on all ranks
        self.kept: OrderedDict[int, CachedPlan] = OrderedDict()
        self.numbers: dict[Key, int] = {}
        self.token = np.zeros(1, np.uint8)
        self.barrier_key = key_of("all_reduce", self.token, None, BARRIER)
        transport.kept.add(self)

    @classmethod
    def of(cls, transport: Transport) -> CachedPlans:
        known: dict[str, Any] = transport.__dict__  # every microsecond counts in one-off calls
        return known.get("cached_plans") or known.setdefault("cached_plans", cls(transport))

    def __call__(self, collective: str, x: Array, options: Mapping[str, Any]) -> Array:
        out = options.get("out")
        key = key_of(collective, x, out, options)
        try:
            number = self.numbers.get(key, 0)
        except TypeError:  # an unhashable value
            key, number = (), 0
        exclusively = self.transport.one_thread.run
        if number and (target := exclusively(self.again, number, x, out)) is not None:
            return target
        with make_plan(collective, x, self.transport, **options) as plan:
            number = self.keep(key, plan, options)
            return exclusively(self.run, number, x, out) if number else plan()

    def barrier(self) -> None:
        number, transport = self.numbers.get(self.barrier_key, 0), self.transport
        if number and transport.native is not None and transport.one_thread.run(transport.same, number):
            self.kept.move_to_end(number)
        else:
            self("all_reduce", self.token, BARRIER)

    def again(self, number: int, x: Array, out: Array | None) -> Array | None:
        """Run the cached plan; None if the ranks do not mean one plan."""
        kept = self.kept[number]
        if kept.around is None:
            if not self.transport.same(number):
                return None
            self.kept.move_to_end(number)
            return self.run(number, x, out)
        try:
            after = kept.post(x)
            if not self.transport.same(number):
                next(kept.around)  # of two sets: the next run takes the same one
                return None
            for call in after:
                call()
        except BaseException:  # this rank may now be at another set than the others
            self.numbers.pop(kept.key, None)
            raise
        self.kept.move_to_end(number)
        return kept.hand_out(kept.plan.call.x, x if out is None else out)

    def run(self, number: int, x: Array, out: Array | None) -> Array:
        kept = self.kept[number]
        try:
            return kept(x, out)
        except BaseException:
            self.numbers.pop(kept.key, None)
            raise

    def keep(self, key: Key, plan: Plan, options: Mapping[str, Any]) -> int:
        """Cache a plan if useful and return its number, or 0; all ranks decide alike."""
        if library_of(plan.call.x) != "numpy" or not options.keys().isdisjoint(("slab", "debug")):
            return 0
        kept = CachedPlan(key, plan)
        if kept.held > MOST_BYTES or not kept.bind(plan.call.x if plan.call.out is None else plan.call.out):
            return 0
        self.made += 1
        self.kept[self.made] = kept
        if key:
            self.numbers[key] = self.made
        while len(self.kept) > MOST_PLANS or sum(each.held for each in self.kept.values()) > MOST_BYTES:
            number, oldest = self.kept.popitem(last=False)
            if self.numbers.get(oldest.key) == number:
                del self.numbers[oldest.key]
            oldest.free()
        return self.made

    def free(self) -> None:
        for kept in self.kept.values():
            kept.free()
        self.kept.clear()
        self.numbers.clear()


def key_of(collective: str, x: Array, out: Array | None, options: Mapping[str, Any]) -> Key:
    """Return the kind of a call; empty if only a new plan can check or run it."""
    target = x if out is None else out
    if type(x) not in PLAIN or type(target) not in PLAIN or not target.flags.carray:
        return ()
    if out is not None and (not x.flags.c_contiguous or not x.flags.aligned or np.may_share_memory(x, out)):
        return ()
    key: Key = (collective, x.size, x.dtype)
    for name, value in options.items():
        if name != "out":
            key += (name, tuple(value) if type(value) is list else value)
        elif out is not None:
            key += (name, out.size, out.dtype)
    try:
        path = "algorithm" in options and file_of(options["algorithm"])
        if path:  # it may have changed
            found = os.stat(path)
            key = (*key, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
    except (OSError, TypeError, AttributeError):
        return ()
    return key


@cache
def file_of(algorithm: str) -> str:
    name, _, path = algorithm.partition(":")
    return path if name == "auto" else algorithm.rpartition(":")[0]


class CachedPlan:
    def __init__(self, key: Key, plan: Plan) -> None:
        call, transport = plan.call, plan.transport
        self.key, self.plan, self.into = key, plan, call.out is not None
        self.own = call.partition(transport.size).shard(transport.rank)
        self.scatters, self.gathers = call.collective == "reduce_scatter", call.collective == "all_gather"
        self.held = call.nbytes * (self.scatters and self.into)  # mailboxes are small; side buffers do not count
        self.private = call.nbytes <= COPIED_BYTES or (self.scatters and self.into)
        self.plans: dict[int, Plan] = {}  # by address; 0: private memory
        self.around: Iterator[AroundBarrier] | None = None

    def __call__(self, x: Array, out: Array | None) -> Array:
        target = x if out is None else out
        plan = self.plans.get(0 if self.private else target.ctypes.data) or self.bind(target)
        assert plan is not None, "it could be bound before"
        if self.private or self.into:
            self.fill(plan.call.x, x)
        try:
            plan.whole()
        except BaseException:
            plan.result = target  # messages may still be written there
            raise
        return self.hand_out(plan.call.x, target)

    def fill(self, buffer: Array, x: Array) -> None:
        # Half the time of np.copyto
        (buffer[self.own] if self.gathers and self.into else buffer)[...] = x if x.ndim == 1 else x.reshape(-1)

    def hand_out(self, buffer: Array, target: Array) -> Array:
        into = target if target.ndim == 1 else target.reshape(-1)
        if self.scatters and not self.into:
            into = target = into[self.own]
        if self.private:
            into[...] = buffer[self.own] if self.scatters else buffer
        return target

    def post(self, x: Array) -> Sequence[Action]:
        """Store a small array in this rank's mailbox before the vote; return the calls after it.

        If all vote for this plan, all have stored their data, so the vote is the run's barrier. This needs a plan with
        mailboxes, counters and one barrier; its transport then votes by counters. Two mailbox sets alternate, in all
        runs of the plan alike. After another vote, ``post`` stores into the same set again, which no rank has read.
        """
        assert self.around is not None, "``again`` has looked"
        before, after = next(self.around)
        self.fill(self.plan.call.x, x)
        for call in before:
            call()
        return after

    def bind(self, target: Array) -> Plan | None:
        """Bind to private memory or to the target's; None if the algorithm cannot be bound again."""
        call, address, dtype = self.plan.call, 0, self.plan.call.x.dtype
        if self.private:
            buffer: Array = np.empty(call.count, dtype)
        else:  # an array in the target's memory that does not keep it alive
            address = target.ctypes.data
            memory: Any = (ctypes.c_char * call.nbytes).from_address(address)
            buffer = np.frombuffer(memory, np.uint8).view(dtype)
        task = self.plan.task.on(buffer)
        run = self.plan.run.on(task)
        if run is None:
            return None
        self.plan = self.plans[address] = Plan(run, task)
        if self.private and not task.before and not task.after:  # an average is scaled around a run
            self.around = run.around_barrier()
        if len(self.plans) > MOST_ARRAYS:
            self.plans.pop(next(iter(self.plans))).free()
        return self.plan

    def free(self) -> None:
        for plan in self.plans.values():
            plan.free()
