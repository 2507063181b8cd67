"""Write programs as time-independent traces, which SimGrid replays on a network of its own: an oracle for ``cost``.

A trace says what a rank does, step by step, and not how long it takes. One tag is enough, since MPI matches the
messages of one pair in program order. A message without bytes stays in the trace: in ``cost``, too, it takes its
latency. Sums are left out: a trace compares with ``cost`` where gamma and o are 0.

Source: SimGrid's manual, "Tracing and replaying (SMPI)"; Desprez, Markomanolis and Suter, Improving the accuracy and
efficiency of time-independent trace replay (2012).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from dear_mpi.collectives.program.partition import Partition
from dear_mpi.collectives.program.program import Program

TAG = 0
BYTE = 6
LONGEST = 2**31 - 1  # SimGrid counts the bytes of a message in an int, and wraps around


def trace_lines(program: Program, offsets: Sequence[int]) -> Iterator[str]:
    """The lines of one rank's trace; ``offsets`` are the borders of the chunks in bytes (``Partition.offsets``).

    Raises:
        ValueError: a message has 2 GiB or more.

    >>> from dear_mpi.collectives.algorithms.registry import programs
    >>> for line in trace_lines(programs("ring", "all_gather", 2)[0], [0, 40, 72]):
    ...     print(line)
    0 init
    0 irecv 1 0 32 6
    0 isend 1 0 40 6
    0 waitall
    0 finalize

    That is: from rank 1, tag 0, 32 bytes (6 is the code of the byte type); 40 bytes to rank 1; the end of the step.
    """
    yield f"{program.rank} init"
    for step in program.steps:
        for verb, transfers in (("irecv", step.receives), ("isend", step.sends)):
            for transfer in transfers:
                nbytes = offsets[transfer.chunks.stop] - offsets[transfer.chunks.start]
                if nbytes > LONGEST:
                    what = f"{verb} of rank {program.rank} with rank {transfer.peer}"
                    raise ValueError(f"{what} has {nbytes} bytes: SimGrid takes at most {LONGEST} in a message")
                yield f"{program.rank} {verb} {transfer.peer} {TAG} {nbytes} {BYTE}"
        if step.receives or step.sends:
            yield f"{program.rank} waitall"
    yield f"{program.rank} finalize"


def write_traces(programs: Sequence[Program], count: int, itemsize: int, folder: Path) -> Path:
    """Write a trace for each rank, for a buffer of ``count`` elements in equal shards; the path of their index.

    The index names its files without their folder: replay it from there.
    """
    offsets = Partition.of(count, len(programs)).offsets(programs[0].parts, itemsize)
    names = [f"rank-{program.rank}.txt" for program in programs]
    for name, program in zip(names, programs, strict=True):
        (folder / name).write_text("\n".join(trace_lines(program, offsets)) + "\n", encoding="utf-8")
    index = folder / "index.txt"
    index.write_text("\n".join(names) + "\n", encoding="utf-8")
    return index
