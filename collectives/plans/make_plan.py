"""From what a user asks for to a plan: check the call, agree on it, say where it works, let a runner prepare it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, cast

from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.lowering.messages import WHOLE, Portion
from dear_mpi.collectives.plans.call import Call, flat, plain
from dear_mpi.collectives.plans.execution import Task
from dear_mpi.collectives.plans.plan import Plan, Workspace
from dear_mpi.collectives.plans.reach import reach_for
from dear_mpi.collectives.plans.runners import RUNNERS, check_call
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.transports.agree import agree, run_checker
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.calls import copier
from dear_mpi.kernels.dtypes import DTYPES
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
    op: object = "sum",
    segment_bytes: int | None = None,
    weights: Sequence[float] | None = None,
    counts: Sequence[int] | None = None,
    root: int = 0,
    slab: Slab | None = None,
    alike: bool = False,
    portion: Portion = WHOLE,
    debug: bool = False,
    **unknown: NoReturn,
) -> Plan:
    """Prepare a collective for these arrays; the plan is run by calling it, or by start / advance / wait.

    Collective: all ranks call it, in the same order, with the same arguments but for the contents of the arrays.

    Args:
        collective: ``reduce_scatter``, ``all_gather``, ``all_reduce``, ``broadcast``, ``reduce`` or ``all_to_all``.
        x, out: as in the table at the head of ``dear_mpi.collectives``: contiguous plain arrays of NumPy or CuPy.
        comm: an mpi4py communicator, or a ``Transport``.
        algorithm: a name in ``ALGORITHMS``; ``path/to/mine.py:my_ring`` for a function of yours; ``auto`` or
            ``auto:FILE`` for what a tuning table says is best; ``native`` for the MPI library's own collective.
        op: ``sum``, ``prod``, ``min``, ``max``, ``band``, ``bor``, ``bxor``, or MPI's own; or ``average``.
            ``docs/algorithms.md`` says more.
        segment_bytes: the largest message. If not given, the tuning table decides; without one it is 256 KiB on one
            host and 60 KiB between hosts.
        weights: a number for each rank: it owns a part in proportion, in whole elements. Equal ones if not given.
        counts: the elements that each rank owns, instead of weights; their sum is the full buffer's count.
        root: the rank that has the data of a broadcast, or gets the result of a reduce.
        slab: what the plan's own memory is taken from. If not given, the plan makes a slab of its own.
        alike: whether ``auto`` picks one algorithm for an all_reduce, a reduce_scatter and an all_gather of the same
            buffer, so that a reduce_scatter and an all_gather together give the bits of an all_reduce.
        portion: the cells of each chunk that the plan is about (``lowering/messages.py``): plans whose portions make up
            the whole, run in any order, have the bits of one plan. Only algorithms that send messages can.
        debug: whether the ranks compare, before every run, which plan they run and how often they have run it.

    Arrays of CuPy are worked on where they are, on the current stream of the thread that runs the plan: the result
    is in order on that stream. They are handed to MPI if it takes them (``Transport.takes``), else staged.

    Raises:
        ArgumentError: an argument is not allowed, on this rank or on another one; all ranks raise the same.
        MismatchError: the ranks do not agree.
    """
    transport = transport_of(comm)
    asked = Call(
        collective, x, out, algorithm, plain(op), plain(segment_bytes), weights, plain(root), alike, counts, portion
    )
    options = {"debug": debug, "alike": alike, "a slab": slab is not None}
    return transport.one_thread.run(prepare, asked, transport, slab, options, [*unknown])


def prepare(
    asked: Call, transport: Transport, slab: Slab | None, options: dict[str, bool], unknown: Sequence[str]
) -> Plan:
    """The plan of a call; ``unknown`` are arguments that do not exist."""
    tag = transport.next_tag()

    def facts() -> dict[str, object]:
        for name in unknown:
            lookup("argument", name, make_plan.__kwdefaults__ or {})
        return {**check_call(asked, transport), **options, "number of the plan": tag}

    agree(transport, asked.collective, facts)
    work = workspace_of(asked, transport.rank, transport.size)
    reached = reach_for(asked, work.buffer, transport, slab)
    call = asked.chosen(transport, sharing=reached is not None)
    if call.portion != WHOLE and runner_of(call.algorithm) != "messages":  # alike on all ranks
        raise ArgumentError(f"portion must be left out for {call.algorithm!r}, which sends no messages")
    run = RUNNERS[runner_of(call.algorithm)].prepare(Task(call, work.buffer, transport, tag, slab, reached))
    if options["debug"]:
        work = replace(work, before=[run_checker(transport, f"{call.collective} number {tag}"), *work.before])
    return Plan(run, work, call, transport)


def transport_of(comm: Any) -> Transport:
    """``comm`` itself if it is a transport, else the transport of an mpi4py communicator; or a TypeError."""
    if hasattr(comm, "send_init"):
        return cast("Transport", comm)
    if not hasattr(comm, "Is_inter"):
        raise TypeError(f"comm must be an mpi4py communicator or a Transport, not {type(comm).__name__}")
    if not comm or comm.Is_inter():
        raise TypeError("comm must be an intracommunicator that has not been freed")
    return mpi_transport().of(comm)


@cache
def mpi_transport() -> "type[MpiTransport]":
    from dear_mpi.collectives.transports.mpi import MpiTransport  # which starts MPI

    return MpiTransport


def workspace_of(call: Call, rank: int, size: int) -> Workspace:
    """Where a call works: in ``x``, in ``out``, or (reduce_scatter with ``out``) in a buffer of its own."""
    own, scatters = call.partition(size).shard(rank), call.collective == "reduce_scatter"
    first, last = scales(call, size)
    x = flat(call.x)
    if call.out is None:
        scaled = x[own] if scatters else x
        return Workspace(x, scaled if scatters else call.x, scaling(x, first), scaling(scaled, last))
    out = flat(call.out)
    if scatters:
        buffer = array_module(x).empty_like(x)
        return Workspace(buffer, call.out, [copier(buffer, x, first)], [copier(out, buffer[own], last)])
    arriving = out[own] if call.collective == "all_gather" else out
    return Workspace(out, call.out, [copier(arriving, x, first)], scaling(out, last))


def scales(call: Call, size: int) -> tuple[float, float]:
    """The factors of the contributions and of the result; a power of two is exact, so the bits are the same."""
    if call.op != "average":
        return 1.0, 1.0
    first = 0.5 ** (size - 1).bit_length() if call.x.dtype == DTYPES["fp16"] else 1.0
    return first, 1 / (size * first)


def scaling(array: Array, factor: float) -> list[Callable[[], object]]:
    return [copier(array, array, factor)] if factor != 1 else []
