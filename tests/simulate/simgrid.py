"""Replay programs by SimGrid, which is not ours: it routes messages, and lets those that meet on a link share it.

An oracle for ``cost``, on a star. Its MPI layer is set up as a plain alpha-beta network: no
time of the processor, no protocols by size, no loss of bandwidth.

On a star messages begin, share ports and end as in ``cost`` (decision 0013), so that times are the same, but for 16
bytes of envelope that SimGrid adds to each message. Two rules differ, and change no time of ours: several messages
between two ranks share links, too, where in ``cost`` they keep their order; and shares are in inverse proportion to the
latency of the whole way, as under TCP, which is the same for all ways of a star.

It replays time-independent traces, which say what a rank does, step by step, and not how long it takes.

Source: Casanova, Giersch, Legrand, Quinson and Suter, Versatile, scalable, and accurate simulation of distributed
applications and platforms (2014); Desprez, Markomanolis and Suter, Improving the accuracy and efficiency of
time-independent trace replay (2012). Tried with SimGrid 3.32.
"""

import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dear_mpi.collectives.program.partition import Partition
from dear_mpi.collectives.program.program import Program

# The rates of flows follow from max-min fairness alone; all messages go by rendezvous; computing takes no time.
MODEL = {
    "network/model": "CM02",
    "network/TCP-gamma": "0",
    "network/crosstraffic": "0",
    "smpi/os": "0:0:0",
    "smpi/or": "0:0:0",
    "smpi/ois": "0:0:0",
    "smpi/async-small-thresh": "0",
    "smpi/send-is-detached-thresh": "0",
    "smpi/host-speed": "1Gf",
    "smpi/simulate-computation": "no",
}
# The message of the end has microseconds; its stamp can have more digits. %e is a blank, which smpirun would split at.
LOG = "smpi_replay.fmt:%.12r%e%m%n"
END = re.compile(r"^([0-9.]+) Simulation time", re.MULTILINE)
TAG, BYTE = 0, 6  # of every message, and the code of its type
LONGEST = 2**31 - 1  # SimGrid counts the bytes of a message in an int, and wraps around
SAID = 2  # lines of SimGrid's that a message repeats


def replay(
    programs: Sequence[Program],
    count: int,
    itemsize: int,
    *,
    alpha: float,
    beta: float,
    places: int | None = None,
    shape: str = "",
    limit_s: float = 600.0,
) -> float:
    """The seconds until the last rank is done, for a buffer of ``count`` elements in equal shards.

    Args:
        alpha: seconds of latency through two links; each further link adds half of it.
        beta: seconds per byte of a link, in each direction.
        places: for ranks, if there are more of them.
        shape: attributes of the cluster in XML; default: a star.
        limit_s: of the wall clock, after which SimGrid is ended. It replays some 40 000 messages a second.

    Raises:
        ValueError: SimGrid is not installed, failed, or took too long.
    """
    described = platform(places or len(programs), alpha=alpha, beta=beta, shape=shape)
    smpirun = find_smpirun()
    with tempfile.TemporaryDirectory(prefix="dear-mpi-") as name:
        folder = Path(name)
        index = write_traces(programs, count, itemsize, folder)
        (folder / "platform.xml").write_text(described, encoding="utf-8")
        hosts = "".join(f"rank-{rank}\n" for rank in range(len(programs)))
        (folder / "hosts.txt").write_text(hosts, encoding="utf-8")
        files = ["-platform", "platform.xml", "-hostfile", "hosts.txt", "-replay", index.name]
        settings = [f"--cfg={key}:{value}" for key, value in MODEL.items()]
        command = [smpirun, "-no-privatize", "-np", str(len(programs)), *files, *settings, f"--log={LOG}"]
        return end_of(run(command, folder, limit_s))


def find_smpirun() -> str:
    """The path of SimGrid's launcher.

    Raises:
        ValueError: it is not installed.
    """
    found = shutil.which("smpirun")
    if found is None:
        raise ValueError(
            "SimGrid is not installed: there is no smpirun in PATH. Debian and Ubuntu have it in the package"
            " libsimgrid-dev (apt-get install libsimgrid-dev)"
        )
    return found


def run(command: Sequence[str], folder: Path, limit_s: float) -> str:
    """What a command writes, run in a folder; its children end with it, also where the time is over.

    Raises:
        ValueError: it failed, or took longer than ``limit_s`` seconds.
    """
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    # A session of its own: smpirun is a shell, and what it starts would outlive it.
    job = subprocess.Popen(command, cwd=folder, **pipes, text=True, errors="replace", start_new_session=True)
    try:
        output, _ = job.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise ValueError(f"SimGrid was not done after {limit_s:g} s: give it fewer messages, or more time") from None
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.communicate()
    if job.returncode != 0:
        raise ValueError(f"SimGrid failed with exit status {job.returncode}: {first_words(output)}")
    return str(output)


def end_of(output: str) -> float:
    """The seconds of the end in what SimGrid has written.

    It writes one whenever no rank is active: also where the first ranks have nothing to do, before the others begin.
    """
    found = [float(time_s) for time_s in END.findall(output)]
    if not found:
        raise ValueError(f"SimGrid did not say how long it took; it says: {first_words(output)}")
    return max(found)


def first_words(output: str) -> str:
    """The first lines that are not about settings: what comes after them is a stack, or the state of each rank."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and "Configuration change" not in line]
    return "; ".join(lines[:SAID]) or "nothing"


def trace_lines(program: Program, offsets: Sequence[int]) -> Iterator[str]:
    """The lines of one rank's trace; ``offsets`` are the borders of the chunks in bytes (``Partition.offsets``).

    One tag is enough, since MPI matches the messages of one pair in program order. A message without bytes stays in the
    trace: in ``cost``, too, it takes its latency. Sums are left out: compare with ``cost`` where gamma and o are 0.

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
    offsets = [border * itemsize for border in Partition.of(count, len(programs)).chunks(programs[0].parts)]
    names = [f"rank-{program.rank}.txt" for program in programs]
    for name, program in zip(names, programs, strict=True):
        (folder / name).write_text("\n".join(trace_lines(program, offsets)) + "\n", encoding="utf-8")
    index = folder / "index.txt"
    index.write_text("\n".join(names) + "\n", encoding="utf-8")
    return index


def platform(ranks: int, *, alpha: float, beta: float, shape: str = "") -> str:
    """SimGrid's description of a network, as XML, with hosts ``rank-0``, ``rank-1`` and so on; see ``replay``.

    Raises:
        ValueError: there are no such links.
    """
    if not (0 <= alpha < math.inf and 0 < beta < math.inf):
        raise ValueError(f"SimGrid needs links of alpha >= 0 and beta > 0 seconds, not alpha {alpha} and beta {beta}")
    link = {"bandwidth": f"{1 / beta!r}Bps", "latency": f"{alpha / 2!r}s"}
    return PLATFORM.format(radical=f"0-{ranks - 1}", **link, shape=shape)


PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="network" prefix="rank-" suffix="" radical="{radical}" speed="1Gf" bw="{bandwidth}" lat="{latency}"
    sharing_policy="SPLITDUPLEX"{shape}/>
</platform>
"""
