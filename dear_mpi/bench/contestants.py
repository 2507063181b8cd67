"""Who takes part in the benchmark of a collective: anything that is called to run it once, and freed at the end.

    native        the MPI library's own
    prototype     a ring on a page of mpi4py (all_reduce alone)
    gloo          torch.distributed (gloo.py)
    host copies   of device memory: out, the ring of the host, in
    staged        the ring, through pinned host memory
    direct        the ring, where MPI takes device memory
    the rest      plans of ours, by what ``make_plan`` calls an algorithm

``openmpi`` and ``mpich`` are not here: they run in a job of their own (other_mpi.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dear_mpi.bench.case import Case
from dear_mpi.bench.gloo import GlooRun
from dear_mpi.bench.prototype import PrototypeRing
from dear_mpi.collectives import make_plan
from dear_mpi.collectives.errors import ArgumentError
from dear_mpi.collectives.plan import Plan
from dear_mpi.collectives.transport import StagedTransport, Transport
from dear_mpi.collectives.tuning import rules_of
from dear_mpi.kernels.accumulate import copier
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.events import settle
from dear_mpi.kernels.slab import Slab

__all__ = ["CONTESTANTS", "DEFAULTS", "CannotRun", "Contestant", "Entry", "enter"]

DEFAULTS = {"cpu": ("native", "ring", "auto", "prototype"), "cuda": ("host copies", "staged", "direct", "native")}


class CannotRun(ValueError):
    """Why a contestant sits a case out. All ranks raise it alike."""


class Contestant(Protocol):
    """A collective that is prepared on its buffers. One may have a method ``untimed`` for what comes after."""

    def __call__(self) -> object: ...

    def free(self) -> None: ...


@dataclass(frozen=True)
class Entry:
    """What a contestant is given: a case, its arrays, the ranks, and the largest message."""

    case: Case
    x: Array
    out: Array | None
    transport: Transport
    segment_bytes: int

    def plan(self, algorithm: str) -> Plan:
        case = self.case
        return make_plan(
            case.collective,
            self.x,
            self.transport,
            out=self.out,
            algorithm=algorithm,
            op=case.op if case.reduces else "sum",
            segment_bytes=self.segment_bytes if rules_of(algorithm) is None else None,  # auto has its own
        )


class HostCopies:
    """What one does without this package: copy the device's buffer out, run the collective on the host, copy it in."""

    def __init__(self, entry: Entry) -> None:
        if entry.out is not None:
            raise CannotRun("works in place alone")
        self.x = entry.x
        host = Slab.pinned(self.x).empty(self.x.size, self.x.dtype)
        self.copy_out, self.copy_in = copier(host, self.x), copier(self.x, host)
        self.plan = replace(entry, x=host).plan("ring")

    def __call__(self) -> None:
        self.copy_out()
        settle(self.x)
        self.plan()
        self.copy_in()

    def free(self) -> None:
        self.plan.free()


class Native:
    """The MPI library's call itself; what our plans do around it to keep their promises is not timed."""

    def __init__(self, entry: Entry) -> None:
        if not getattr(entry.transport, "was_built_for", lambda array: True)(entry.x):
            raise CannotRun("this MPI was not built for GPUs")
        self.plan = entry.plan("native")
        alone = entry.out is None and entry.case.device == "cpu" and entry.case.op != "average"
        run: Any = self.plan.run  # a NativeRun, whose module imports MPI
        self.call: Callable[[], object] = run.call if alone else self.plan
        self.untimed: Callable[[], object] = run.home if alone else lambda: None

    def __call__(self) -> None:
        self.call()

    def free(self) -> None:
        self.plan.free()


def prototype(entry: Entry) -> Contestant:
    case = entry.case
    if (case.collective, case.op, entry.out) != ("all_reduce", "sum", None) or case.dtype not in ("fp32", "fp64"):
        raise CannotRun("sums fp32 or fp64 in all_reduce, in place")
    if case.count % entry.transport.size:
        raise CannotRun("needs equal chunks")
    from dear_mpi.collectives.mpi_transport import world_communicator  # imports MPI, which this module must not

    return PrototypeRing(entry.x, world_communicator(), entry.segment_bytes)


def gloo(entry: Entry) -> Contestant:
    try:
        return GlooRun(entry.case, entry.x, entry.out, entry.transport.rank, entry.transport.size)
    except ValueError as error:
        raise CannotRun(str(error)) from None


def staged(entry: Entry) -> Contestant:
    return replace(entry, transport=StagedTransport(entry.transport)).plan("ring")


def direct(entry: Entry) -> Contestant:
    if not entry.transport.takes(entry.x):
        raise CannotRun("this MPI does not take device memory")
    return entry.plan("ring")


CONTESTANTS: dict[str, Callable[[Entry], Contestant]] = {
    "native": Native,
    "prototype": prototype,
    "gloo": gloo,
    "host copies": HostCopies,
    "staged": staged,
    "direct": direct,
}


def enter(name: str, entry: Entry) -> Contestant:
    """
    Raises:
        CannotRun: it sits this case out, or there is no such algorithm.
    """
    try:
        return CONTESTANTS[name](entry) if name in CONTESTANTS else entry.plan(name)
    except ArgumentError as error:
        raise CannotRun(str(error)) from None
