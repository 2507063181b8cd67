"""Programs with scratch, whose ranks also copy and combine alone: as messages, as instructions, and run by threads."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dear_mpi.collectives import ProgramError, programs, verify
from dear_mpi.collectives.lowering.messages import Writer
from dear_mpi.collectives.plans.runners.messages import MessagesRun
from dear_mpi.collectives.program.program import COLLECTIVES, Partition, Program, Receive, Send, Step
from dear_mpi.collectives.program.verify import fault_of
from dear_mpi.collectives.transports.loopback import run_loopback
from tests.collectives.test_instructions import PAIRS, add_send, check, copied, interpret


def test_what_a_rank_combines_alone_has_no_message():
    own = Step((Send(0, range(2, 3)),), (Receive(0, range(1), combine=True),))
    steps = [(Step((), (Receive(1, range(2, 3)),)), own), (Step((Send(0, range(1)),)), Step())]

    def body(transport):
        program = Program("reduce", transport.rank, 2, steps[transport.rank], scratch=1)
        buffer = np.full(7, 1.0 + transport.rank)
        run = MessagesRun(program, buffer, [0, 4, 7], transport, op="sum", segment=3, tag=1)
        run.whole()
        requests = len(run.requests)
        run.free()
        return buffer.tolist(), requests

    assert run_loopback(2, body) == [([3.0] * 4 + [1.0] * 3, 2), ([2.0] * 7, 2)]


def test_calls_name_scratch_by_its_copy_and_chunk():
    """Elements 0 to 2 are chunk 0, 3 and 4 chunk 1; those of scratch follow."""
    step = Step((Send(0, range(2)),), (Receive(0, range(2, 4)),))

    def body(transport):
        program = Program("all_reduce", 0, 2, (step,), scratch=1)
        run = MessagesRun(program, np.zeros(5), [0, 3, 5], transport, op="sum", segment=3, tag=1)
        return {part.chunk for part in run.parts}

    assert run_loopback(1, body) == [{"scratch 1 of chunk 0", "scratch 1 of chunk 1"}]


# Programs with detours: what is combined with a chunk, or replaces it, may first arrive in scratch.


@st.composite
def detours(draw):
    """An algorithm's programs, some of whose receives go to scratch, and from there to their chunk in a step more."""
    name, collective = draw(st.sampled_from([pair for pair in PAIRS if not COLLECTIVES[pair[1]].addressed]))
    whole, scratch = programs(name, collective, draw(st.integers(2, 5))), draw(st.integers(1, 3))
    return [replace(each, steps=tuple(detoured(draw, each, scratch)), scratch=scratch) for each in whole]


def detoured(draw, program, scratch):
    for step in program.steps:
        receives, own = [], []
        for receive in step.receives:
            alone = [other for other in step.receives if set(other.chunks) & set(receive.chunks)] == [receive]
            copy = draw(st.integers(0, scratch)) if alone else 0
            there = copied(receive.chunks, copy * program.chunks)
            receives.append(Receive(receive.peer, there, receive.combine and not copy))
            own += [(Send(program.rank, there), replace(receive, peer=program.rank))] * (copy > 0)
        yield Step(step.sends, tuple(receives))
        yield Step(tuple(send for send, _ in own), tuple(receive for _, receive in own))


@settings(max_examples=100)
@given(written=detours(), count=st.integers(0, 60), segment=st.integers(1, 30), data=st.data())
def test_detours_are_proved_and_give_the_sum(written, count, segment, data):
    verify(written)
    check(written, count, segment, window=data.draw(st.integers(1, 5)), staged=data.draw(st.booleans()))
    size, collective = len(written), written[0].collective
    contract, partition = COLLECTIVES[collective], Partition.of(count, size)
    numbers = [np.random.default_rng(rank).standard_normal(count) for rank in range(size)]
    owners = np.repeat(np.arange(size), partition.counts)
    begins = [[contract.begins(rank, owner) for owner in owners] for rank in range(size)]
    expected = np.where(np.array(begins).reshape(size, count), numbers, 0.0).sum(axis=0)

    def body(transport):
        buffer, chunks = numbers[transport.rank].copy(), partition.chunks(written[0].parts)
        run = MessagesRun(written[transport.rank], buffer, chunks, transport, op="sum", segment=segment, tag=1)
        for _ in range(2):  # what the first run leaves in scratch must not matter
            buffer[:] = numbers[transport.rank]
            run.whole()
        run.free()
        return buffer

    for rank, found in enumerate(run_loopback(size, body)):
        ends = [contract.ends(rank, owner) for owner in owners]
        np.testing.assert_allclose(found[ends], expected[ends], rtol=1e-12, atol=1e-12)


@settings(max_examples=300)
@given(written=detours(), data=st.data())
def test_detours_without_a_transfer_or_with_another_one_are_refused(written, data):
    """Or give the same results, where the data is still in another copy, too."""
    places = [
        (rank, number, kind, at)
        for rank, program in enumerate(written)
        for number, step in enumerate(program.steps)
        for kind in ("sends", "receives")
        for at in range(len(getattr(step, kind)))
    ]
    assume(places)
    rank, number, kind, at = data.draw(st.sampled_from(places))
    step = written[rank].steps[number]
    transfers = list(getattr(step, kind))
    transfer, changes = transfers[at], ["left out", "moved"]
    if kind == "receives" and COLLECTIVES[written[0].collective].reduces:
        changes.append("combined")
    match data.draw(st.sampled_from(changes)):
        case "left out":
            transfers[at : at + 1] = []
        case "moved":
            by = data.draw(st.integers(1, written[0].scratch)) * written[0].chunks
            moved = range((transfer.chunks.start + by) % written[0].places, written[0].places)[: len(transfer.chunks)]
            transfers[at] = replace(transfer, chunks=moved)
        case "combined":
            transfers[at] = replace(transfer, combine=not transfer.combine)
    steps = list(written[rank].steps)
    steps[number] = replace(step, **{kind: tuple(transfers)})
    broken = [*written[:rank], replace(written[rank], steps=tuple(steps)), *written[rank + 1 :]]
    if fault_of(broken, verify) is None:
        found = [[np.full(each.chunks, 1 << each.rank) for each in written] for _ in "12"]
        for all_programs, buffers in zip((written, broken), found, strict=True):
            interpret(all_programs, buffers)
        ends = COLLECTIVES[written[0].collective].ends
        for each, due, there in zip(written, *found, strict=True):
            needed = [ends(each.rank, each.owner(chunk)) for chunk in range(each.chunks)]
            assert (due == there)[needed].all()


def swapping():
    """Rank 0 swaps its chunks with their copies in one step, and adds the copies."""
    arrives, whole, copies = Step((), (Receive(1, range(2, 4)),)), range(2), range(2, 4)
    swap = Step((Send(0, whole), Send(0, copies)), (Receive(0, copies), Receive(0, whole)))
    total = Step((Send(0, copies),), (Receive(0, whole, combine=True),))
    steps = [(arrives, swap, total), (Step((Send(0, whole),)), Step(), Step())]
    return [Program("reduce", rank, 2, each, scratch=1) for rank, each in enumerate(steps)]


def test_what_a_step_overwrites_is_copied_before(monkeypatch):
    verify(swapping())
    check(swapping(), 10, 3)

    def no_copy(writer, number, message):
        writer.written = set()
        add_send(writer, number, message)

    monkeypatch.setattr(Writer, "add_send", no_copy)
    with pytest.raises(ProgramError, match="rank 0, step 2, message 0: is combined twice"):
        check(swapping(), 10, 3)
