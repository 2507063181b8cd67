"""Prove an algorithm without running it: replay the programs of all ranks on symbols, and look at the end.

What is checked: every send has its receive, in the same step and with chunks that fit; nothing undefined is sent; no
contribution is combined twice; no two receives of a step touch one chunk unless both combine; every rank finishes even
if every send blocks until it is received; the collective's promise holds at the end. Errors name rank, step and chunk.

The replay takes one step of all ranks after the other. In a run some ranks are further than others; but as both ends of
a message are in the same step, they do the same. Nor can they block each other, even if each send blocks until it is
received: what the ranks in the earliest step wait for is among themselves, and under way. Time: O(total number of
chunks sent).

The idea is taken from msccl-tools' ``Algorithm.check_implements``.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from dear_mpi.collectives.program.errors import ProgramError, name_ranks
from dear_mpi.collectives.program.program import COLLECTIVES, Program, Receive, Send, Step, label

__all__ = ["verify"]

# What one rank holds: bit i of ``row[chunk]`` is set where rank i's contribution is in; 0 is undefined data. Where data
# is addressed, on ``size`` ranks, bit size + i says that it is for rank i alone.
Row = list[int]


def verify(programs: Sequence[Program]) -> None:
    """Check the programs of all ranks, in order, of one collective; a ProgramError names rank, step, chunk or peer."""
    check_shapes(programs)
    collective, size = programs[0].collective, len(programs)
    for rank, (row, expected) in enumerate(zip(run(programs), promised(collective, size), strict=True)):
        for chunk, held in enumerate(row):
            owner = programs[rank].owner(chunk)
            if held != expected[owner] and COLLECTIVES[collective].ends(rank, owner):
                found, due = (contributions(mask, size) for mask in (held, expected[owner]))
                said = f"rank {rank} ends with the data of {found} in chunk {chunk}, not of {due}"
                raise ProgramError(said, rank=rank, chunk=chunk)


def promised(collective: str, size: int) -> list[Row]:
    """What each rank holds of a complete chunk of each owner: the contributions of all that begin with data of it."""
    contract, ranks = COLLECTIVES[collective], range(size)
    if contract.addressed:  # what the owner has for this rank
        return [[contract.brings(owner, rank, size) for owner in ranks] for rank in ranks]
    return [[sum(contract.brings(rank, owner, size) for rank in ranks) for owner in ranks]] * size


def check_shapes(programs: Sequence[Program]) -> None:
    """What must hold before programs can be replayed at all; or a ProgramError."""
    for rank, program in enumerate(programs):
        for problem in problems(program, rank, programs[0], len(programs)):
            raise ProgramError(problem, rank=rank)


def problems(program: Program, rank: int, first: Program, size: int) -> Iterator[str]:
    """What is not in range: rank, steps, peers, chunks; and receives of a step that race for a chunk."""
    if program.collective not in COLLECTIVES:
        yield f"the collective of rank {rank} must be one of {', '.join(COLLECTIVES)}, not {program.collective!r}"
    if (program.rank, program.size, program.collective) != (rank, size, first.collective):
        found = f"{program.collective} on rank {program.rank} of {program.size}"
        yield f"program number {rank} must be {first.collective} on rank {rank} of {size}, not {found}"
    if program.parts != first.parts or program.parts < 1:
        given = f"{program.parts} on rank {rank} and {first.parts} on rank 0"
        yield f"parts must be the same on all ranks, and at least 1, not {given}"
    if len(program.steps) != len(first.steps):
        yield f"rank {rank} has {len(program.steps)} steps and rank 0 has {len(first.steps)}: add empty steps"
    for number, step in enumerate(program.steps):
        where = f"rank {rank}, step {number}"
        if not isinstance(step.sends, tuple) or not isinstance(step.receives, tuple):
            yield f"{where}: Step takes a tuple of Send and a tuple of Receive, such as (Send(...),)"
        for transfer in step.sends + step.receives:
            if transfer.peer not in range(size) or not isinstance(transfer.peer, int) or transfer.peer == rank:
                yield f"{where}: the peer must be another rank of 0..{size - 1}, not {transfer.peer}"
            if isinstance(transfer, Receive) and transfer.combine and not COLLECTIVES[program.collective].reduces:
                yield f"{where}: {program.collective} combines nothing: leave combine out"
            chunks = transfer.chunks
            gapless = isinstance(chunks, range) and chunks.step == 1
            if not gapless or not 0 <= chunks.start < chunks.stop <= program.chunks:
                allowed = f"a range of chunks in 0..{program.chunks - 1}, such as range(0, 1)"
                yield f"{where}: chunks must be {allowed}, not {chunks}"
        yield from races(step, where)


def races(step: Step, where: str) -> Iterator[str]:
    """A chunk that is received twice in a step must be combined both times, and in the same range of chunks."""
    seen: dict[int, Receive] = {}
    for receive in step.receives if len(step.receives) > 1 else ():
        for chunk in receive.chunks:
            other = seen.setdefault(chunk, receive)
            both = f"{where}, chunk {chunk}: receives from ranks {other.peer} and {receive.peer}"
            if other is not receive and not (other.combine and receive.combine):
                yield f"{both} race"
            if other.chunks != receive.chunks:
                yield f"{both} must be of the same chunks to be combined at once"


def keeps_rank_order(programs: Sequence[Program]) -> bool:
    """Whether all contributions are combined in the order of the ranks, as an op that does not commute would need; then
    rounding, too, is the same wherever the borders between chunks are."""
    return all(
        in_order(rows, program.rank, chunk, program.steps[number])
        for number, rows in zip(range(len(programs[0].steps)), after_steps(programs), strict=False)
        for program in programs
        for receive in program.steps[number].receives
        if receive.combine
        for chunk in receive.chunks
    )


def in_order(rows: list[Row], rank: int, chunk: int, step: Step) -> bool:
    """Whether the parts that a step combines into a chunk follow in rank order: each begins where another one ends."""
    peers = [receive.peer for receive in step.receives if chunk in receive.chunks]
    numbers = [member for source in sorted([rank, *peers]) for member in members(rows[source][chunk])]
    return numbers == list(range(numbers[0], numbers[0] + len(numbers)))


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
    """The ranks whose bits are set."""
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]


def ranks_in(mask: int) -> str:
    return name_ranks(members(mask))


def contributions(mask: int, size: int) -> str:
    """The ranks whose contributions are in, and for whom these are."""
    address, ranks = divmod(mask, 1 << size)
    return f"{ranks_in(ranks)}{f' for {ranks_in(address)}' if address else ''}"
