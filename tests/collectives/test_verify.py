"""The prover finds every way to be wrong, and says where: rank, step, chunk."""

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


def test_correct():
    verify(pair([exchange(0)], [exchange(1)]))


BROKEN = {
    "a chunk that is never sent": (
        pair([], []),
        "rank 0 ends with the data of no rank in chunk 1, not of rank 1",
    ),
    "a send without receive": (
        pair([exchange(0)], [Step(exchange(1).sends)]),
        "rank 0, step 0: blocked for ever, sending chunk 0 to rank 1",
    ),
    "a receive without send": (
        pair([Step((), exchange(0).receives)], [Step()]),
        "rank 0, step 0: blocked for ever, receiving chunk 1 from rank 1",
    ),
    "ends of a message in different steps": (
        pair([Step(exchange(0).sends), exchange(0)], [Step(), exchange(1)]),
        "rank 0, step 0: blocked for ever, sending chunk 0 to rank 1; the other end must be in the same step",
    ),
    "more steps than others": (
        pair([exchange(0)], [exchange(1), Step()]),
        "rank 1 has 2 steps and rank 0 has 1: add empty steps",
    ),
    "chunks that do not match": (
        pair([exchange(0)], [exchange(1, received=1)]),
        "rank 1, step 0: expects chunk 1 from rank 0, which sends chunk 0",
    ),
    "a chunk that the sender does not have": (
        pair([exchange(0, sent=1)], [exchange(1, received=1)]),
        "rank 1, step 0, chunk 1: rank 0 sends it without holding any data of it",
    ),
    "a contribution that is reduced twice": (
        pair(
            [Step((Send(1, range(2)),)), Step((Send(1, range(2)),))],
            [Step((), (Receive(0, range(2), True),)), Step((), (Receive(0, range(2), True),))],
            "all_reduce",
        ),
        "rank 1, step 1, chunk 0: combines the contribution of rank 0 twice",
    ),
    "data that is combined with nothing": (
        pair([exchange(0, combine=True)], [exchange(1)]),
        "rank 0, step 0, chunk 1: combines what arrives with undefined data",
    ),
    "two blocking sends that wait for each other": (
        pair([Step(exchange(0).sends), Step((), exchange(0).receives)],
             [Step(exchange(1).sends), Step((), exchange(1).receives)]),
        "rank 0, step 0: blocked for ever, sending chunk 0 to rank 1",
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
        "rank 0, step 0, chunk 1: receives from ranks 1 and 1 race",
    ),
    "programs in the wrong order": (
        pair([], [])[::-1],
        "program number 0 must be all_gather on rank 0 of 2, not all_gather on rank 1 of 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_broken(what):
    broken, message = BROKEN[what]
    with pytest.raises(ProgramError) as caught:
        verify(broken)
    assert message in str(caught.value)


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather", "all_reduce"])
def test_no_step_of_the_ring_can_be_left_out(collective):
    """Every message of the ring is needed: the proof fails if any step of any rank is dropped."""
    whole = programs("ring", collective, 4)
    for rank, program in enumerate(whole):
        for number in range(len(program.steps)):
            steps = program.steps[:number] + program.steps[number + 1 :]
            broken = [*whole[:rank], Program(collective, rank, 4, steps), *whole[rank + 1 :]]
            with pytest.raises(ProgramError):
                verify(broken)
