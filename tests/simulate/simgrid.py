"""Replay programs by SimGrid, which is not ours: it routes messages, and lets those that meet on a link share it.

An oracle for ``cost``. On a star messages begin, share ports and end as in ``cost`` (decision 0013): times are equal,
except for 16 bytes of envelope that SimGrid adds to each message. It replays time-independent traces: what a rank does,
step by step, and not how long it takes.

Source: Casanova, Giersch, Legrand, Quinson and Suter, Versatile, scalable, and accurate simulation of distributed
applications and platforms (2014). Tried with SimGrid 3.32.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from dear_mpi.collectives.program.program import Partition, by_peer

# The rates of flows follow from max-min fairness alone; all messages go by rendezvous; computing takes no time.
MODEL = {
    "network/model": "CM02", "network/TCP-gamma": "0", "network/crosstraffic": "0", "smpi/os": "0:0:0",
    "smpi/or": "0:0:0", "smpi/ois": "0:0:0", "smpi/async-small-thresh": "0", "smpi/send-is-detached-thresh": "0",
    "smpi/host-speed": "1Gf", "smpi/simulate-computation": "no",
}  # fmt: skip
# The message of the end has microseconds; its stamp can have more digits. %e is a blank, which smpirun would split at.
LOG = "smpi_replay.fmt:%.12r%e%m%n"
END = re.compile(r"^([0-9.]+) Simulation time", re.MULTILINE)
TAG, BYTE = 0, 6  # of every message, and the code of its type
LONGEST = 2**31 - 1  # SimGrid counts the bytes of a message in an int, and wraps around
PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="network" prefix="rank-" suffix="" radical="0-{last}" speed="1Gf" bw="{bandwidth!r}Bps" lat="{latency!r}s"
    sharing_policy="SPLITDUPLEX"{shape}/>
</platform>
"""


def replay(programs, count, itemsize, *, alpha=0.0, beta=1.0, places=None, shape="", platform="", limit_s=600.0):
    """The seconds until the last rank is done, for a buffer of ``count`` elements in equal shards.

    Args:
        alpha: seconds of latency through two links; each further link adds half of it.
        beta: seconds per byte of a link, in each direction.
        places: for ranks, if there are more of them.
        shape: attributes of the cluster in XML; default: a star.
        platform: XML in place of a cluster, of hosts rank-0 and so on.
        limit_s: of the wall clock, after which SimGrid is ended. It replays some 40 000 messages a second.

    Raises:
        ValueError: SimGrid is not installed, failed, or took too long.
    """
    smpirun = shutil.which("smpirun")
    if smpirun is None:
        raise ValueError("SimGrid is not installed (Debian, Ubuntu: apt-get install libsimgrid-dev)")
    with tempfile.TemporaryDirectory(prefix="dear-mpi-") as name:
        folder, size = Path(name), len(programs)
        write_traces(programs, count, itemsize, folder)
        link = {"bandwidth": 1 / beta, "latency": alpha / 2}
        described = PLATFORM.format(last=(places or size) - 1, shape=shape, **link)
        (folder / "platform.xml").write_text(platform or described, encoding="utf-8")
        (folder / "hosts.txt").write_text("".join(f"rank-{rank}\n" for rank in range(size)), encoding="utf-8")
        files = ["-platform", "platform.xml", "-hostfile", "hosts.txt", "-replay", "index.txt"]
        settings = [f"--cfg={key}:{value}" for key, value in MODEL.items()]
        return end_of(
            run([smpirun, "-no-privatize", "-np", str(size), *files, *settings, f"--log={LOG}"], folder, limit_s)
        )


def run(command, folder, limit_s):
    """What a command writes; its children end with it: smpirun is a shell, and what it starts would outlive it."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
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
        raise ValueError(f"SimGrid failed with exit status {job.returncode}: {' '.join(output.split())[:9000]}")
    return output


def end_of(output):
    """The seconds of the end. SimGrid writes one whenever no rank is active: also before late ranks begin."""
    found = [float(time_s) for time_s in END.findall(output)]
    if not found:
        raise ValueError(f"SimGrid did not say how long it took; it says: {' '.join(output.split())[:9000]}")
    return max(found)


def trace_lines(program, offsets):
    """The lines of one rank's trace; ``offsets`` are the borders of the chunks in bytes.

    All transfers of a step between two ranks are one message. One tag is enough, since MPI matches the messages of one
    pair in program order. A message without bytes stays: in ``cost`` it takes its latency, too. Sums are left out, and
    so is what a rank sends to itself.
    """
    yield f"{program.rank} init"
    for step in program.steps:
        sent = False
        for verb, transfers in (("irecv", step.receives), ("isend", step.sends)):
            for peer, group in by_peer(transfers).items():
                firsts = [(each.chunks.start % program.chunks, len(each.chunks)) for each in group]
                nbytes = sum(offsets[first + length] - offsets[first] for first, length in firsts)
                assert nbytes <= LONGEST, f"{verb} of rank {program.rank} has {nbytes} bytes"
                if peer != program.rank:
                    sent = True
                    yield f"{program.rank} {verb} {peer} {TAG} {nbytes} {BYTE}"
        if sent:
            yield f"{program.rank} waitall"
    yield f"{program.rank} finalize"


def write_traces(programs, count, itemsize, folder):
    """Write a trace for each rank, and index.txt, which names them without their folder."""
    offsets = [border * itemsize for border in Partition.of(count, len(programs)).chunks(programs[0].parts)]
    names = [f"rank-{program.rank}.txt" for program in programs]
    for name, program in zip(names, programs, strict=True):
        (folder / name).write_text("\n".join(trace_lines(program, offsets)) + "\n", encoding="utf-8")
    (folder / "index.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
