"""Who takes part in the benchmark of a collective: anything that is called to run it once, and freed at the end.

cpu    native (the MPI library's own), ring (our plan), prototype (a page of mpi4py; all_reduce alone)
cuda   host copies (out, the ring of the host, in), staged, and direct where the MPI takes device memory
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dear_mpi.bench.prototype import PrototypeRing
from dear_mpi.collectives import make_plan
from dear_mpi.collectives.transport import StagedTransport
from dear_mpi.kernels.accumulate import copier
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.events import settle
from dear_mpi.kernels.slab import Slab
from dear_mpi.world import World

__all__ = ["CONTESTANTS", "Contestant"]


class Contestant(Protocol):
    """A collective that is prepared on a buffer."""

    def __call__(self) -> object: ...

    def free(self) -> None: ...


class HostCopies:
    """What one does without this package: copy the device's buffer out, run the collective on the host, copy it in."""

    def __init__(self, collective: str, x: Array, world: World, segment_bytes: int) -> None:
        host = Slab.pinned(x).empty(x.size, x.dtype)
        self.x = x
        self.copy_out, self.copy_in = copier(host, x), copier(x, host)
        self.plan = make_plan(collective, host, world.transport, segment_bytes=segment_bytes)

    def __call__(self) -> None:
        self.copy_out()
        settle(self.x)
        self.plan()
        self.copy_in()

    def free(self) -> None:
        self.plan.free()


def on_host(collective: str, x: Array, world: World, segment_bytes: int) -> dict[str, Contestant]:
    found: dict[str, Contestant] = {
        name: make_plan(collective, x, world.transport, algorithm=name, segment_bytes=segment_bytes)
        for name in ("native", "ring")
    }
    if collective == "all_reduce":
        from dear_mpi.collectives.mpi_transport import world_communicator  # imports MPI, which this module must not

        found["prototype"] = PrototypeRing(x, world_communicator(), segment_bytes)
    return found


def on_device(collective: str, x: Array, world: World, segment_bytes: int) -> dict[str, Contestant]:
    staged = StagedTransport(world.transport)
    found: dict[str, Contestant] = {
        "host copies": HostCopies(collective, x, world, segment_bytes),
        "staged": make_plan(collective, x, staged, segment_bytes=segment_bytes),
    }
    if world.transport.takes(x):
        found["direct"] = make_plan(collective, x, world.transport, segment_bytes=segment_bytes)
    if getattr(world.transport, "was_built_for", lambda array: False)(x):
        found["native"] = make_plan(collective, x, world.transport, algorithm="native", segment_bytes=segment_bytes)
    return found


# By device; the first one is the baseline of the others.
CONTESTANTS: dict[str, Callable[[str, Array, World, int], dict[str, Contestant]]] = {"cpu": on_host, "cuda": on_device}
