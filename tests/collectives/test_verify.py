"""The prover finds every way to be wrong, and says where: rank, step, chunk."""

from dataclasses import replace
from itertools import product

import pytest

from dear_mpi.collectives import ProgramError, programs, verify
from dear_mpi.collectives.program.program import Program, Receive, Send, Step


def one(chunk):
    return range(chunk, chunk + 1)


def pair(steps_0, steps_1, collective="all_gather"):
    return [Program(collective, 0, 2, tuple(steps_0)), Program(collective, 1, 2, tuple(steps_1))]


def exchange(rank, sent=None, received=None, combine=False):
    """One step that sends the own chunk to the other rank and receives its chunk."""
    return Step(
        (Send(1 - rank, one(rank if sent is None else sent)),),
        (Receive(1 - rank, one(1 - rank if received is None else received), combine),),
    )


def scratched(steps_0, steps_1, collective="all_reduce"):
    return [replace(program, scratch=1) for program in pair(steps_0, steps_1, collective)]


def add(rank, source, target):
    """A step in which a rank combines one of its chunks with another."""
    return Step((Send(rank, one(source)),), (Receive(rank, one(target), True),))


def swapping(size, receive, again=False):
    """Ranks give each other their chunks in one step, or in two; receives are what ``receive`` makes of a peer."""
    peers = [[peer for peer in range(size) if peer != rank] for rank in range(size)]
    steps = [Step(tuple(Send(peer, one(peer)) for peer in others), tuple(map(receive, others))) for others in peers]
    return [Program("all_to_all", rank, size, (step,) * (1 + again)) for rank, step in enumerate(steps)]


def test_correct():
    verify(pair([exchange(0)], [exchange(1)]))


BROKEN = {
    "a chunk that is never sent": (
        pair([], []),
        "rank 0: chunk 1 is still empty; expected rank 1's data",
    ),
    "a send without receive": (
        pair([exchange(0)], [Step(exchange(1).sends)]),
        "rank 1, step 0: must receive chunk 0 from rank 0, replacing local data; its peers expect this",
    ),
    "a receive without send": (
        pair([Step((), exchange(0).receives)], [Step()]),
        "rank 0, step 0: waits forever to receive chunk 1 from rank 1",
    ),
    "ends of a message in different steps": (
        pair([Step(exchange(0).sends), exchange(0)], [Step(), exchange(1)]),
        "rank 0, step 0: must not send chunk 0 to rank 1; its peers expect this, and with it the proof holds",
    ),
    "more steps than others": (
        pair([exchange(0)], [exchange(1), Step()]),
        "rank 1: has 2 steps, and rank 0 has 1: add empty steps",
    ),
    "chunks that do not match": (
        pair([exchange(0)], [exchange(1, received=1)]),
        "rank 1, step 0: must receive chunk 0 from rank 0, replacing local data, not receive chunk 1",
    ),
    "a chunk that the sender does not have": (
        pair([exchange(0, sent=1)], [exchange(1, received=1)]),
        "rank 0, step 0: sends chunk 1 to rank 1 before it holds any data of it",
    ),
    "a contribution that is reduced twice": (
        pair(
            [Step((Send(1, range(2)),)), Step((Send(1, range(2)),))],
            [Step((), (Receive(0, range(2), True),)), Step((), (Receive(0, range(2), True),))],
            "all_reduce",
        ),
        "rank 1, step 1: combines rank 0's data into chunk 0 again, from rank 0: combine each rank's data once",
    ),
    "data that is combined where nothing is": (
        pair([exchange(0, combine=True)], [exchange(1)]),
        "rank 0, step 0: all_gather combines nothing: leave combine out",
    ),
    "two blocking sends that wait for each other": (
        pair([Step(exchange(0).sends), Step((), exchange(0).receives)],
             [Step(exchange(1).sends), Step((), exchange(1).receives)]),
        "rank 0, step 0: waits forever to send chunk 0 to rank 1: the peer has no matching receive or send",
    ),
    "a rank that does not exist": (
        pair([Step((Send(2, one(0)),))], [Step()]),
        "rank 0, step 0: the peer must be another rank of 0..1, not 2",
    ),
    "a message to oneself": (
        pair([Step((Send(0, one(0)),))], []),
        "rank 0, step 0: the peer must be another rank of 0..1, not 0",
    ),
    "a chunk that does not exist": (
        pair([Step((Send(1, range(1, 3)),))], []),
        "rank 0, step 0: chunks must be a range of chunks in 0..1, such as range(0, 1), not range(1, 3)",
    ),
    "two receives that race": (
        pair([Step((), (Receive(1, one(1)), Receive(1, one(1))))], []),
        "rank 0, step 0: receives chunk 1 from ranks 1 and 1 at once: combine both, or use two steps",
    ),
    "chunks of all_to_all that go astray": (
        swapping(3, lambda peer: Receive(peer, one((peer + 1) % 3))),
        "rank 0: chunk 0 ends with rank 2's data for rank 0; expected rank 0's data for rank 0",
    ),
    "chunks of all_to_all that come twice": (
        swapping(3, lambda peer: Receive(peer, one(peer)), again=True),
        "rank 0: chunk 1 ends with rank 0's data for rank 1; expected rank 1's data for rank 0",
    ),
    "chunks of all_to_all that stay": (
        pair([Step()], [Step()], "all_to_all"),
        "rank 0: chunk 1 ends with rank 0's data for rank 1; expected rank 1's data for rank 0",
    ),
    "chunks of all_to_all of other lengths": (
        pair([Step((Send(1, range(2)),))], [Step((), (Receive(0, one(0)),))], "all_to_all"),
        "rank 1, step 0: expects chunk 0 from rank 0, which sends chunks 0..1",
    ),
    "scratch that holds nothing": (
        scratched([Step((Send(1, one(2)),))], [Step((), (Receive(0, one(0)),))]),
        "rank 0, step 0: sends scratch 1 of chunk 0 to rank 1 before it holds any data of it",
    ),
    "a sum with scratch that holds nothing": (
        scratched([Step((Send(1, one(0)),))], [Step((), (Receive(0, one(2), True),))]),
        "rank 1, step 0: combines data of rank 0 into scratch 1 of chunk 0 before it holds any data: leave combine out",
    ),
    "scratch that is added twice": (
        scratched([Step((Send(1, one(0)),)), Step(), Step()],
                  [Step((), (Receive(0, one(2)),)), add(1, 2, 0), add(1, 2, 0)]),
        "rank 1, step 2: combines rank 0's data into chunk 0 again, from rank 1: combine each rank's data once",
    ),
    "scratch of another chunk": (
        scratched([Step((Send(1, one(0)),))], [Step((), (Receive(0, one(3)),))]),
        "rank 1, step 0: expects scratch 1 of chunk 1 from rank 0, which sends chunk 0: both ends of a message must",
    ),
    "a range over the border of scratch": (
        scratched([Step((Send(1, range(1, 3)),))], [Step((), (Receive(0, range(1, 3)),))]),
        "rank 0, step 0: a range must be in one copy of the buffer's 2 chunks, not range(1, 3): use several transfers",
    ),
    "a chunk beyond scratch": (
        scratched([Step((Send(1, one(4)),))], [Step()]),
        "rank 0, step 0: chunks must be a range of chunks in 0..3, such as range(0, 1), not range(4, 5)",
    ),
    "a receive from oneself without a send": (
        scratched([Step((), (Receive(0, one(2)),))], [Step()]),
        "rank 0, step 0: waits forever to receive scratch 1 of chunk 0 from rank 0",
    ),
    "data that stays in scratch": (
        scratched([Step((Send(1, one(0)),), (Receive(1, one(3)),))], [Step((Send(0, one(1)),), (Receive(0, one(2)),))],
                  "all_gather"),
        "rank 0: chunk 1 is still empty; expected rank 1's data",
    ),
    "scratch on one rank only": (
        [replace(each, scratch=1 - rank) for rank, each in enumerate(pair([], []))],
        "rank 1: scratch must be the same on all ranks, and at least 0, not 0 here and 1 on rank 0",
    ),
    "programs in the wrong order": (
        pair([], [])[::-1],
        "rank 0: the program must be all_gather on rank 0 of 2, not all_gather on rank 1 of 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_broken(what):
    broken, message = BROKEN[what]
    with pytest.raises(ProgramError) as caught:
        verify(broken)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "collective"),
    [("ring", "reduce_scatter"), ("ring", "all_gather"), ("ring", "all_reduce"), ("pairwise", "all_to_all")],
)
def test_no_step_can_be_left_out(name, collective):
    """Every message is needed: the proof fails if any step of any rank is dropped."""
    whole = programs(name, collective, 4)
    for rank, program in enumerate(whole):
        for number in range(len(program.steps)):
            steps = program.steps[:number] + program.steps[number + 1 :]
            broken = [*whole[:rank], Program(collective, rank, 4, steps), *whole[rank + 1 :]]
            with pytest.raises(ProgramError):
                verify(broken)


@pytest.mark.parametrize("name", ["naive", "pairwise"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_no_chunk_of_an_all_to_all_may_go_or_come_elsewhere(name, size):
    """The proof fails if any one transfer of any rank is of another chunk, though both ends are as long."""
    whole = programs(name, "all_to_all", size)
    for program, number, kind, shift in product(
        whole, range(len(whole[0].steps)), ["sends", "receives"], range(1, size)
    ):
        step = program.steps[number]
        for at, transfer in enumerate(getattr(step, kind)):
            moved = replace(transfer, chunks=one((transfer.chunks.start + shift) % size))
            transfers = (*getattr(step, kind)[:at], moved, *getattr(step, kind)[at + 1 :])
            steps = (*program.steps[:number], replace(step, **{kind: transfers}), *program.steps[number + 1 :])
            with pytest.raises(ProgramError, match=r"chunk \d ends with|at once"):
                verify([*whole[: program.rank], replace(program, steps=steps), *whole[program.rank + 1 :]])


ERRING = {  # one rank does something else in one step of a ring of 4
    "sends to the wrong rank": lambda send, receive: ((replace(send, peer=(send.peer + 1) % 4),), (receive,)),
    "sends another chunk": lambda send, receive: ((replace(send, chunks=moved(send)),), (receive,)),
    "expects another chunk": lambda send, receive: ((send,), (replace(receive, chunks=moved(receive)),)),
    "does not receive": lambda send, receive: ((send,), ()),
    "does not send": lambda send, receive: ((), (receive,)),
    "sends twice": lambda send, receive: ((send, send), (receive,)),
    "does nothing": lambda send, receive: ((), ()),
    "combines or not": lambda send, receive: ((send,), (replace(receive, combine=not receive.combine),)),
}


def moved(transfer):
    return one((transfer.chunks.start + 2) % 4)


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("what", ERRING)
def test_the_error_names_the_rank_that_errs(what, number, rank):
    """Not the one that cannot go on, nor the one that ends with something else."""
    whole = programs("ring", "all_reduce", 4)
    steps = list(whole[rank].steps)
    (send,), (receive,) = steps[number].sends, steps[number].receives
    steps[number] = Step(*ERRING[what](send, receive))
    whole[rank] = replace(whole[rank], steps=tuple(steps))
    with pytest.raises(ProgramError, match=f"^rank {rank}, step {number}: must ") as caught:
        verify(whole)
    assert caught.value.rank == rank


@pytest.mark.parametrize("odd", range(3))
def test_the_rank_that_differs_from_most_others_errs(odd):
    whole = programs("ring", "all_gather", 3)
    whole[odd] = replace(whole[odd], steps=(*whole[odd].steps, Step()))
    with pytest.raises(ProgramError, match=f"^rank {odd}: has 3 steps, and rank {int(odd == 0)} has 2"):
        verify(whole)
