"""Prove an algorithm without running it: replay all ranks' programs on symbols and check the result.

Rules: every send has a matching receive in its step; no undefined data is sent; no contribution is combined twice;
receives of one step touch a chunk twice only if both combine it, in equal ranges; the contract holds at the end.

The replay moves all ranks step by step. A real run, with some ranks ahead, has the same result, because both ends of a
message are in one step. Ranks cannot block each other even if sends are synchronous: ranks in the earliest step wait
only for messages among themselves. Time: O(chunks sent).

The idea is from msccl-tools' ``Algorithm.check_implements``.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import mode

from dear_mpi.collectives.program.errors import ProgramError, name_ranks
from dear_mpi.collectives.program.program import COLLECTIVES, Program, Receive, Send, Step

__all__ = ["verify"]

# Bit i of a rank's ``row[chunk]`` is set if rank i's contribution is in; 0 is undefined. For addressed data, bit
# size + i marks data for rank i.
Row = list[int]

Term = tuple[int, int]  # rank, chunk

MOST_BLAMED = 16  # ranks to search for the faulty one, up to three proofs each


def verify(programs: Sequence[Program]) -> None:
    """Raise a ProgramError that names rank, step, chunk or peer if the programs are wrong.

    A fault often shows on another rank. The error names a rank if only its change makes
    the proof hold.
    """
    try:
        check(programs)
    except ProgramError as error:
        raise who_errs(programs) or error from None


def check(programs: Sequence[Program]) -> None:
    check_shapes(programs)
    collective, size = programs[0].collective, len(programs)
    for rank, (row, expected) in enumerate(zip(run(programs), promised(collective, size), strict=True)):
        for chunk, held in enumerate(row[: programs[rank].chunks]):
            owner = programs[rank].owner(chunk)
            if held != expected[owner] and COLLECTIVES[collective].ends(rank, owner):
                found = f"ends with {data_of(held, size)}" if held else "is still empty"
                said = f"rank {rank}: chunk {chunk} {found}; expected {data_of(expected[owner], size)}"
                raise ProgramError(said, rank=rank, chunk=chunk)


def who_errs(programs: Sequence[Program]) -> ProgramError | None:
    elsewhere = programs[0].scratch or COLLECTIVES[programs[0].collective].addressed  # data may arrive in other chunks
    if len(programs) > MOST_BLAMED or elsewhere or fault_of(programs, check_shapes):
        return None
    dues = [expected_of(programs, rank, flag) for flag in (False, True, None) for rank in range(len(programs))]

    def added(due: Program) -> int:
        return transfers(due) - transfers(programs[due.rank])

    right = [due for due in dues if not fault_of([*programs[: due.rank], due, *programs[due.rank + 1 :]], check)]
    fewest = [due for due in right if added(due) == min(map(added, right))]  # surplus transfers first
    return difference(programs[fewest[0].rank], fewest[0]) if len({due.rank for due in fewest}) == 1 else None


def expected_of(programs: Sequence[Program], rank: int, combine: bool | None) -> Program:
    """Return a rank's program with the transfers that its peers expect.

    ``combine``: for receives that the rank lacks; None: for all, as most of the step.
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
    """Name the first differing step; None if only the order differs."""
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
    contract, ranks = COLLECTIVES[collective], range(size)
    if contract.addressed:
        return [[contract.brings(owner, rank, size) for owner in ranks] for rank in ranks]
    return [[sum(contract.brings(rank, owner, size) for rank in ranks) for owner in ranks]] * size


def check_shapes(programs: Sequence[Program]) -> None:
    kinds = [(program.collective, program.parts, program.scratch, len(program.steps)) for program in programs]
    usual = kinds.index(mode(kinds))  # differing from most ranks is the error
    for rank, program in enumerate(programs):
        for problem in problems(program, rank, (usual, programs[usual]), len(programs)):
            raise ProgramError(problem, rank=rank)


def problems(program: Program, rank: int, like: tuple[int, Program], size: int) -> Iterator[str]:
    """Yield a program's faults, compared with ``like`` (a rank and its program)."""
    other, first = like
    if program.collective not in COLLECTIVES:
        yield f"rank {rank}: the collective must be one of {', '.join(COLLECTIVES)}, not {program.collective!r}"
    if (program.rank, program.size, program.collective) != (rank, size, first.collective):
        found = f"{program.collective} on rank {program.rank} of {program.size}"
        yield f"rank {rank}: the program must be {first.collective} on rank {rank} of {size}, not {found}"
    if program.parts != first.parts or program.parts < 1:
        given = f"{program.parts} here and {first.parts} on rank {other}"
        yield f"rank {rank}: parts must be the same on all ranks, and at least 1, not {given}"
    if program.scratch != first.scratch or program.scratch < 0:
        given = f"{program.scratch} here and {first.scratch} on rank {other}"
        yield f"rank {rank}: scratch must be the same on all ranks, and at least 0, not {given}"
    if len(program.steps) != len(first.steps):
        yield f"rank {rank}: has {len(program.steps)} steps, and rank {other} has {len(first.steps)}: add empty steps"
    for number, step in enumerate(program.steps):
        where = f"rank {rank}, step {number}"
        if not isinstance(step.sends, tuple) or not isinstance(step.receives, tuple):
            yield f"{where}: Step takes a tuple of Send and a tuple of Receive, such as (Send(...),)"
        for transfer in step.sends + step.receives:
            alone = transfer.peer == rank and not program.scratch
            if transfer.peer not in range(size) or not isinstance(transfer.peer, int) or alone:
                yield f"{where}: the peer must be another rank of 0..{size - 1}, not {transfer.peer}"
            if isinstance(transfer, Receive) and transfer.combine and not COLLECTIVES[program.collective].reduces:
                yield f"{where}: {program.collective} combines nothing: leave combine out"
            chunks = transfer.chunks
            gapless = isinstance(chunks, range) and chunks.step == 1
            if not gapless or not 0 <= chunks.start < chunks.stop <= program.places:
                allowed = f"a range of chunks in 0..{program.places - 1}, such as range(0, 1)"
                yield f"{where}: chunks must be {allowed}, not {chunks}"
            if chunks.start // program.chunks < chunks[-1] // program.chunks:
                allowed = f"in one copy of the buffer's {program.chunks} chunks"
                yield f"{where}: a range must be {allowed}, not {chunks}: use several transfers"
        yield from races(step, where)


def races(step: Step, where: str) -> Iterator[str]:
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
    """Return whether contributions are combined in rank order, as for ops that do not commute.

    Then rounding does not depend on chunks' borders.
    """
    return all(
        in_order(rows, terms)
        for number, rows in zip(range(len(programs[0].steps)), after_steps(programs), strict=False)
        for terms in sums(programs, number).values()
    )


def in_order(rows: list[Row], terms: Sequence[Term]) -> bool:
    numbers = [member for rank, chunk in terms for member in members(rows[rank][chunk])]
    return numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def sums(programs: Sequence[Program], number: int) -> dict[Term, list[Term]]:
    """Return the terms of a step's sums in the order of combining, by rank and chunk of the sum."""
    found: dict[Term, list[Term]] = {}
    for program, receive, send in arrivals(programs, number):
        if send is not None and isinstance(receive, Receive) and receive.combine:
            for chunk, source in zip(receive.chunks, send.chunks, strict=True):
                total = program.rank, chunk
                found.setdefault(total, [total]).append((receive.peer, source))
    return {total: sorted(terms, key=lambda term: (term[0], term != total)) for total, terms in found.items()}


def sums_alike(programs: Sequence[Program]) -> bool:
    """Return whether all chunks are summed in one order of ranks: sizes and cuts of a buffer then change no bit."""
    contract, size = COLLECTIVES[programs[0].collective], len(programs)
    orders: dict[tuple[int, ...], int] = {}  # a sum's number, by its terms' numbers; below ``size``: a rank's own
    held = [dict.fromkeys(range(programs[0].places), rank) for rank in range(size)]
    for number in range(len(programs[0].steps)):
        before = [dict(row) for row in held]
        for program, receive, send in arrivals(programs, number):
            if send is not None and isinstance(receive, Receive) and not receive.combine:
                for chunk, source in zip(receive.chunks, send.chunks, strict=True):
                    held[program.rank][chunk] = before[receive.peer][source]
        for (rank, chunk), terms in sums(programs, number).items():
            found = [before[peer][source] for peer, source in terms]
            key = tuple(sorted(found) if len(found) == 2 else found)  # two terms commute
            held[rank][chunk] = orders.setdefault(key, size + len(orders))
    owned = ((program, chunk) for program in programs for chunk in range(program.chunks))
    return len({held[each.rank][chunk] for each, chunk in owned if contract.ends(each.rank, each.owner(chunk))}) == 1


def fault_of(programs: Sequence[Program], *checks: Callable[[Sequence[Program]], object]) -> ProgramError | None:
    try:
        for check_one in checks:
            check_one(programs)
    except ProgramError as error:
        return error
    return None


def replay(programs: Sequence[Program]) -> list[list[Row]]:
    states = ([list(row) for row in rows] for rows in after_steps(programs))
    return [list(history) for history in zip(*states, strict=True)]


def run(programs: Sequence[Program]) -> list[Row]:
    *_, rows = after_steps(programs)
    return rows


def after_steps(programs: Sequence[Program]) -> Iterator[list[Row]]:
    """Yield all ranks' data before and after each step; the next step changes the rows."""
    contract, size = COLLECTIVES[programs[0].collective], len(programs)
    program = programs[0]
    owners = [program.owner(chunk) for chunk in range(program.chunks)]
    scratch = [0] * (program.places - program.chunks)
    rows = [[contract.brings(rank, owner, size) for owner in owners] + scratch for rank in range(size)]
    yield rows
    for number in range(len(programs[0].steps)):
        take_step(programs, number, rows)
        yield rows


def arrivals(programs: Sequence[Program], number: int) -> Iterator[tuple[Program, Send | Receive, Send | None]]:
    """Yield each receive of a step with the send that it meets; those that meet nothing, sends last, with None."""
    sent = defaultdict[tuple[int, int], deque[Send]](deque)
    for program in programs:
        for send in program.steps[number].sends:
            sent[send.peer, program.rank].append(send)
    for program in programs:
        for receive in program.steps[number].receives:
            due = sent[program.rank, receive.peer]
            yield program, receive, due.popleft() if due else None
    for (_, rank), left in sent.items():
        for send in left:
            yield programs[rank], send, None


def take_step(programs: Sequence[Program], number: int, rows: list[Row]) -> None:
    met = list(arrivals(programs, number))
    data = [rows[each.peer][send.chunks.start : send.chunks.stop] if send else [] for _, each, send in met]
    waiting: list[tuple[int, str]] = []
    for (program, each, send), sent in zip(met, data, strict=True):
        if send is not None and isinstance(each, Receive):
            take(send, sent, each, rows[program.rank], program, number=number)
        else:
            act = "receive {} from" if isinstance(each, Receive) else "send {} to"
            waiting.append((program.rank, f"{act.format(program.label(each.chunks))} rank {each.peer}"))
    if waiting:
        first = min(rank for rank, _ in waiting)
        what = " and to ".join(each for rank, each in waiting if rank == first)
        both = "the peer has no matching receive or send in this step: add it, or remove this one"
        raise ProgramError(f"rank {first}, step {number}: waits forever to {what}: {both}", rank=first)


def take(send: Send, data: Row, receive: Receive, row: Row, program: Program, *, number: int) -> None:
    rank, peer, where = program.rank, receive.peer, f"step {number}"
    if not fit(send.chunks, receive.chunks, program):
        sent = program.label(send.chunks)
        differs = f"expects {program.label(receive.chunks)} from rank {peer}, which sends {sent}"
        both = "both ends of a message must name the same chunks"
        raise ProgramError(f"rank {rank}, {where}: {differs}: {both}", rank=rank)
    for source, chunk, arriving in zip(send.chunks, receive.chunks, data, strict=True):
        held = row[chunk] if receive.combine else 0
        if not arriving:
            name = program.label(range(source, source + 1))
            said = f"rank {peer}, {where}: sends {name} to rank {rank} before it holds any data of it"
            raise ProgramError(said, rank=peer, chunk=source)
        if held & arriving or (receive.combine and not held):
            name = program.label(range(chunk, chunk + 1))
            twice = f"combines {data_of(held & arriving, program.size)} into {name} again, from rank {peer}"
            empty = f"combines data of rank {peer} into {name} before it holds any data"
            wrong = f"{twice}: combine each rank's data once" if held else f"{empty}: leave combine out"
            raise ProgramError(f"rank {rank}, {where}: {wrong}", rank=rank, chunk=chunk)
        row[chunk] = held | arriving


def fit(sent: range, received: range, program: Program) -> bool:
    """Return whether chunks are equally long: the same ones in any copy, or addressed ones, whose shards are equal."""
    period = program.parts if COLLECTIVES[program.collective].addressed else program.chunks
    return len(sent) == len(received) and (sent.start - received.start) % period == 0


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
