"""Send bytes over MPI by persistent point-to-point requests on a private communicator.

Messages are bytes: MPI has no bf16, and we reduce ourselves.
"""

import os
from array import array
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from mpi4py import MPI

from dear_mpi.collectives.launch.launcher import NOT_AT_IMPORT, end_children_at_exit
from dear_mpi.collectives.launch.neighbours import abort_job, own_monitor
from dear_mpi.collectives.program.hosts import Rates
from dear_mpi.collectives.transports.counters import CounterBarrier, barriers_of
from dear_mpi.collectives.transports.shared_memory import SharedMemory
from dear_mpi.collectives.transports.transport import Meeting, OneThread, Request, Waits
from dear_mpi.collectives.transports.wait_policy import SleepingRequest
from dear_mpi.kernels.array import Array, library_of

if TYPE_CHECKING:
    from dear_mpi.collectives.launch.cuda_aware import DeviceMemory

UNDER_WAY: set[object] = set()  # messages continue after one is freed
MAKING: dict[int, Lock] = {}  # by communicator, while its transport is made


class MpiTransport:
    """The ranks of an MPI communicator, on a duplicate that separates their messages from the user's.

    Constructing is collective. ``device_memory``: ``direct``, ``staged`` through pinned host memory, or ``auto``,
    decided at the first GPU buffer.
    """

    spins, abort = True, staticmethod(abort_job)
    rates: Rates | None = None

    def __init__(self, comm: MPI.Intracomm, *, device_memory: str = "auto") -> None:
        comm = MPI.Intracomm(comm)  # a user's subclass may override methods
        native = comm.Dup()
        names = native.allgather(MPI.Get_processor_name())
        self.waits, self.comparison = Waits(own_monitor()), Meeting("the next call")
        self.blocks, self.device_memory = SharedMemory(), device_memory
        self.decided: DeviceMemory | None = None
        self.under_way = UNDER_WAY
        self.join(native, tuple(map(names.index, names)))
        end_children_at_exit()
        # A child that reruns the script (spawn, forkserver) would start MPI as this rank, and hang.
        if self.size > 1:
            os.environ.setdefault(NOT_AT_IMPORT, "false")

    def join(self, native: MPI.Intracomm, hosts: tuple[int, ...]) -> None:
        """Begin with a private communicator. Not collective."""
        self.native, self.hosts = native, hosts
        self.rank: int = native.Get_rank()
        self.size: int = native.Get_size()
        self.one_thread = OneThread()
        upper: int | None = native.Get_attr(MPI.TAG_UB)
        self.tag, self.most_tags = 0, upper or 32767
        self.ballot, self.kept = array("q", (0, 0)), WeakSet[Any]()
        self.moment = array("d", (0.0,))
        self.barriers = barriers_of(self, self.native.Iprobe)
        self.voting: CounterBarrier | None = None  # until the first plan
        self.notes, self.sending = defaultdict[int, list[Any]](list), list[MPI.Request]()

    @classmethod
    def of(cls, comm: MPI.Intracomm) -> "MpiTransport":
        if type(comm) is not MPI.Intracomm:
            comm = MPI.Intracomm(comm)
        found = comm.Get_attr(keyval())
        if isinstance(found, cls):
            return found
        with MAKING.setdefault(comm.handle, Lock()):
            if comm.Get_attr(keyval()) is None:
                comm.Set_attr(keyval(), cls(comm))
        return cls.of(comm)

    @property
    def name(self) -> str:
        library, version = MPI.get_vendor()
        known = "" if self.decided is None else f"; {self.decided.why}"
        return "{} {}.{}.{}".format(library, *version) + known

    def allocate(self, nbytes: int) -> Array:
        return self.blocks.allocate(nbytes)

    def reach(self, array: Array) -> Sequence[Array] | None:
        regions = self.gather_values(self.blocks.find(array))
        if None in regions or len(set(self.hosts)) > 1:
            return None
        try:
            views = [array if r == self.rank else self.blocks.view(region, array) for r, region in enumerate(regions)]
        except OSError:
            views = None
        return views if all(self.gather_values(views is not None)) else None

    def counters(self) -> CounterBarrier | None:
        self.voting = self.voting or next(self.barriers)
        return next(self.barriers)

    def takes(self, array: Array) -> bool:
        if library_of(array) == "numpy":
            return True
        if self.decided is None:
            from dear_mpi.collectives.launch.cuda_aware import decide

            self.decided = decide(self.native, self.device_memory)
        return self.decided.direct

    def send_init(self, data: Array, peer: int, tag: int) -> Request:
        return self.native.Send_init([data.view("u1"), MPI.BYTE], peer, tag)

    def recv_init(self, data: Array, peer: int, tag: int) -> Request:
        return self.native.Recv_init([data.view("u1"), MPI.BYTE], peer, tag)

    def next_tag(self) -> int:
        self.tag = self.tag % self.most_tags + 1
        return self.tag

    def gather_values(self, value: Any) -> list[Any]:
        return self.waits.meet("values of all ranks", self.native.allgather, value)

    def same(self, number: int) -> bool:
        ballot = self.ballot
        self.waits.number += 1
        self.waits.now = self.comparison
        try:  # ``meet`` takes longer
            if self.voting is not None:
                return self.voting.same(number)
            ballot[0], ballot[1] = number, -number
            self.native.Allreduce(MPI.IN_PLACE, [ballot, 2, MPI.INT64_T], MPI.MIN)
        finally:
            self.waits.now = None
        return ballot[0] == -ballot[1]

    def latest(self, moment_s: float) -> float:
        self.moment[0] = moment_s
        self.waits.meet("times", self.native.Allreduce, MPI.IN_PLACE, [self.moment, 1, MPI.DOUBLE], MPI.MAX)
        return self.moment[0]

    def barrier(self, *, asleep: bool = False) -> None:
        if asleep:
            over: Any = self.native.Ibarrier()
            SleepingRequest(over).Wait()
        else:
            self.waits.meet("barrier", self.native.Barrier)

    def send_note(self, note: Any, tag: int) -> bool:
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:  # the engine may be in MPI
            return False
        others = [rank for rank in range(self.size) if rank != self.rank]
        self.sending = [each for each in self.sending if not each.Test()]
        self.sending += [self.native.isend(note, rank, tag) for rank in others]
        return True

    def received_notes(self, tag: int) -> list[Any]:
        if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            while (message := self.native.improbe(tag=tag)) is not None:
                self.notes[tag].append(message.recv())
        return self.notes[tag]

    def free(self) -> None:
        for keeper in list(self.kept):
            keeper.free()
        self.barriers.close()
        self.native.Free()


@cache
def keyval() -> int:
    return MPI.Comm.Create_keyval(delete_fn=lambda comm, key, transport: transport.free())
