"""Run an algorithm on symbols: what each rank holds of each chunk, step by step, without any data.

What a rank holds of a chunk is the set of ranks whose contributions are in it. Sends are taken to be synchronous
(complete only when received), the least that MPI promises, so an order that works only thanks to buffering is found to
be a deadlock. Time: O(total number of chunks sent).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from dear_mpi.collectives.program.contract import COLLECTIVES
from dear_mpi.collectives.program.errors import ProgramError, name_ranks
from dear_mpi.collectives.program.lanes import Lane
from dear_mpi.collectives.program.program import Program, Receive, Send, label

Row = list[int]
"""What one rank holds: bit i of ``row[chunk]`` is set where rank i's contribution is in; 0 is undefined data."""


class RankReplay:
    """One rank on its way through its program. ``rows[n]`` is what it held when it entered step n, if kept."""

    def __init__(self, program: Program, *, keep: bool) -> None:
        begins = COLLECTIVES[program.collective].begins
        self.program, self.rank, self.keep = program, program.rank, keep
        owners = map(program.owner, range(program.chunks))
        self.row: Row = [1 << self.rank if begins(self.rank, owner) else 0 for owner in owners]
        self.rows: list[Row] = []
        self.number = -1
        self.left = 0  # transfers of the step that have not met their other side

    def __str__(self) -> str:
        return f"rank {self.rank}, step {self.number}"

    @property
    def done(self) -> bool:
        return self.number == len(self.program.steps)

    def enter(self, lanes: Lanes) -> list[Lane[Posted, Receive]]:
        """Post all transfers of the next step, if there is one; return the lanes that they are in."""
        self.number += 1
        if self.keep:
            self.rows.append(list(self.row))
        if self.done:
            return []
        step = self.program.steps[self.number]
        self.left = len(step.sends) + len(step.receives)
        touched = [lanes[self.rank, send.peer] for send in step.sends]
        for lane, send in zip(touched, step.sends, strict=True):
            lane.sends.append((send, self.row[send.chunks.start : send.chunks.stop]))
        for receive in step.receives:
            lane = lanes[receive.peer, self.rank]
            lane.receives.append(receive)
            touched.append(lane)
        return touched


Posted = tuple[Send, Row]  # with what the chunks held
Lanes = dict[tuple[int, int], Lane[Posted, Receive]]  # by sender and receiver


def replay(programs: Sequence[Program]) -> list[list[Row]]:
    """Run all programs side by side: for each rank what it held before each step, and at the end.

    Raises:
        ProgramError: something is sent that is not expected, or undefined, or combined twice; or ranks are blocked.
    """
    return [replayed.rows for replayed in run(programs, keep=True)]


def run(programs: Sequence[Program], *, keep: bool = False) -> list[RankReplay]:
    """``replay`` that keeps only the end, unless ``keep`` is set: this takes less memory."""
    lanes: Lanes = defaultdict(Lane)
    ranks = [RankReplay(program, keep=keep) for program in programs]
    ready = deque(ranks)  # the ranks whose step is over
    while ready:
        entering = ready.popleft()
        for lane in entering.enter(lanes):
            for (send, data), receive in lane.meetings():
                sender, receiver = ranks[receive.peer], ranks[send.peer]
                transfer(sender, receiver, send, data, receive)
                sender.left, receiver.left = sender.left - 1, receiver.left - 1
                ready.extend(rank for rank in (sender, receiver) if rank.left == 0 and rank is not entering)
        if entering.left == 0 and not entering.done:
            ready.append(entering)
    for replayed in ranks:
        if not replayed.done:
            raise ProgramError(blocked(replayed, lanes), rank=replayed.rank)
    return ranks


def transfer(sender: RankReplay, receiver: RankReplay, send: Send, data: Row, receive: Receive) -> None:
    """Move one message."""
    if sender.number != receiver.number:
        raise ProgramError(
            f"{receiver}: receives from rank {sender.rank} what that rank sends in its step {sender.number}; "
            "both ends of a message must be in the same step",
            rank=receiver.rank,
        )
    if receive.chunks != send.chunks:
        raise ProgramError(
            f"{receiver}: expects {label(receive.chunks)} from rank {sender.rank}, which sends {label(send.chunks)}",
            rank=receiver.rank,
        )
    row = receiver.row
    for chunk, arriving in zip(send.chunks, data, strict=True):
        problem = fault(row[chunk], arriving, receive)
        if problem is not None:
            raise ProgramError(f"{receiver}, chunk {chunk}: {problem}", rank=receiver.rank, chunk=chunk)
        row[chunk] = row[chunk] | arriving if receive.combine else arriving


def fault(held: int, arriving: int, receive: Receive) -> str | None:
    """What is wrong with this receive, if anything."""
    if not arriving:
        return f"rank {receive.peer} sends it without holding any data of it"
    if receive.combine and not held:
        return "combines what arrives with undefined data"
    if receive.combine and held & arriving:
        return f"combines the contribution of {ranks_in(held & arriving)} twice"
    return None


def blocked(replayed: RankReplay, lanes: Lanes) -> str:
    """Why a rank is blocked."""
    mine = replayed.rank
    waiting = [f"sending {send}" for (rank, _), lane in lanes.items() if rank == mine for send, _ in lane.sends]
    waiting += [f"receiving {receive}" for (_, to), lane in lanes.items() if to == mine for receive in lane.receives]
    return f"{replayed}: blocked for ever, {'; '.join(waiting)}"


def members(mask: int) -> list[int]:
    """The ranks whose bits are set.

    >>> members(0b1101)
    [0, 2, 3]
    """
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]


def ranks_in(mask: int) -> str:
    """The same, for a reader."""
    return name_ranks(members(mask))
