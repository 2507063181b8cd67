"""Scripts and their execution, on programs that no sane person would write: whatever a program says is what happens."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dear_mpi.collectives import ALGORITHMS, ProgramError, chunk_bounds, make_plan, programs
from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.lowering.check import check_instructions
from dear_mpi.collectives.lowering.messages import BEGIN, WINDOW, Writer, messages, write_instructions
from dear_mpi.collectives.plans.runners.messages import MessagesRun
from dear_mpi.collectives.program.program import COLLECTIVES, Partition, Program, Receive, Send, Step
from dear_mpi.collectives.transports.loopback import run_loopback


@st.composite
def random_programs(draw):
    """Programs of 2 to 4 ranks in which, step by step, random chunks go from random ranks to others."""
    size = draw(st.integers(2, 4))
    steps = [[Step() for _ in range(size)] for _ in range(draw(st.integers(1, 6)))]
    for row in steps:
        for _ in range(draw(st.integers(1, 4))):
            source, dest = draw(st.permutations(range(size)))[:2]
            start = draw(st.integers(0, size - 1))
            chunks = range(start, draw(st.integers(start + 1, size)))
            combine = draw(st.booleans())
            if clashes(row[dest], chunks, combine):
                continue
            row[source] = Step((*row[source].sends, Send(dest, chunks)), row[source].receives)
            row[dest] = Step(row[dest].sends, (*row[dest].receives, Receive(source, chunks, combine)))
    return [Program("all_reduce", rank, size, tuple(row[rank] for row in steps)) for rank in range(size)]


def clashes(step, chunks, combine):
    """Two receives of one chunk race, unless both combine the same chunks."""
    shared = [other for other in step.receives if set(other.chunks) & set(chunks)]
    return any(not (combine and other.combine and other.chunks == chunks) for other in shared)


def cut(program, count, segment):
    return messages(program, Partition.of(count, program.size).chunks(program.parts), segment)


def interpret(written, buffers):
    """The meaning of a program, word by word: each step reads what the buffers held when it began."""
    for number in range(len(written[0].steps)):
        before = [buffer.copy() for buffer in buffers]
        for program, buffer in zip(written, buffers, strict=True):
            for receive in program.steps[number].receives:
                start, _ = chunk_bounds(buffer.size, program.size, receive.chunks[0])
                _, stop = chunk_bounds(buffer.size, program.size, receive.chunks[-1])
                arriving = before[receive.peer][start:stop]
                buffer[start:stop] = buffer[start:stop] + arriving if receive.combine else arriving


@settings(max_examples=200)
@given(
    written=random_programs(),
    count=st.integers(0, 40),
    segment=st.sampled_from([1, 2, 3, 7, 100]),
    window=st.integers(1, 20),
)
def test_any_program_does_what_it_says(written, count, segment, window):
    size = len(written)
    expected = [np.arange(count) + 1000 * rank for rank in range(size)]
    interpret(written, expected)

    def body(transport):
        buffer = np.arange(count) + 1000 * transport.rank
        chunks = Partition.of(count, size).chunks()
        program = written[transport.rank]
        run = MessagesRun(program, buffer, chunks, transport, op="sum", segment=segment, tag=1, window=window)
        run.start()
        run.wait()
        run.free()
        return buffer

    found = run_loopback(size, body)
    for rank in range(size):
        np.testing.assert_array_equal(found[rank], expected[rank])


@settings(max_examples=60)
@given(
    name=st.sampled_from(["ring", "naive", "ordered", "bruck", "hierarchical"]),
    size=st.integers(1, 6),
    count=st.integers(0, 60),
    segment=st.integers(1, 20),
    window=st.integers(1, 20),
)
def test_each_message_is_started_once_then_awaited_once_within_the_window(name, size, count, segment, window):
    for program in programs(name, "all_reduce", size, hosts=[rank // 2 for rank in range(size)]):
        listing = write_instructions(cut(program, count, segment), window)
        started, over = [], []
        for instruction in listing.instructions:
            over.extend(instruction.waits)
            assert set(over) <= set(started)
            assert set(instruction.merges) <= set(over)
            started.extend(instruction.starts)
            for lane in lanes(listing.messages, started, over):
                assert lane <= window
        assert sorted(started) == sorted(over) == list(range(len(listing.messages)))


def lanes(sent, started, over):
    """How many messages are under way in each direction with each peer; sends are taken to end when awaited."""
    under_way = [(sent[number].peer, sent[number].incoming) for number in set(started) - set(over)]
    return [under_way.count(lane) for lane in set(under_way)]


@pytest.mark.parametrize(("hosts", "posted"), [((0, 0), 2), ((0, 1), 17)])
def test_plans_between_hosts_post_a_mebibyte_of_messages(hosts, posted):
    def body(transport):
        with make_plan("reduce_scatter", np.ones(1 << 19), transport, segment_bytes=60 * 1024) as plan:
            listing = plan.run.listing
        return [listing.messages[number].incoming for number in listing.instructions[0].starts]

    for starts in run_loopback(2, body, hosts=hosts):
        assert starts == [False] * posted + [True] * posted


@given(count=st.integers(0, 200), size=st.integers(1, 7), segment=st.integers(1, 30))
def test_messages_cover_each_transfer_exactly(count, size, segment):
    for program in programs("naive", "all_gather", size):
        for number, step in enumerate(program.steps):
            of_step = [message for message in cut(program, count, segment) if message.key[0] == number]
            for transfer in (*step.sends, *step.receives):
                start, _ = chunk_bounds(count, size, transfer.chunks[0])
                _, stop = chunk_bounds(count, size, transfer.chunks[-1])
                parts = [m for m in of_step if m.peer == transfer.peer and m.incoming == isinstance(transfer, Receive)]
                borders = [start] + [message.stop for message in parts]
                assert [message.start for message in parts] == borders[:-1]
                assert borders[-1] == stop
                assert all(0 < message.stop - message.start <= segment for message in parts)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_ring_sends_on_what_has_arrived_before_the_step_is_over(size):
    """Dependencies are by segment: the first message of step 1 starts before the last one of step 0 has arrived."""
    sent = cut(programs("ring", "all_reduce", size)[0], 100 * size, 10)
    listing = write_instructions(sent)
    entry_of_start = {
        number: at for at, instruction in enumerate(listing.instructions) for number in instruction.starts
    }
    entry_of_wait = {number: at for at, instruction in enumerate(listing.instructions) for number in instruction.waits}
    first_of_step_1 = next(n for n, m in enumerate(sent) if m.key == (1, 0) and not m.incoming)
    last_of_step_0 = next(n for n, m in enumerate(sent) if m.key == (0, 9) and m.incoming)
    assert entry_of_start[first_of_step_1] <= entry_of_wait[last_of_step_0]


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_segments_beside_the_buffer_per_peer_and_direction(name, staged):
    """However many segments there are: what a plan needs beside the buffer does not grow with it."""
    for collective, size, segment in itertools.product(ALGORITHMS[name], (2, 3, 5, 8), (1, 3, 100)):
        for program in programs(name, collective, size):
            listing = write_instructions(cut(program, 10 * size + 1, segment), staged=staged)
            lanes = Counter((peer, incoming) for peer, incoming, _ in set(listing.side_buffers.values()))
            assert max(lanes.values(), default=0) <= WINDOW


# Instruction lists are proved on symbols: every algorithm, however it is cut, staged or not; and planted faults.

PAIRS = [(name, collective) for name, row in ALGORITHMS.items() for collective in row if runner_of(name) == "messages"]


def check(written, count, segment, **options):
    """For a buffer of so many elements, as a plan would cut it."""
    chunks = Partition.of(count, len(written)).chunks(written[0].parts)
    check_instructions(written, chunks, segment, **options)


# Elements of the buffer for each chunk, and of a segment: single blocks; several segments in a chunk, the last of them
# shorter; several chunks in a message; and shards that differ, some of them empty.
CUTS = [(1, 1), (2, 1), (5, 2), (1, 3), (2, 5), (0.6, 1), (1.4, 3)]


@pytest.mark.parametrize(("name", "collective"), PAIRS)
def test_every_plan_is_right_however_it_is_cut(name, collective):
    for size in (1, 2, 3, 5, 8):
        written = programs(name, collective, size, hosts=[rank * 3 // size for rank in range(size)], pieces=3)
        for per_chunk, segment in CUTS:
            count = int(per_chunk * written[0].chunks)
            count -= count % size if COLLECTIVES[collective].addressed else 0  # its shards are equal
            check(written, count, segment)
            check(written, count, segment, window=1)
            check(written, count, segment, window=17)
            check(written, count, segment, window=17, staged=True)
            check(written, count, segment, staged=True)


def test_chunks_that_travel_together_share_a_message():
    """The cuts above prove merged messages only if there are any."""
    written = programs("bruck", "all_gather", 8)
    chunks = Partition.of(8, 8).chunks()
    assert any(len(message.blocks) == 3 for message in messages(written[0], chunks, segment=3))


def one_side_buffer(writer, message):
    return message.peer, message.incoming, 0


def too_early(writer, number, message):
    add_send(writer, number, message)
    writer.start_time[number] = BEGIN


def forget_sends(writer, number, message):
    add_receive(writer, number, message)
    writer.after[number] = set()


def no_window(writer, number, message):
    writer.lanes[message.peer, message.incoming].append(number)


add_receive, add_send = Writer.add_receive, Writer.add_send


def needs(message, other):
    return f"{message}: needs memory that rank 0, {other} still uses"


# (what is planted, into which method, in how many segments, what is found)
FAULTS = [
    ("one side buffer for two", "side_buffer", one_side_buffer, 4, needs("step 0, message 1", "step 0, message 0")),
    ("no window", "keep_lane", no_window, 4, needs("step 0, message 2", "step 0, message 0")),
    ("sends that wait for nothing", "add_send", too_early, 1, needs("step 0, message 0", "step 1, message 0")),
    ("receives that wait for no send", "add_receive", forget_sends, 1, needs("step 1, message 0", "step 0, message 0")),
]


@pytest.mark.parametrize(("what", "method", "planted", "segments", "message"), FAULTS, ids=[row[0] for row in FAULTS])
def test_faults_are_found(monkeypatch, what, method, planted, segments, message):
    monkeypatch.setattr(Writer, method, planted)
    with pytest.raises(ProgramError, match=message):
        check(programs("ring", "all_reduce", 2), 2 * segments, 1)


def test_a_staged_send_keeps_its_place(monkeypatch):
    monkeypatch.setattr(Writer, "side_buffer", one_side_buffer)
    with pytest.raises(ProgramError, match=needs("step 0, message 1", "step 0, message 0")):
        check(programs("ring", "all_gather", 3), 12, 1, staged=True)
