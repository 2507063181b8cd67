"""Run the programs of all ranks on symbols: compute the content of each rank after each step.

The replay moves all ranks step by step. In a real run some ranks are ahead, with the same result, because both ends of
a message are in the same step. Ranks cannot block each other even if sends are synchronous: ranks in the earliest step
wait only for messages among themselves. Time: O(chunks sent).
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from dear_mpi.collectives.program.errors import ProgramError, name_ranks
from dear_mpi.collectives.program.program import COLLECTIVES, Program, Receive, Send, label

# One rank's data: bit i of ``row[chunk]`` is set if rank i's contribution is in; 0 is undefined. For addressed data,
# bit size + i marks data for rank i.
Row = list[int]


def replay(programs: Sequence[Program]) -> list[list[Row]]:
    states = ([list(row) for row in rows] for rows in after_steps(programs))
    return [list(history) for history in zip(*states, strict=True)]


def run(programs: Sequence[Program]) -> list[Row]:
    *_, rows = after_steps(programs)
    return rows


def after_steps(programs: Sequence[Program]) -> Iterator[list[Row]]:
    """Yield the data of all ranks before and after each step, in rows that the next step changes.

    ProgramError: undefined data is sent, data is combined twice, or a transfer has no matching peer.
    """
    contract, size = COLLECTIVES[programs[0].collective], len(programs)
    owners = [programs[0].owner(chunk) for chunk in range(programs[0].chunks)]
    rows = [[contract.brings(rank, owner, size) for owner in owners] for rank in range(size)]
    yield rows
    for number in range(len(programs[0].steps)):
        take_step(programs, number, rows)
        yield rows


def take_step(programs: Sequence[Program], number: int, rows: list[Row]) -> None:
    """Carry out one step of all ranks: all sends read before anything is received."""
    steps = [program.steps[number] for program in programs]
    sent = defaultdict[tuple[int, int], deque[tuple[Send, Row]]](deque)
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
                waiting.append((rank, f"receive {label(receive.chunks)} from rank {receive.peer}"))
    waiting += [(rank, f"send {send}") for (_, rank), left in sent.items() for send, _ in left]
    if waiting:
        first = min(rank for rank, _ in waiting)
        what = " and to ".join(each for rank, each in waiting if rank == first)
        both = "the peer has no matching receive or send in this step: add it, or remove this one"
        raise ProgramError(f"rank {first}, step {number}: waits forever to {what}: {both}", rank=first)


def take(send: Send, data: Row, receive: Receive, row: Row, program: Program, *, number: int) -> None:
    rank, peer, where = program.rank, receive.peer, f"step {number}"
    if not fit(send.chunks, receive.chunks, program):
        differs = f"expects {label(receive.chunks)} from rank {peer}, which sends {label(send.chunks)}"
        both = "both ends of a message must name the same chunks"
        raise ProgramError(f"rank {rank}, {where}: {differs}: {both}", rank=rank)
    for sent, chunk, arriving in zip(send.chunks, receive.chunks, data, strict=True):
        held = row[chunk] if receive.combine else 0
        if not arriving:
            said = f"rank {peer}, {where}: sends chunk {sent} to rank {rank} before it holds any data of it"
            raise ProgramError(said, rank=peer, chunk=sent)
        if held & arriving:
            twice = f"combines {data_of(held & arriving, program.size)} into chunk {chunk} again, from rank {peer}"
            once = "combine each rank's data once"
            raise ProgramError(f"rank {rank}, {where}: {twice}: {once}", rank=rank, chunk=chunk)
        row[chunk] = held | arriving


def fit(sent: range, received: range, program: Program) -> bool:
    if not COLLECTIVES[program.collective].addressed:  # all shards have the same length
        return sent == received
    return len(sent) == len(received) and (sent.start - received.start) % program.parts == 0


def members(mask: int) -> list[int]:
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]


def data_of(mask: int, size: int) -> str:
    """Name the ranks whose contributions are in, and their addressees.

    >>> data_of(0b11, 4), data_of(1 << 2 | 1 << 4 + 3, 4)
    ('data of ranks 0, 1', "rank 2's data for rank 3")
    """
    address, ranks = (members(each) for each in divmod(mask, 1 << size))
    data = f"rank {ranks[0]}'s data" if len(ranks) == 1 else f"data of {name_ranks(ranks)}"
    return f"{data}{f' for {name_ranks(address)}' if address else ''}"
