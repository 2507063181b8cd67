"""Readers of what nccl-tests and OSU's benchmarks print, written from what these tools say of their output.

nccl-tests (its page on performance, and the texts of ``writeBenchmarkLineBody``): what begins with ``#`` is a remark;
every other line has size, count, type, redop and root, then time, algbw, busbw and #wrong out of place, and the same in
place.

OSU (print_only_header, print_stats, print_stats_validate of util/osu_util_mpi.c): a block begins with an empty line
and a title; ``# Datatype`` names the type, ``# Size`` (``#`` where there are no sizes) the columns; the first has 10
characters, the count of iterations 12, all others 18.
"""

import re
from typing import NamedTuple

TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16")
REDOPS = ("sum", "prod", "max", "min", "avg", "none")
FIRST, SECOND = 52, 33  # characters of what both placements share, and of each
OF_SIZES, OF_ITERATIONS, OF_OTHERS = 10, 12, 18


class Placed(NamedTuple):
    time_us: float
    algbw: float
    busbw: float
    wrong: float


class Line(NamedTuple):
    size: int
    count: int
    type: str
    redop: str
    root: int
    out_of_place: Placed
    in_place: Placed


def read_nccl(text):
    """The rows; an AssertionError where a line is none that nccl-tests could print."""
    rows = []
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        fields = line.split()
        assert len(fields) == 13
        size, count, kind, redop, root = fields[:5]
        assert kind in TYPES
        assert redop in REDOPS
        assert line[:FIRST].split() == fields[:5]  # the columns are where they are there
        assert line[FIRST : FIRST + SECOND].split() == fields[5:9]
        assert line[FIRST + SECOND : FIRST + 2 * SECOND].split() == fields[9:]
        out, inside = (Placed(*map(float, each)) for each in (fields[5:9], fields[9:]))
        rows.append(Line(int(size), int(count), kind, redop, int(root), out, inside))
    return rows


def busbw_by_readers(text):
    """Of out of place, what three kinds of programs read that people run over this output: those that take lines of 13
    fields which do not begin with ``#``, those that take lines of 13 fields which begin with a number, and those that
    count fields from the end, between the header and what is below the rows. These take the last of each."""
    lines = text.splitlines()
    first = max(number for number, line in enumerate(lines) if "out-of-place" in line) + 3
    last = max(number for number, line in enumerate(lines) if "Out of bounds values" in line)
    unlike_remarks = [line for line in lines if line and line[0] != "#" and len(line.split()) == 13]
    with_numbers = [line for line in lines if re.match("[0-9]", line.strip()) and len(line.split()) == 13]
    between = [line for line in lines[first:last] if re.match(" *[0-9]", line)]
    return [[float(line.split()[-6]) for line in found] for found in (unlike_remarks, with_numbers, between)]


def read_table(text):
    """The rows of our own table, by heads; two blanks or more are between columns."""
    rows, heads = [], []
    for line in text.splitlines():
        if line.startswith("# algorithm "):
            heads = re.split(" {2,}", line[2:])
        elif not line.startswith("#"):
            rows.append(dict(zip(heads, re.split(" {2,}", line.strip()), strict=True)))
    return rows


def unfolded(text):
    """The remarks of a table, each on a line of its own."""
    return re.sub(r"\n#     +(?=\S)", " ", text)


def footer_of(text):
    """What nccl-tests says in the end: how many values were out of bounds, and the average of busbw."""
    wrong = re.findall(r"^# Out of bounds values : (\d+) (OK|FAILED)$", text, re.MULTILINE)
    average = re.findall(r"^# Avg bus bandwidth    : (\S+)", text, re.MULTILINE)
    return [(int(count), word) for count, word in wrong], [float(value) for value in average]


class Block(NamedTuple):
    title: str
    datatype: str | None
    rows: list[dict[str, str]]


def cut(line, heads):
    """The fields of a line under these heads, by their widths; a size that is too long moves nothing."""
    cells, at = [], 0
    for head in heads:
        width = OF_SIZES if head == "Size" else OF_ITERATIONS if head == "Iterations" else OF_OTHERS
        cells.append(line[at : at + width])
        at += width
    assert not line[at:]
    return [cell.strip() for cell in cells]


def read_osu(text):
    blocks, heads = [], []
    for line in text.splitlines():
        if title := re.match(r"# (OSU MPI.* Test) v7\.4$", line):
            blocks.append(Block(title[1], None, []))
        elif datatype := re.match(r"# Datatype: (\w+)\.$", line):
            blocks[-1] = blocks[-1]._replace(datatype=datatype[1])
        elif re.match(r"# (Size +)?(Avg Latency\(us\)|Bandwidth \(MB/s\))", line):
            heads = re.split(r"\s{2,}", line[2:].strip())
        elif line and not line.startswith("#"):
            cells = cut(line, heads) if heads[0] == "Size" else line.split()
            blocks[-1].rows.append(dict(zip(heads, cells, strict=True)))
    return blocks
