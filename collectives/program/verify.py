"""Prove an algorithm without running it: replay the programs of all ranks on symbols, and look at the end.

What is checked: every send has its receive, in the same step and with chunks that fit; nothing undefined is sent; no
contribution is combined twice; no two receives of a step touch one chunk unless both combine; every rank finishes even
if every send blocks until it is received; the collective's promise holds at the end. Errors name rank, step and chunk.

The idea is taken from msccl-tools' ``Algorithm.check_implements``.
"""

from collections.abc import Iterator, Sequence

from dear_mpi.collectives.program.contract import COLLECTIVES
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.program import Program, Receive, Step
from dear_mpi.collectives.program.replay import Row, after_steps, contributions, members, run

__all__ = ["check_shapes", "keeps_rank_order", "promised", "verify"]


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
            if (
                not isinstance(chunks, range)
                or chunks.step != 1
                or not 0 <= chunks.start < chunks.stop <= program.chunks
            ):
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
    """Whether all contributions are combined in the order of the ranks, as an op that does not commute would need.

    Such an algorithm also rounds in the same way wherever the borders between chunks are.
    """
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
