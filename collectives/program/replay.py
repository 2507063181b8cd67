"""Run an algorithm on symbols: what each rank holds of each chunk, step by step, without any data.

What a rank holds of a chunk is the set of ranks whose contributions are in it. Sends are taken to be synchronous
(complete only when received), the least that MPI promises, so an order that works only thanks to buffering is found to
be a deadlock. Time: O(total number of chunks sent).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from dear_mpi.collectives.program.contract import COLLECTIVES
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.program import Program, Receive, Send, label

__all__ = ["Row", "names", "replay", "run"]

Row = list[int]
"""What one rank holds: bit i of ``row[chunk]`` is set where rank i's contribution is in; 0 is undefined data."""


class Runner:
    """One rank on its way through its program. ``rows[n]`` is what it held when it entered step n, if kept."""

    def __init__(self, program: Program, *, keep: bool) -> None:
        begins = COLLECTIVES[program.collective].begins
        self.program, self.rank, self.keep = program, program.rank, keep
        owners = map(program.owner, range(program.chunks))
        self.row: Row = [1 << self.rank if begins(self.rank, owner) else 0 for owner in owners]
        self.rows: list[Row] = []
        self.number = -1
        self.sends: dict[int, deque[tuple[Send, Row]]] = {}  # by peer; with what the chunks held
        self.receives: dict[int, deque[Receive]] = {}
        self.enter()

    @property
    def done(self) -> bool:
        return self.number == len(self.program.steps)

    def enter(self) -> None:
        """Post all transfers of the next step, if there is one."""
        self.number += 1
        if self.keep:
            self.rows.append(list(self.row))
        if self.done:
            return
        for send in self.program.steps[self.number].sends:
            data = self.row[send.chunks.start : send.chunks.stop]
            self.sends.setdefault(send.peer, deque()).append((send, data))
        for receive in self.program.steps[self.number].receives:
            self.receives.setdefault(receive.peer, deque()).append(receive)


def replay(programs: Sequence[Program]) -> list[list[Row]]:
    """Run all programs side by side: for each rank what it held before each step, and at the end.

    Raises:
        ProgramError: something is sent that is not expected, or undefined, or combined twice; or ranks wait for ever.
    """
    return [runner.rows for runner in run(programs, keep=True)]


def run(programs: Sequence[Program], *, keep: bool = False) -> list[Runner]:
    """``replay`` for those who want the end alone, which needs less memory."""
    runners = [Runner(program, keep=keep) for program in programs]
    active = runners
    while active:
        for runner in active:
            deliver(runners, runner)
        active = [runner for runner in runners if not (runner.done or runner.sends or runner.receives)]
        for runner in active:
            runner.enter()
    for runner in runners:
        if not runner.done:
            raise ProgramError(stuck(runner))
    return runners


def deliver(runners: list[Runner], runner: Runner) -> None:
    """Complete every transfer of a rank whose other side is posted too."""
    for peer in tuple(runner.sends):
        match(runner, runners[peer])
    for peer in tuple(runner.receives):
        match(runners[peer], runner)


def match(sender: Runner, receiver: Runner) -> None:
    """Move all messages from one rank to another that are posted on both sides, in program order."""
    sends, receives = sender.sends.get(receiver.rank), receiver.receives.get(sender.rank)
    while sends and receives:
        transfer(sender, receiver, *sends.popleft(), receives.popleft())
    if not sends:
        sender.sends.pop(receiver.rank, None)
    if not receives:
        receiver.receives.pop(sender.rank, None)


def transfer(sender: Runner, receiver: Runner, send: Send, data: Row, receive: Receive) -> None:
    """Move one message."""
    where = f"rank {receiver.rank}, step {receiver.number}"
    if sender.number != receiver.number:
        raise ProgramError(
            f"{where}: receives from rank {sender.rank} what that sends in its step "
            f"{sender.number}; both ends of a message must be in the same step"
        )
    if receive.chunks != send.chunks:
        raise ProgramError(
            f"{where}: expects {label(receive.chunks)} from rank {sender.rank}, which sends {label(send.chunks)}"
        )
    row = receiver.row
    for chunk, arriving in zip(send.chunks, data, strict=True):
        problem = fault(row[chunk], arriving, receive)
        if problem is not None:
            raise ProgramError(f"{where}, chunk {chunk}: {problem}")
        row[chunk] = row[chunk] | arriving if receive.combine else arriving


def fault(held: int, arriving: int, receive: Receive) -> str | None:
    """What is wrong with this receive, if anything."""
    if not arriving:
        return f"rank {receive.peer} sends it before it holds any data of it"
    if receive.combine and not held:
        return "combined with data that is undefined"
    if receive.combine and held & arriving:
        return f"the contribution of ranks {names(held & arriving)} is combined twice"
    return None


def stuck(runner: Runner) -> str:
    """Why a rank does not get on."""
    waiting = [f"sending {send}" for queue in runner.sends.values() for send, _ in queue]
    waiting += [f"receiving {receive}" for queue in runner.receives.values() for receive in queue]
    return f"rank {runner.rank}, step {runner.number}: waits for ever, {'; '.join(waiting)}"


def names(mask: int) -> str:
    """The ranks whose bits are set.

    >>> names(0b1101)
    '0, 2, 3'
    """
    return ", ".join(str(rank) for rank in range(mask.bit_length()) if mask >> rank & 1) or "none"
