"""Prove an algorithm without running it: replay the programs of all ranks (``replay.py``), and look at the end.

The proof checks these rules: every send has its receive, in the same step and with chunks that fit; nothing undefined
is sent; no contribution is combined twice; no two receives of a step touch one chunk unless both combine; every rank
finishes even if every send blocks until it is received; the collective's promise holds at the end. Errors name rank,
step and chunk.

The idea is taken from msccl-tools' ``Algorithm.check_implements``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import mode

from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.program import COLLECTIVES, Program, Receive, Send, Step
from dear_mpi.collectives.program.replay import Row, after_steps, data_of, members, run

__all__ = ["verify"]

MOST_BLAMED = 16  # ranks among which the one that errs is looked for: up to three proofs for each


def verify(programs: Sequence[Program]) -> None:
    """Check the programs of all ranks, in order, of one collective; a ProgramError names rank, step, chunk or peer.

    The replay finds a fault where it shows, often on another rank than the one that errs. Where the proof holds as soon
    as one rank does what its peers expect of it, the error names that rank and the step.
    """
    try:
        check(programs)
    except ProgramError as error:
        raise who_errs(programs) or error from None


def check(programs: Sequence[Program]) -> None:
    """As ``verify``, but the error names the rank where a fault shows."""
    check_shapes(programs)
    collective, size = programs[0].collective, len(programs)
    for rank, (row, expected) in enumerate(zip(run(programs), promised(collective, size), strict=True)):
        for chunk, held in enumerate(row):
            owner = programs[rank].owner(chunk)
            if held != expected[owner] and COLLECTIVES[collective].ends(rank, owner):
                found = f"ends with {data_of(held, size)}" if held else "is still empty"
                said = f"rank {rank}: chunk {chunk} {found}; expected {data_of(expected[owner], size)}"
                raise ProgramError(said, rank=rank, chunk=chunk)


def who_errs(programs: Sequence[Program]) -> ProgramError | None:
    """The error of the one rank that errs; None if a change of no rank, or equal changes of several, make it right."""
    if len(programs) > MOST_BLAMED or COLLECTIVES[programs[0].collective].addressed or fault_of(programs, check_shapes):
        return None
    dues = [expected_of(programs, rank, flag) for flag in (False, True, None) for rank in range(len(programs))]

    def added(due: Program) -> int:
        return transfers(due) - transfers(programs[due.rank])

    for _, alike in groupby(sorted(dues, key=added), added):  # first what is too much
        right = [due for due in alike if not fault_of([*programs[: due.rank], due, *programs[due.rank + 1 :]], check)]
        if right:
            return difference(programs[right[0].rank], right[0]) if len({due.rank for due in right}) == 1 else None
    return None


def expected_of(programs: Sequence[Program], rank: int, combine: bool | None) -> Program:
    """Return the program of a rank that sends what its peers receive, and receives what they send.

    Args:
        combine: for receives that the rank lacks; its own keep their way. None: all are as most others of the step.
    """
    steps = []
    for number, mine in enumerate(programs[rank].steps):
        others = [(other.rank, other.steps[number]) for other in programs if other.rank != rank]
        flags = [receive.combine for _, step in others for receive in step.receives]
        usual = 2 * sum(flags) > len(flags)
        own = {receive.peer: receive.combine for receive in mine.receives}
        arriving = [(peer, send.chunks) for peer, step in others for send in step.sends if send.peer == rank]
        receives = tuple(
            Receive(peer, chunks, usual if combine is None else own.get(peer, combine)) for peer, chunks in arriving
        )
        sends = tuple(Send(peer, each.chunks) for peer, step in others for each in step.receives if each.peer == rank)
        steps.append(Step(sends, receives))
    return replace(programs[rank], steps=tuple(steps))


def difference(program: Program, due: Program) -> ProgramError | None:
    """Name the first step of a program that differs from the one that is due; None if only the order differs."""
    counted = ([Counter([*step.sends, *step.receives]) for step in each.steps] for each in (program, due))
    pairs = enumerate(zip(*counted, strict=True))
    differing = [(number, mine - right, right - mine) for number, (mine, right) in pairs if mine != right]
    if not differing:
        return None
    number, wrong, lacking = differing[0]
    must = f"must {acts(lacking)}" if lacking else f"must not {acts(wrong)}"
    instead = f", not {acts(wrong)}" if wrong and lacking else ""
    chunks = {chunk for transfer in wrong or lacking for chunk in transfer.chunks}
    said = f"rank {program.rank}, step {number}: {must}{instead}; its peers expect this, and with it the proof holds"
    return ProgramError(said, rank=program.rank, chunk=chunks.pop() if len(chunks) == 1 else None)


def acts(transfers: Iterable[Send | Receive]) -> str:
    return " and ".join(f"{'send' if isinstance(each, Send) else 'receive'} {each}" for each in transfers)


def transfers(program: Program) -> int:
    return sum(len(step.sends) + len(step.receives) for step in program.steps)


def promised(collective: str, size: int) -> list[Row]:
    """What each rank holds of a complete chunk of each owner: the contributions of all that begin with data of it."""
    contract, ranks = COLLECTIVES[collective], range(size)
    if contract.addressed:  # what the owner has for this rank
        return [[contract.brings(owner, rank, size) for owner in ranks] for rank in ranks]
    return [[sum(contract.brings(rank, owner, size) for rank in ranks) for owner in ranks]] * size


def check_shapes(programs: Sequence[Program]) -> None:
    """What must hold before programs can be replayed at all; or a ProgramError."""
    kinds = [(program.collective, program.parts, len(program.steps)) for program in programs]
    usual = kinds.index(mode(kinds))  # on which rank: who differs from most ranks errs
    for rank, program in enumerate(programs):
        for problem in problems(program, rank, (usual, programs[usual]), len(programs)):
            raise ProgramError(problem, rank=rank)


def problems(program: Program, rank: int, like: tuple[int, Program], size: int) -> Iterator[str]:
    """Yield each value that is out of range or unlike that of ``like`` (a rank and its program), and each race."""
    other, first = like
    if program.collective not in COLLECTIVES:
        yield f"rank {rank}: the collective must be one of {', '.join(COLLECTIVES)}, not {program.collective!r}"
    if (program.rank, program.size, program.collective) != (rank, size, first.collective):
        found = f"{program.collective} on rank {program.rank} of {program.size}"
        yield f"rank {rank}: the program must be {first.collective} on rank {rank} of {size}, not {found}"
    if program.parts != first.parts or program.parts < 1:
        given = f"{program.parts} here and {first.parts} on rank {other}"
        yield f"rank {rank}: parts must be the same on all ranks, and at least 1, not {given}"
    if len(program.steps) != len(first.steps):
        yield f"rank {rank}: has {len(program.steps)} steps, and rank {other} has {len(first.steps)}: add empty steps"
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
            both = f"{where}: receives chunk {chunk} from ranks {other.peer} and {receive.peer} at once"
            if other is not receive and not (other.combine and receive.combine):
                yield f"{both}: combine both, or use two steps"
            if other.chunks != receive.chunks:
                yield f"{both}, in ranges of chunks that differ: use the same range, or two steps"


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


def fault_of(programs: Sequence[Program], *checks: Callable[[Sequence[Program]], object]) -> ProgramError | None:
    """The error of the first check that fails."""
    try:
        for check_one in checks:
            check_one(programs)
    except ProgramError as error:
        return error
    return None
