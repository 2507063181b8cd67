"""Who takes part in a race: each file is proved and priced in a process of its own, which is killed at its limit.

    python -m docs.lecture.referee anna.py:my_ring all_reduce 4 '[5e-05, 8e-10]' 1024 65536

prints a line of JSON for each number of ranks: the number, what is wrong, and for that of the race the seconds at each
size, on a network of this alpha and beta. The lines go into a file, not a pipe: a pipe would end only when all that
holds it has ended. A file that starts a process is refused, because the process could stay and slow the race down.

Python cannot end a thread. A function of a student that never ends would spin on while others are timed, in the process
of the race; what this process loads has ended here before.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from dear_mpi.collectives import programs
from dear_mpi.collectives.program.cost import Network
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.user_file import is_in_file
from docs.lecture.desk.algorithms import NETWORK, own_collective, prove, seconds_of

PROVED_UP_TO = 8  # ranks
LIMIT_S = 15.0  # of a file; proofs of what ends take milliseconds, and a call that does not is told after 10 s
STARTS = (
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "pty.spawn",
    "subprocess.Popen",
)
attempts: list[str] = []  # of this process to start another one
MOST_BYTES = 1 << 30  # of its process: a loop that never ends may append to a list


@dataclass
class Runner:
    """Who takes part: ``fault`` is what the proof says; seconds are by size."""

    name: str
    fault: str = ""
    right_on: list[int] = field(default_factory=list)  # numbers of ranks
    predicted_s: dict[int, float] = field(default_factory=dict)
    measured_s: dict[int, float] = field(default_factory=dict)
    interval: dict[int, float] = field(default_factory=dict)  # the farther end of the 95 % interval, in seconds
    points: float = float("inf")


@dataclass(frozen=True)
class Pricing:
    """At which sizes, in bytes, and on which network."""

    sizes: Sequence[int] = ()
    network: Network = NETWORK

    def as_arguments(self) -> list[str]:
        return [json.dumps([self.network.alpha, self.network.beta]), *map(str, self.sizes)]


def proved(name: str, collective: str, ranks: int, pricing: Pricing = Pricing(), *, limit_s: float = LIMIT_S) -> Runner:
    """Who takes part, with what the proof says for these ranks, and the other numbers of ranks for which it holds."""
    command = [sys.executable, "-m", "docs.lecture.referee", name, collective, str(ranks), *pricing.as_arguments()]
    with tempfile.TemporaryFile() as said:
        quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, stdout=said, **quiet, start_new_session=True)
        try:
            late = f"its process ended with {process.wait(limit_s)}"
        except subprocess.TimeoutExpired:
            late = f"it has not come to an end after {limit_s:g} seconds"
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
        process.wait()
        said.seek(0)
        lines = said.read().splitlines()
    try:
        verdicts = [(int(size), str(fault), list(seconds)) for size, fault, seconds in map(json.loads, lines)]
    except (ValueError, TypeError):
        return Runner(name, "its output is mixed with that of the proof: do not write to file descriptors")
    faults = {size: fault for size, fault, _ in verdicts}
    predicted_s = dict(zip(pricing.sizes, verdicts[0][-1], strict=False)) if verdicts else {}
    return Runner(name, faults.get(ranks, late), [size for size, fault in faults.items() if not fault], predicted_s)


def fault_on(name: str, collective: str, ranks: int) -> str:
    """What the proof says: of what was written first, then of what follows from it by mirroring; "" if all is right."""
    try:
        programs(name, collective, ranks)  # which names what raises, or never ends
        for each in dict.fromkeys((*([own_collective(name)] if is_in_file(name) else []), collective)):
            prove(programs(name, each, ranks))
    except (ProgramError, ValueError) as error:
        return str(error)
    return ""


def refuse_processes(event: str, _: object) -> None:
    """Note the attempt, because a file may hide the error: in the race itself nothing would refuse it."""
    if event in STARTS:
        attempts.append(f"an algorithm must not start a process ({event})")
        raise PermissionError(attempts[-1])


def main() -> None:
    """Prove for the ranks of the race, and price; if that is right, prove for the others."""
    name, collective, ranks, (alpha, beta) = *sys.argv[1:3], int(sys.argv[3]), json.loads(sys.argv[4])
    sizes, network = list(map(int, sys.argv[5:])), Network(alpha=alpha, beta=beta)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as verdicts:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what students print, or their processes
        sys.addaudithook(refuse_processes)
        for size in dict.fromkeys((ranks, *range(1, PROVED_UP_TO + 1))):
            fault = fault_on(name, collective, size) or next(iter(attempts), "")
            priced = sizes if size == ranks and not fault else ()
            seconds = [seconds_of(name, collective, ranks, each, network) for each in priced]
            print(json.dumps([size, fault, seconds]), file=verdicts, flush=True)
            if fault and size == ranks:
                break


if __name__ == "__main__":
    main()
