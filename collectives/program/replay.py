"""Run an algorithm on symbols: what each rank holds of each chunk, step by step, without any data.

What a rank holds of a chunk is the set of ranks whose contributions are in it, and for whom they are, where data is
addressed. The replay takes one step of all ranks after the other. In a run some ranks are further than others; but as
both ends of a message are in the same step, they do the same. Nor can they block each other, even if each send blocks
until it is received: what the ranks in the earliest step wait for is among themselves, and under way. Time: O(total
number of chunks sent).
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from dear_mpi.collectives.program.contract import COLLECTIVES
from dear_mpi.collectives.program.errors import ProgramError, name_ranks
from dear_mpi.collectives.program.program import Program, Receive, Send, label

Row = list[int]
"""What one rank holds: bit i of ``row[chunk]`` is set where rank i's contribution is in; 0 is undefined data.

On ``size`` ranks, bit size + i is set where that is for rank i alone (``Contract.brings``).
"""


def replay(programs: Sequence[Program]) -> list[list[Row]]:
    """For each rank what it holds at first, and after each step; errors as in ``after_steps``."""
    states = ([list(row) for row in rows] for rows in after_steps(programs))
    return [list(history) for history in zip(*states, strict=True)]


def run(programs: Sequence[Program]) -> list[Row]:
    """What all ranks hold at the end; errors as in ``after_steps``."""
    *_, rows = after_steps(programs)
    return rows


def after_steps(programs: Sequence[Program]) -> Iterator[list[Row]]:
    """What all ranks hold at first, then after each step: rows that the next step will change; or a ProgramError."""
    contract, size = COLLECTIVES[programs[0].collective], len(programs)
    owners = [programs[0].owner(chunk) for chunk in range(programs[0].chunks)]
    rows = [[contract.brings(rank, owner, size) for owner in owners] for rank in range(size)]
    yield rows
    for number in range(len(programs[0].steps)):
        take_step(programs, number, rows)
        yield rows


def take_step(programs: Sequence[Program], number: int, rows: list[Row]) -> None:
    """Carry out one step of all ranks: first all sends take what they find, then it is received."""
    steps = [program.steps[number] for program in programs]
    sent = defaultdict[tuple[int, int], deque[tuple[Send, Row]]](deque)  # by receiver and sender
    for rank, step in enumerate(steps):
        for send in step.sends:
            sent[send.peer, rank].append((send, rows[rank][send.chunks.start : send.chunks.stop]))
    waiting: list[tuple[int, str]] = []
    for rank, step in enumerate(steps):
        for receive in step.receives:
            due = sent[rank, receive.peer]
            if due:
                take(*due.popleft(), receive, rows[rank], programs[rank], number=number)
            else:
                waiting.append((rank, f"receiving {receive}"))
    waiting += [(rank, f"sending {send}") for (_, rank), left in sent.items() for send, _ in left]
    if waiting:
        first = min(rank for rank, _ in waiting)
        what = "; ".join([*(each for rank, each in waiting if rank == first), "the other end must be in the same step"])
        raise ProgramError(f"rank {first}, step {number}: blocked for ever, {what}", rank=first)


def take(send: Send, data: Row, receive: Receive, row: Row, program: Program, *, number: int) -> None:
    """Receive one message into the row of the program's rank, in a step."""
    rank = program.rank
    if not fit(send.chunks, receive.chunks, program):
        differs = f"expects {label(receive.chunks)} from rank {receive.peer}, which sends {label(send.chunks)}"
        raise ProgramError(f"rank {rank}, step {number}: {differs}", rank=rank)
    for chunk, arriving in zip(receive.chunks, data, strict=True):
        held = row[chunk] if receive.combine else 0
        if not arriving or held & arriving:
            undefined = f"rank {receive.peer} sends it without holding any data of it"
            problem = f"combines the contribution of {ranks_in(held & arriving)} twice" if arriving else undefined
            raise ProgramError(f"rank {rank}, step {number}, chunk {chunk}: {problem}", rank=rank, chunk=chunk)
        row[chunk] = held | arriving


def fit(sent: range, received: range, program: Program) -> bool:
    """Whether chunks that are sent may be received as these."""
    if not COLLECTIVES[program.collective].addressed:  # else all shards are equally long
        return sent == received
    return len(sent) == len(received) and (sent.start - received.start) % program.parts == 0


def members(mask: int) -> list[int]:
    """The ranks whose bits are set.

    >>> members(0b1101)
    [0, 2, 3]
    """
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]


def ranks_in(mask: int) -> str:
    """The same, for a reader."""
    return name_ranks(members(mask))


def contributions(mask: int, size: int) -> str:
    """The same, and for whom they are.

    >>> contributions(0b0_0110, 3), contributions(0b100_001, 3)
    ('ranks 1, 2', 'rank 0 for rank 2')
    """
    address, ranks = divmod(mask, 1 << size)
    return f"{ranks_in(ranks)}{f' for {ranks_in(address)}' if address else ''}"
