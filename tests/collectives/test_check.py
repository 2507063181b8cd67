"""Whole plans, rehearsed on symbols: every algorithm under segments, windows and staging; and planted faults."""

import pytest

from dear_mpi.collectives import ALGORITHMS, ProgramError, programs
from dear_mpi.collectives.lowering.check import check_instructions
from dear_mpi.collectives.lowering.instructions import BEGIN, Writer

PAIRS = [(name, collective) for name, row in ALGORITHMS.items() for collective in row if name != "shared"]


@pytest.mark.parametrize(("name", "collective"), PAIRS)
def test_every_plan_is_right_under_segments(name, collective):
    for size in (1, 2, 3, 5, 8):
        written = programs(name, collective, size, hosts=[rank * 3 // size for rank in range(size)], pieces=3)
        for segments in (1, 2, 5):
            check_instructions(written, segments)
            check_instructions(written, segments, window=1)
            check_instructions(written, segments, staged=True)


def one_slot(writer, message):
    return message.peer, message.incoming, 0


def too_early(writer, number, message):
    add_send(writer, number, message)
    writer.start_time[number] = BEGIN


def forget_sends(writer, number, message):
    add_receive(writer, number, message)
    writer.start_after[number] = set()


def no_window(writer, number, message):
    writer.lanes[message.peer, message.incoming].append(number)


add_receive, add_send = Writer.add_receive, Writer.add_send

# (what is planted, into which method, in how many segments, what is found)
FAULTS = [
    (
        "one receive buffer for two",
        "side_buffer",
        one_slot,
        4,
        "step 0, segment 1: lands where another message still is",
    ),
    ("no window", "keep_lane", no_window, 4, "lands where another message still is"),
    ("sends that wait for nothing", "add_send", too_early, 1, "step 0, segment 0: overwrites what rank 0, step 1, seg"),
    (
        "receives that wait for no send",
        "add_receive",
        forget_sends,
        1,
        "segment 0: overwrites what rank 0, step 0, seg",
    ),
]


@pytest.mark.parametrize(("what", "method", "planted", "segments", "message"), FAULTS, ids=[row[0] for row in FAULTS])
def test_faults_are_found(monkeypatch, what, method, planted, segments, message):
    monkeypatch.setattr(Writer, method, planted)
    with pytest.raises(ProgramError, match=message):
        check_instructions(programs("ring", "all_reduce", 2), segments)


def test_a_staged_send_keeps_its_place(monkeypatch):
    monkeypatch.setattr(Writer, "side_buffer", one_slot)
    with pytest.raises(ProgramError, match="leaves from where rank 0, step 0, segment 0 still does"):
        check_instructions(programs("ring", "all_gather", 3), segments=4, staged=True)
