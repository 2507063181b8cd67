"""Instruction lists are proved on symbols: every algorithm, however it is cut, staged or not; and planted faults."""

import pytest

from dear_mpi.collectives import ALGORITHMS, Partition, ProgramError, programs
from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.lowering.check import check_instructions
from dear_mpi.collectives.lowering.messages import BEGIN, Writer, messages
from dear_mpi.collectives.program.program import COLLECTIVES

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
