"""Scripts and their execution, on programs that no sane person would write: whatever a program says is what happens."""

import itertools
import math
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
from dear_mpi.collectives.program.program import COLLECTIVES, Partition, Program, Receive, Send, Step, by_peer
from dear_mpi.collectives.transports.loopback import run_loopback


@st.composite
def random_programs(draw):
    """Programs of 2 to 4 ranks in which, step by step, random chunks go from random ranks to others, or to themselves.

    Only scratch that holds something is sent, or combined with what arrives.
    """
    size, scratch = draw(st.integers(2, 4)), draw(st.integers(0, 2))
    steps = [[Step() for _ in range(size)] for _ in range(draw(st.integers(1, 6)))]
    held = [set(range(size)) for _ in range(size)]
    for row in steps:
        before = [set(each) for each in held]
        for _ in range(draw(st.integers(1, 6))):
            source, dest = draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))
            start = draw(st.integers(0, size - 1))
            chunks = range(start, draw(st.integers(start + 1, size)))
            sent, received = (copied(chunks, size * draw(st.integers(0, scratch))) for _ in range(2))
            combine = draw(st.booleans())
            if (source == dest and not scratch) or clashes(row[dest], received, combine):
                continue
            if not before[source].issuperset(sent) or (combine and not before[dest].issuperset(received)):
                continue
            row[source] = Step((*row[source].sends, Send(dest, sent)), row[source].receives)
            row[dest] = Step(row[dest].sends, (*row[dest].receives, Receive(source, received, combine)))
            held[dest] |= {*received}
    columns = [tuple(row[rank] for row in steps) for rank in range(size)]
    return [Program("all_reduce", rank, size, each, scratch=scratch) for rank, each in enumerate(columns)]


def copied(chunks, by):
    return range(chunks.start + by, chunks.stop + by)


def clashes(step, chunks, combine):
    """Two receives of one chunk race, unless both combine the same chunks."""
    shared = [other for other in step.receives if set(other.chunks) & set(chunks)]
    return any(not (combine and other.combine and other.chunks == chunks) for other in shared)


def cut(program, count, segment):
    return messages(program, Partition.of(count, program.size).chunks(program.parts), segment)


def interpret(written, buffers):
    """The meaning of a program, word by word: each step reads what the buffers held when it began."""
    first = written[0]
    borders = Partition.of(buffers[0].size, first.size).chunks(first.parts)
    cuts = [slice(*each) for each in itertools.pairwise(borders)]
    memory = [[buffer[cut] for cut in cuts] for buffer in buffers]  # views
    for row in memory:
        row += [np.zeros_like(row[chunk % first.chunks]) for chunk in range(first.chunks, first.places)]
    for number in range(len(first.steps)):
        before = [[chunk.copy() for chunk in row] for row in memory]
        sent = {
            (source.rank, dest): [chunk for each in sends for chunk in each.chunks]
            for source in written
            for dest, sends in by_peer(source.steps[number].sends).items()
        }
        for program in written:
            for receive in program.steps[number].receives:
                for chunk in receive.chunks:
                    arriving = before[receive.peer][sent[receive.peer, program.rank].pop(0)]
                    memory[program.rank][chunk][...] = arriving + (
                        memory[program.rank][chunk] if receive.combine else 0
                    )


@settings(max_examples=200)
@given(
    written=random_programs(),
    count=st.integers(0, 40),
    segment=st.sampled_from([1, 2, 3, 7, 100]),
    window=st.integers(1, 20),
    packed=st.sampled_from([math.inf, 0, 4]),
    staged=st.booleans(),
)
def test_any_program_does_what_it_says(written, count, segment, window, packed, staged):
    size = len(written)
    expected = [np.arange(count) + 1000 * rank for rank in range(size)]
    interpret(written, expected)

    def body(transport):
        buffer = np.arange(count) + 1000 * transport.rank
        chunks = Partition.of(count, size).chunks()
        program = written[transport.rank]
        how = {"op": "sum", "segment": segment, "tag": 1, "window": window, "packed": packed, "staged": staged}
        run = MessagesRun(program, buffer, chunks, transport, **how)
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
                runs = [run for message in parts for run in message.runs]
                borders = [start] + [run.stop for run in runs]
                assert [run.start for run in runs] == borders[:-1]
                assert borders[-1] == stop
                assert all(0 < message.length <= segment for message in parts)


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
            for packed in (0.0, 2.0 * segment):  # none, and some
                check(written, count, segment, packed=packed)
            check(written, count, segment, window=1)
            check(written, count, segment, window=17)
            check(written, count, segment, window=17, staged=True)
            check(written, count, segment, staged=True)


def test_chunks_that_travel_together_share_a_message():
    """The cuts above prove merged messages only if there are any."""
    written = programs("bruck", "all_gather", 8)
    chunks = Partition.of(8, 8).chunks()
    assert any(len(message.blocks) == 3 for message in messages(written[0], chunks, segment=3))


def runs_of(message):
    return [(run.start, run.stop) for run in message.runs]


def test_scattered_chunks_are_packed_as_far_as_they_fit():
    """At both ends alike; neighbours stay one range, and are sent from where they are."""
    sends = (Send(0, range(5, 6)), Send(0, range(3)), Send(0, range(3, 4)))
    program = Program("all_gather", 5, 6, (Step(sends), Step((), tuple(Receive(0, each.chunks) for each in sends))))
    chunks = range(0, 13, 2)
    for segment, packed, runs in (
        (100, math.inf, [[(10, 12), (0, 8)]]),
        (8, math.inf, [[(10, 12), (0, 6)], [(6, 8)]]),
        (100, 8, [[(10, 12), (0, 8)]]),  # two messages less
        (100, 7, [[(10, 12)], [(0, 6)], [(6, 8)]]),
        (100, 0, [[(10, 12)], [(0, 6)], [(6, 8)]]),
        (4, math.inf, [[(10, 12)], [(0, 4)], [(4, 8)]]),
    ):
        cut = messages(program, chunks, segment, packed=packed)
        assert [runs_of(each) for each in cut if not each.incoming] == runs, segment
        assert [runs_of(each) for each in cut if each.incoming] == runs, segment
        listing = write_instructions(cut)
        assert {*listing.side_buffers} == {n for n, each in enumerate(cut) if len(each.runs) > 1}


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
