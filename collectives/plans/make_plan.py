"""Check a call, agree on it, and make its plan."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, cast

from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.lowering.messages import WHOLE, Portion
from dear_mpi.collectives.plans.call import Call, Task, plain
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.collectives.plans.runners import check_call, runner_for
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.transports.agree import agree, run_checker
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.lookup import lookup
from dear_mpi.kernels.slab import Slab

__all__ = ["make_plan", "transport_of"]

if TYPE_CHECKING:
    from dear_mpi.collectives.transports.mpi import MpiTransport


def make_plan(
    collective: str,
    x: Array,
    comm: Any,
    *,
    out: Array | None = None,
    algorithm: str = "ring",
    op: str = "sum",
    segment_bytes: int | None = None,
    counts: Sequence[int] | None = None,
    root: int = 0,
    slab: Slab | None = None,
    alike: bool = False,
    portion: Portion = WHOLE,
    debug: bool = False,
    **unknown: NoReturn,
) -> Plan:
    """Prepare a collective for these arrays; run the plan by calling it, or by start / advance / wait.

    Collective: all ranks call it in one order with equal arguments, except for the arrays' contents.

    Args:
        collective: ``reduce_scatter``, ``all_gather``, ``all_reduce``, ``broadcast``, ``reduce`` or ``all_to_all``.
        x, out: contiguous NumPy or CuPy arrays, see the table in ``dear_mpi.collectives``.
        comm: an mpi4py communicator or a ``Transport``.
        algorithm: a name in ``ALGORITHMS``; ``path/to/mine.py:my_ring`` for your function; ``auto`` or ``auto:FILE``
            for a tuning table's choice; ``native`` for the MPI library's own.
        op: ``sum``, ``prod``, ``min``, ``max``, ``band``, ``bor``, ``bxor`` or ``average``; see ``docs/algorithms.md``.
        segment_bytes: largest message. Default: the tuning table's, else 256 KiB on one host and 60 KiB between hosts.
        counts: elements of each rank's shard, such as ``Partition.of(count, size, weights).counts``. Default: equal.
        root: source of a broadcast or target of a reduce.
        slab: memory for side buffers. Default: a new one.
        alike: let ``auto`` use one algorithm for an all_reduce and its halves, so that both give the same bits.
        portion: blocks of each chunk to work on (``lowering/messages.py``). Plans of all portions, in any order, give
            the bits of one plan. Needs an algorithm that sends messages.
        debug: compare plan and run number between ranks before every run.

    CuPy arrays are processed on the current stream of the running thread.

    Raises:
        ArgumentError: an argument is not allowed on some rank; raised on all ranks.
        MismatchError: the ranks do not agree.
    """
    transport = transport_of(comm)
    asked = Call(collective, x, out, algorithm, op, plain(segment_bytes), plain(root), alike, counts, portion)
    options = {"debug": debug, "alike": alike, "a slab": slab is not None}
    return transport.one_thread.run(prepare, asked, transport, slab, options, [*unknown])


def prepare(
    asked: Call, transport: Transport, slab: Slab | None, options: dict[str, bool], unknown: Sequence[str]
) -> Plan:
    tag = transport.next_tag()

    def facts() -> dict[str, object]:
        for name in unknown:
            lookup("argument", name, make_plan.__kwdefaults__ or {})
        return {**check_call(asked, transport), **options, "number of the plan": tag}

    agree(transport, asked.collective, facts)
    task, reached = Task.of(asked, transport, tag, slab), None
    counters = transport.counters() if slab is None else None  # an engine has the slab, and computing needs its lock
    if runner_of(asked.algorithm) == "shared" or asked.shared_rules:
        from dear_mpi.collectives.plans.runners.shared import reach_for  # few jobs need it

        reached = reach_for(task, counters)
    call = asked.chosen(transport, sharing=reached is not None)
    if call.portion != WHOLE and runner_of(call.algorithm) != "messages":  # equal on all ranks
        raise ArgumentError(f"portion must be left out for {call.algorithm!r}, which sends no messages")
    task = replace(task, call=call, reached=reached)
    run = runner_for(call.algorithm).prepare(task)
    if options["debug"]:
        task = replace(task, before=[run_checker(transport, f"{call.collective} number {tag}"), *task.before])
    return Plan(run, task)


def transport_of(comm: Any) -> Transport:
    if not hasattr(comm, "Is_inter"):
        if hasattr(comm, "send_init"):
            return cast("Transport", comm)
        raise TypeError(f"comm must be an mpi4py communicator or a Transport, not {type(comm).__name__}")
    if not comm or comm.Is_inter():
        raise TypeError("comm must be an intracommunicator that has not been freed")
    return mpi_transport().of(comm)


@cache
def mpi_transport() -> "type[MpiTransport]":
    from dear_mpi.collectives.transports.mpi import MpiTransport  # starts MPI

    return MpiTransport
