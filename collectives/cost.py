"""Predict what a program costs: replay it on a network of latency alpha, beta s/byte and gamma s/byte reduced.

The model: a message of b bytes occupies the sender's outgoing link for b beta, arrives alpha later, occupies the
receiver's incoming link for the same time, and takes b gamma more where it is combined. A rank enters a step when
all transfers of its previous one are done. For the ring this gives the closed forms in ``ring.py``; for the
naive algorithm it shows the crowd at rank 0. Segments, which let steps overlap, are not modelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from dear_mpi.collectives.errors import ProgramError
from dear_mpi.collectives.partition import chunk_offsets
from dear_mpi.collectives.program import Program

__all__ = ["Cost", "Network", "cost"]


@dataclass(frozen=True)
class Network:
    """Latency in s per message, inverse bandwidth in s per byte, and the time to combine a byte, in s."""

    alpha: float = 0.0
    beta: float = 0.0
    gamma: float = 0.0


@dataclass(frozen=True)
class Cost:
    """The time until the last rank is done, and what each rank has sent."""

    time_s: float
    messages: tuple[int, ...]
    nbytes: tuple[int, ...]


@dataclass
class Clock:
    """When one rank entered its current step, and when its links are free again."""

    entered_s: float = 0.0
    outgoing_s: float = 0.0
    incoming_s: float = 0.0
    messages: int = 0
    nbytes: int = 0
    arrivals: dict[int, deque[tuple[float, int]]] = field(default_factory=dict)


def cost(programs: Sequence[Program], count: int, itemsize: int, network: Network) -> Cost:
    """Price the programs of all ranks for a buffer of ``count`` elements.

    Raises:
        ProgramError: the programs deadlock (``verify`` says where).

    >>> from dear_mpi.collectives.algorithms import programs
    >>> cost(programs("ring", "all_reduce", 4), 1000, 4, Network(beta=1e-9)).nbytes
    (6000, 6000, 6000, 6000)
    """
    offsets = [offset * itemsize for offset in chunk_offsets(count, len(programs))]
    clocks = [Clock() for _ in programs]
    number = [0] * len(programs)
    for program in programs:
        send_all(program, 0, clocks, offsets, network)
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            while number[rank] < len(program.steps) and receive_all(program, number[rank], clocks, offsets, network):
                number[rank] += 1
                send_all(program, number[rank], clocks, offsets, network)
                moved = True
    if any(done < len(program.steps) for done, program in zip(number, programs, strict=True)):
        raise ProgramError("the programs wait for each other for ever: verify() names the rank and the step")
    time_s = max(clock.entered_s for clock in clocks)
    return Cost(time_s, tuple(clock.messages for clock in clocks), tuple(clock.nbytes for clock in clocks))


def send_all(program: Program, number: int, clocks: list[Clock], offsets: list[int], network: Network) -> None:
    """Put the messages of a step on the wire, one after the other."""
    clock = clocks[program.rank]
    for send in program.steps[number].sends if number < len(program.steps) else ():
        nbytes = offsets[send.chunks.stop] - offsets[send.chunks.start]
        clock.outgoing_s = max(clock.outgoing_s, clock.entered_s) + nbytes * network.beta
        clock.messages += 1
        clock.nbytes += nbytes
        queue = clocks[send.peer].arrivals.setdefault(program.rank, deque())
        queue.append((clock.outgoing_s + network.alpha, nbytes))


def receive_all(program: Program, number: int, clocks: list[Clock], offsets: list[int], network: Network) -> bool:
    """Finish a step, if all it receives has been sent: the rank's clock moves to the end of the step."""
    clock, step = clocks[program.rank], program.steps[number]
    wanted = [receive.peer for receive in step.receives]
    if any(len(clock.arrivals.get(peer, ())) < wanted.count(peer) for peer in wanted):
        return False
    ends = [clock.entered_s] + [clock.outgoing_s for _ in step.sends]
    messages = sorted((*clock.arrivals[receive.peer].popleft(), receive.combine) for receive in step.receives)
    for arrival_s, nbytes, combine in messages:
        clock.incoming_s = max(arrival_s, clock.incoming_s + nbytes * network.beta)
        ends.append(max(clock.incoming_s, clock.entered_s) + nbytes * network.gamma * combine)
    clock.entered_s = max(ends)
    return True
