"""Run collectives in the memory of a host's ranks, phase by phase (``lowering/phases.py``).

Between two phases is a barrier of counters (``transports/counters.py``) or, if ranks cannot spin, of messages: in round
k a rank signals the rank 2^k after it; after ceil(lg P) rounds all ranks have arrived. Loads after a barrier must see
stores before it. MPI does not promise this for messages. It holds on processors that keep stores in order, with
libraries that use queues in memory or sockets; tested only on x86.
"""

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.lowering.phases import Move, Operand, Share, phases
from dear_mpi.collectives.plans.call import Task
from dear_mpi.collectives.plans.notes import Part
from dear_mpi.collectives.plans.plan import Act, Action, AroundBarrier, InstructionRun, waiting
from dear_mpi.collectives.plans.runners.messages import check, check_call
from dear_mpi.collectives.plans.tuning import PRIVATE_BYTES
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.program.program import label
from dear_mpi.collectives.transports.counters import CounterBarrier
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, library_of
from dear_mpi.kernels.calls import combiner, copier
from dear_mpi.kernels.dtypes import compute_dtype, is_floating

__all__ = ["check", "check_call", "prepare"]  # whether memory is reachable is found out later, together

MESSAGES_BYTES = 4 * 1024  # below: messages beat copies and a barrier of messages
BLOCK_BYTES = 256 * 1024  # fits a second-level cache; see docs/benchmarks
MAILBOXES_BYTES = 2 * 1024 * 1024  # below: mailboxes beat messages between ranks of a host, warm or cold
MAILBOX_BYTES = 1024 * 1024  # for one set of blocks; smaller with many ranks
IN_SHORT = -1  # position of a run by its shortened calls


class ByMessages:
    """A barrier of persistent messages."""

    def __init__(self, transport: Transport, tag: int) -> None:
        rank, size, token = transport.rank, transport.size, np.zeros(0, np.uint8)
        rounds = [1 << number for number in range((size - 1).bit_length())]
        self.peers = [((rank + far) % size, (rank - far) % size) for far in rounds]
        self.pairs = [
            (transport.send_init(token, to, tag), transport.recv_init(token, source, tag)) for to, source in self.peers
        ]
        self.requests = [request for pair in self.pairs for request in pair]

    def shortened(self, acts: Sequence[Act]) -> list[Action]:
        return []

    def acts(self, phase: int) -> Iterator[Act]:
        for place, (peers, pair) in enumerate(zip(self.peers, self.pairs, strict=True)):
            ends = [Part("ending", phase, place, *each) for each in zip(peers, (False, True), strict=True)]
            for end, request in zip(ends, pair, strict=True):
                yield Act(end._replace(kind="starting"), request.Start)
            yield from map(waiting, ends, pair)


class ByCounters:
    """A barrier of counters: one call in whole runs, an act for each peer where runs are noted or polled."""

    requests = ()

    def __init__(self, barrier: CounterBarrier) -> None:
        self.barrier = barrier

    def shortened(self, acts: Sequence[Act]) -> list[Action]:
        """Return the calls of a run with one call for each barrier."""
        left = [act for act in acts if act.part.kind != "ending"]
        return [self.barrier.meet if act.part.kind == "starting" else act.call for act in left]

    def acts(self, phase: int) -> Iterator[Act]:
        yield Act(Part("starting", phase), self.barrier.enter)
        for peer, arrival in self.barrier.arrivals.items():
            yield Act(Part("ending", phase, peer=peer, incoming=True), arrival.Wait, arrival.Test)


@dataclass(frozen=True)
class Reach:
    """The memory of all ranks; ranks are counted from the root on."""

    share: Share
    arrays: Sequence[Array]
    mailboxes: bool
    counters: CounterBarrier | None


def reach_for(task: Task, counters: CounterBarrier | None) -> Reach | None:
    """Collective: return the memory of all ranks if the call can use it, else None.

    ArgumentError on all ranks: the call needs it, but it is out of reach.
    """
    call, buffer, transport, slab = task.call, task.buffer, task.transport, task.slab
    needed, dtype, on_host = runner_of(call.algorithm) == "shared", buffer.dtype, library_of(buffer) == "numpy"
    if not needed and counters is None and buffer.nbytes <= MESSAGES_BYTES:
        return None
    # Types summed in a wider type are rounded once, hence combined at once.
    at_once = is_floating(dtype) and compute_dtype(dtype) != dtype
    block = max(min(BLOCK_BYTES, MAILBOX_BYTES // transport.size) // dtype.itemsize, 1)
    share = Share(call.partition(transport.size), (transport.rank - call.root) % transport.size, block, at_once)
    arrays = transport.reach(buffer) if on_host and buffer.nbytes > PRIVATE_BYTES else None
    mailboxes = arrays is None and on_host and (needed or buffer.nbytes <= MAILBOXES_BYTES)
    if mailboxes:
        count = 2 * max(share.mailbox_room, 1)  # an empty array is in no block
        if slab is not None:
            arrays = transport.reach(slab.empty(count, dtype))
        if arrays is None:
            arrays = transport.reach(transport.allocate(count * dtype.itemsize).view(dtype))
    if needed and arrays is None:
        which = "ranks of one host that can open each other's memory; no GPU, no emulated link"
        raise ArgumentError(f"algorithm {call.algorithm!r} needs {which}")
    return None if arrays is None else Reach(share, [*arrays[call.root :], *arrays[: call.root]], mailboxes, counters)


class SharedRun(InstructionRun):
    def __init__(self, task: Task, like: "SharedRun | None" = None) -> None:
        self.buffer, self.op = task.buffer, task.op
        self.reached, self.share = task.reached, task.reached.share
        self.names = [(rank + task.call.root) % task.transport.size for rank in self.share.ranks]
        self.rank, counters = task.transport.rank, task.reached.counters
        moves = phases(task.call.collective, self.share, mailboxes=task.reached.mailboxes)
        self.barriers = len(moves) - 1
        self.barrier = ByCounters(counters) if counters else ByMessages(task.transport, task.tag)
        runs = [list(self.acts(moves, number)) for number in range(1 + task.reached.mailboxes)]
        self.runs = [[act.call for act in acts] for acts in runs]
        self.short = [self.barrier.shortened(acts) for acts in runs]
        self.numbers: Iterator[int] = itertools.cycle(range(len(runs))) if like is None else like.numbers
        super().__init__(self.rank, runs[0], self.barrier.requests)

    def acts(self, moves: Sequence[Sequence[Move]], run: int) -> Iterator[Act]:
        for number, phase in enumerate(moves):
            for move in phase:
                yield Act(self.part(move, number), self.bind(move, run))
            if number < len(moves) - 1:
                yield from self.barrier.acts(number)

    def part(self, move: Move, phase: int) -> Part:
        kind = "copying" if len(move.sources) == 1 else "combining"
        (_, source), (_, target) = move.sources[0], move.target
        other = [self.names[rank] for rank in (source, target) if rank != self.share.rank and kind == "copying"]
        chunk = bisect_right(self.share.partition.borders, move.elements.start) - 1
        nbytes = len(move.elements) * self.buffer.itemsize
        return Part(kind, phase, 0, other[0] if other else None, chunk=label(range(chunk, chunk + 1)), nbytes=nbytes)

    def bind(self, move: Move, run: int) -> Action:
        target, sources = self.view(move.target, move, run), [self.view(of, move, run) for of in move.sources]
        if len(sources) == 1:
            return copier(target, sources[0])
        own = move.sources.index(move.target)
        return combiner(target, sources[:own], sources[own + 1 :], self.op)

    def view(self, operand: Operand, move: Move, run: int) -> Array:
        kind, rank = operand
        elements = self.share.in_mailbox(move.elements, run) if kind == "mailbox" else move.elements
        array = self.buffer if operand == ("buffer", self.share.rank) else self.reached.arrays[rank]
        return array[elements.start : elements.stop]

    def on(self, task: Task) -> "SharedRun | None":
        if not self.reached.mailboxes:
            return None
        return SharedRun(task, like=self)

    def around_barrier(self) -> Iterator[AroundBarrier] | None:
        if self.barriers != 1 or not self.reached.mailboxes or not isinstance(self.barrier, ByCounters):
            return None
        places = [calls.index(self.barrier.barrier.meet) for calls in self.short]
        found = [(calls[:place], calls[place + 1 :]) for calls, place in zip(self.short, places, strict=True)]
        return map(found.__getitem__, self.numbers)

    def start(self) -> None:
        self.calls = self.runs[next(self.numbers)]
        super().start()

    def whole(self, note: Callable[[float], object] | None = None) -> None:
        """Alternate between two mailbox sets."""
        number = next(self.numbers)
        short = self.short[number]
        if note is not None or not short:
            self.calls = self.runs[number]
            super().whole(note)
            return
        self.position = IN_SHORT
        try:
            for call in short:
                call()
        except Exception as error:
            raise self.failure(error) from error
        self.position = 0

    def progress(self) -> int:
        if self.position != IN_SHORT:
            return super().progress()
        assert isinstance(self.barrier, ByCounters)
        phase, late = (self.barrier.barrier.count - 1) % self.barriers, self.barrier.barrier.late
        waits = [Part("ending", phase, peer=peer, incoming=True) for peer in late]
        return self.parts.index(waits[0]) if waits else 0

    def free(self) -> None:
        super().free()
        self.runs.clear()
        self.short.clear()
        del self.reached  # releases the views of other ranks' memory


prepare = SharedRun
