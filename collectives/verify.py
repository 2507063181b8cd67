"""Prove an algorithm without running it: replay the programs of all ranks on symbols.

Each chunk at each rank is represented by the set of ranks whose contributions it holds. Sends are taken to be
synchronous (complete only when received), the least that MPI promises, so an order that works only thanks to
buffering is reported as a deadlock. What is checked: every send has its receive, in the same step and with the same
chunks; nothing undefined is sent; no contribution is combined twice; no two receives of a step touch one chunk unless
both combine; every rank finishes; the collective's promise holds at the end. Errors name rank, step and chunk.

The idea is that of msccl-tools' ``Algorithm.check_implements``. Time O(total number of chunks sent).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dear_mpi.collectives.errors import ProgramError
from dear_mpi.collectives.program import Program, Receive, Send, Step, label

__all__ = ["names", "replay", "verify"]

Row = list[int]
"""What one rank holds: bit i of ``row[chunk]`` is set where rank i's contribution is in; 0 is undefined data."""


def verify(programs: Sequence[Program]) -> None:
    """Check the programs of ranks 0 to size-1, which must be of one collective.

    Raises:
        ProgramError: naming the rank, the step, and the chunk or peer that break the collective.
    """
    for rank, program in enumerate(programs):
        check_shape(program, rank, programs[0], len(programs))
    for rank, rows in enumerate(replay(programs)):
        for chunk, expected in enumerate(promised(programs[0].collective, rank, len(programs))):
            if expected is not None and rows[-1][chunk] != expected:
                raise ProgramError(
                    f"rank {rank} ends with chunk {chunk} of ranks {names(rows[-1][chunk])}, not {names(expected)}"
                )


def initial(collective: str, rank: int, size: int) -> Row:
    """What a rank holds at the start: its part of every chunk, or for all_gather its own chunk alone."""
    return [1 << rank if collective != "all_gather" or chunk == rank else 0 for chunk in range(size)]


def promised(collective: str, rank: int, size: int) -> list[int | None]:
    """What a rank must hold at the end; None where anything may be."""
    everyone = (1 << size) - 1
    if collective == "all_gather":
        return [1 << chunk for chunk in range(size)]
    return [everyone if collective == "all_reduce" or chunk == rank else None for chunk in range(size)]


@dataclass
class Runner:
    """One rank on its way through its program. ``rows[n]`` is what it held when it entered step n."""

    program: Program
    row: Row
    rows: list[Row] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)
    receives: list[Receive] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.enter()

    @property
    def number(self) -> int:
        return len(self.rows) - 1

    @property
    def done(self) -> bool:
        return self.number == len(self.program.steps)

    def enter(self) -> None:
        """Post all transfers of the next step, if there is one."""
        self.rows.append(list(self.row))
        step = Step() if self.done else self.program.steps[self.number]
        self.sends, self.receives = list(step.sends), list(step.receives)


def replay(programs: Sequence[Program]) -> list[list[Row]]:
    """Run all programs side by side: for each rank what it held before each step, and at the end.

    Raises:
        ProgramError: as ``verify``, but for what is promised at the end.
    """
    size = len(programs)
    runners = [Runner(program, initial(program.collective, program.rank, size)) for program in programs]
    active = runners
    while active:
        for runner in active:
            deliver(runners, runner)
        active = [runner for runner in runners if not runner.done and idle(runner)]
        for runner in active:
            runner.enter()
    for runner in runners:
        if not runner.done:
            raise ProgramError(stuck(runner))
    return [runner.rows for runner in runners]


def idle(runner: Runner) -> bool:
    """Whether nothing of the current step is left to do."""
    return not runner.sends and not runner.receives


def deliver(runners: list[Runner], runner: Runner) -> None:
    """Complete every transfer of a rank whose other side is posted too."""
    rank = runner.program.rank
    for send in list(runner.sends):
        transfer(runner, runners[send.peer], send)
    for receive in list(runner.receives):
        sender = runners[receive.peer]
        waiting = next((send for send in sender.sends if send.peer == rank), None)
        if waiting is not None:
            transfer(sender, runner, waiting)


def transfer(sender: Runner, receiver: Runner, send: Send) -> None:
    """Move one message, if its receive is posted; the first of this pair in program order is its match."""
    source, rank = sender.program.rank, receiver.program.rank
    receive = next((receive for receive in receiver.receives if receive.peer == source), None)
    first = next(other for other in sender.sends if other.peer == send.peer)
    if receive is None or first is not send:
        return
    if sender.number != receiver.number:
        raise ProgramError(
            f"rank {rank}, step {receiver.number}: receives from rank {source} what that sends in its step "
            f"{sender.number}; both ends of a message must be in the same step"
        )
    if receive.chunks != send.chunks:
        raise ProgramError(
            f"rank {rank}, step {receiver.number}: expects {label(receive.chunks)} from rank {source}, "
            f"which sends {label(send.chunks)}"
        )
    sender.sends.remove(send)
    receiver.receives.remove(receive)
    for chunk in send.chunks:
        held, arriving = receiver.row[chunk], sender.rows[-1][chunk]
        problem = fault(held, arriving, receive)
        if problem is not None:
            raise ProgramError(f"rank {rank}, step {receiver.number}, chunk {chunk}: {problem}")
        receiver.row[chunk] = held | arriving if receive.combine else arriving


def fault(held: int, arriving: int, receive: Receive) -> str | None:
    """What is wrong with this receive, if anything."""
    if not arriving:
        return f"rank {receive.peer} sends it before it holds any data of it"
    if receive.combine and not held:
        return "combined with data that is undefined"
    if receive.combine and held & arriving:
        return f"the contribution of ranks {names(held & arriving)} is combined twice"
    return None


def check_shape(program: Program, rank: int, first: Program, size: int) -> None:
    """Ranks, steps, peers and chunks are in range, and no two receives of a step race for a chunk."""
    if (program.rank, program.size, program.collective) != (rank, size, first.collective):
        raise ProgramError(f"program {rank} is of rank {program.rank} of {program.size}, {program.collective}")
    if len(program.steps) != len(first.steps):
        raise ProgramError(f"rank {rank} has {len(program.steps)} steps, rank 0 has {len(first.steps)}: add empty ones")
    for number, step in enumerate(program.steps):
        place = f"rank {rank}, step {number}"
        for transfer in step.sends + step.receives:
            if not 0 <= transfer.peer < size or transfer.peer == rank:
                raise ProgramError(f"{place}: rank {transfer.peer} is no peer among ranks 0..{size - 1}")
            if not within(transfer.chunks, size):
                raise ProgramError(f"{place}: {transfer.chunks} is no range of chunks among 0..{size - 1}")
        check_races(step, place)


def within(chunks: range, size: int) -> bool:
    """Whether this is a non-empty range of consecutive chunks of the buffer."""
    return bool(chunks) and chunks.step == 1 and chunks[0] >= 0 and chunks[-1] < size


def check_races(step: Step, place: str) -> None:
    """A chunk that is received twice in a step must be combined both times."""
    seen: dict[int, Receive] = {}
    for receive in step.receives:
        for chunk in receive.chunks:
            other = seen.setdefault(chunk, receive)
            if other is not receive and not (other.combine and receive.combine):
                raise ProgramError(f"{place}, chunk {chunk}: receives from ranks {other.peer} and {receive.peer} race")


def stuck(runner: Runner) -> str:
    """Why a rank does not get on."""
    waiting = [f"sending {send}" for send in runner.sends] + [f"receiving {receive}" for receive in runner.receives]
    return f"rank {runner.program.rank}, step {runner.number}: waits for ever, {'; '.join(waiting)}"


def names(mask: int) -> str:
    """The ranks whose bits are set.

    >>> names(0b1101)
    '0, 2, 3'
    """
    return ", ".join(str(rank) for rank in range(mask.bit_length()) if mask >> rank & 1) or "none"
