"""Time the collectives of another MPI library than this job's in the same run: a second job carries them out.

    mpirun -n 4 dear-mpi bench          rank 0 starts:  mpirun.mpich -n 4 python -m dear_mpi.bench.makers.other_mpi
       sleeps, looking now and then <-- a line each --> sleeps until its turn

Rank 0 talks to it over its standard streams. A job that waits for the other one sleeps, and so leaves it the cores.
"""

import contextlib
import json
import os
import re
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import convert

from dear_mpi.bench.arrivals.arrival import TOGETHER, Arrival
from dear_mpi.bench.case import Case, Samples
from dear_mpi.bench.makers.native import OTHERS
from dear_mpi.bench.stand import Stand
from dear_mpi.bench.timing.interleaved import Interleaved
from dear_mpi.collectives.launch.launcher import child_environment
from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.collectives.transports.wait_policy import own_cores
from dear_mpi.ranks.world import World, run_world

MARK = "dear-mpi peer: "  # before each answer; a library may print lines of its own
ANSWER = re.compile(f"{MARK}(.*)\n".encode())
MODULE = "dear_mpi.bench.makers.other_mpi"  # this one, which each rank of the other job runs
START_S, ANSWER_S, END_S = 60.0, 300.0, 10.0
SEGMENT_BYTES = 1 << 20  # makes no difference to the library

# Open MPI's mpirun does not tell its ranks that their standard input is over: so the launcher itself has to be ended
# when rank 0 dies. And rank 0 may be bound to a core, on which all ranks of the job would crowd.
START = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
os.sched_setaffinity(0, range(os.cpu_count()))
os.execvp(sys.argv[1], sys.argv[1:])
"""
END = b"null\n"


def check_other(name: str, world: World, command: str) -> None:
    """A ValueError if it is the library of this job, or runs on several hosts and ``command`` does not say how."""
    if len(set(world.transport.hosts)) > 1 and not command:
        raise ValueError(f"algorithm {name!r} on several hosts needs --other-mpi, its launcher with their names")
    if world.transport.name.startswith(OTHERS[name]):
        other = next(other for other in OTHERS if other != name)
        raise ValueError(f"algorithm {name!r} is this job's own MPI, whose collective is 'native': take {other!r}")


class OtherMpi:
    """Collective: a job under the other MPI. All that it does happens on rank 0.

    ``command`` is its launcher; the one that ``make install`` put beside this Python if empty. An ArgumentError says
    that the job cannot be started, or is another MPI, or sees another number of ranks.
    """

    def __init__(self, name: str, world: World, command: str) -> None:
        self.name, self.world = name, world
        self.process: Any = None  # on rank 0, a Popen
        self.library: str = said_by_rank_0(world.transport, "bench", lambda: self.open(command), asleep=True)

    def open(self, command: str) -> str:
        size = self.world.size
        start, environment = launcher(self.name, command, size)
        if shutil.which(start[0]) is None:
            raise ValueError(f"the job for {self.name!r} cannot be started: there is no command {start[0]!r}")
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                START,
                *start,
                "-n",
                str(size),
                sys.executable,
                "-m",
                MODULE,
            ],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            bufsize=0,
            start_new_session=True,
        )
        try:
            ready = self.answer(START_S)
            if ready["ranks"] != size or not ready["library"].startswith(OTHERS[self.name]):
                found = f"{ready['library']} on {ready['ranks']}"
                raise ValueError(f"the job for {self.name!r} must be {OTHERS[self.name]} on {size} ranks, not {found}")
        except BaseException:
            self.close()
            raise
        return str(ready["library"])

    def run(
        self, case: Case, turns: int, calls: Sequence[str], arrival: Arrival = TOGETHER
    ) -> tuple[dict[str, Samples], dict[str, str]]:
        """Collective: so many samples of each of the library's calls; and why others cannot run."""
        native = {call.replace(self.name, "native", 1): call for call in calls}
        order = {"case": asdict(case), "turns": turns, "calls": list(native), "arrival": asdict(arrival)}
        answer = partial(self.answer, ANSWER_S, order)
        found, left_out = said_by_rank_0(self.world.transport, "bench", answer, asleep=True)
        samples = {native[name]: convert(each, Samples) for name, each in found.items()}
        return samples, {native[name]: why for name, why in left_out.items()}

    def answer(self, limit_s: float, order: Mapping[str, Any] | None = None) -> Any:
        """What the job says to an order, or at its start; a ValueError if it has ended or is too slow."""
        if order is not None:
            self.process.stdin.write(f"{json.dumps(order)}\n".encode())
        end, said = time.monotonic() + limit_s, b""
        while (answer := ANSWER.search(said)) is None:
            if not select.select([self.process.stdout], [], [], max(end - time.monotonic(), 0))[0]:
                raise ValueError(f"the job for {self.name!r} has not answered for {limit_s:.0f} s")
            found = os.read(self.process.stdout.fileno(), 1 << 16)
            if not found:
                raise ValueError(f"the job for {self.name!r} has ended: {self.last_words()}")
            said += found  # nothing comes after an answer before the next order
        return json.loads(answer[1])

    def last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()[-800:] or f"status {self.process.returncode}"

    def close(self) -> None:
        """End it: politely, then by its launcher, which ends its ranks, and at last by force."""
        if self.process is None:
            return
        with contextlib.suppress(OSError), self.process.stdin:
            self.process.stdin.write(END)
        for push in (self.process.poll, self.process.terminate, self.process.kill):
            push()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S)
                break
        self.process.stdout.close()
        self.errors.close()


def launcher(name: str, command: str, size: int) -> tuple[list[str], dict[str, str]]:
    """How the other MPI, if there is one, starts ranks; their environment has no variables of this job."""
    environment = child_environment(os.environ)
    if command:
        return shlex.split(command), environment
    home = Path(sys.prefix) / ("mpich" if name == "mpich" else ".")
    mpirun = home / "bin" / "mpirun"
    if not mpirun.exists():
        missing = f"there is no {mpirun}: `make install`, or --other-mpi"
        raise ValueError(f"algorithm {name!r} needs {OTHERS[name]}, and {missing}")
    environment.pop("MPI4PY_LIBMPI", None)
    if name == "mpich":
        environment |= {"MPI4PY_LIBMPI": str(home / "lib" / "libmpi.so.12"), "HYDRA_LAUNCHER": "fork"}
        if size > len(own_cores()):
            environment.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")  # see tests/launch.py
    return [str(mpirun)], environment


def serve(world: World) -> None:
    """Collective, in the other job: answer until rank 0 is told to end."""

    def say(answer: Any) -> None:
        if world.rank == 0:
            print(MARK + json.dumps(answer), flush=True)

    def hear() -> Any:
        return json.loads(sys.stdin.readline() or "null")

    interleaved: Interleaved | None = None
    say({"library": world.transport.name, "ranks": world.size})
    while order := said_by_rank_0(world.transport, "orders", hear, asleep=True):
        case = Case(**order["case"])
        if interleaved is None or interleaved.case != case:
            if interleaved is not None:
                interleaved.free()
            keys = [(name, SEGMENT_BYTES) for name in order["calls"]]
            interleaved = Interleaved(case, keys, Stand.of(world, case))
        found = interleaved.run(order["turns"], Arrival(**order["arrival"]), skipped=1)
        say(({name: asdict(samples) for (name, _), samples in found.items()}, interleaved.left_out))


if __name__ == "__main__":
    run_world(serve)
