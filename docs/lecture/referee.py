"""Who takes part in a race: each file is proved in a process of its own, which is killed at its limit.

    python -m docs.lecture.referee anna.py:my_ring all_reduce 4      a line of JSON for each number of ranks

Python cannot end a thread. A function of a student that never ends would spin on while others are timed, in the process
of the race; what this process loads has ended here before.
"""

import json
import resource
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, field

from dear_mpi.collectives import programs, verify
from dear_mpi.collectives.program.errors import ProgramError
from dear_mpi.collectives.program.user_file import is_in_file
from dear_mpi.see.proof import prove_messages
from docs.lecture.desk.algorithms import own_collective

PROVED_UP_TO = 8  # ranks
LIMIT_S = 15.0  # of a file; proofs of what ends take milliseconds, and a call that does not is told after 10 s
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


def proved(name: str, collective: str, ranks: int, limit_s: float = LIMIT_S) -> Runner:
    """Who takes part, with what the proof says for these ranks, and the other numbers of ranks for which it holds."""
    command = [sys.executable, "-m", "docs.lecture.referee", name, collective, str(ranks)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            said, _ = process.communicate(timeout=limit_s)
            late = f"its process ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            late = f"it has not come to an end after {limit_s:g} seconds"
    found = dict(map(json.loads, said.splitlines()))
    return Runner(name, found.get(ranks, late), [size for size, fault in found.items() if not fault])


def fault_on(name: str, collective: str, ranks: int) -> str:
    """What the proof says: of what was written first, then of what follows from it by mirroring; "" if all is right."""
    try:
        programs(name, collective, ranks)  # which names what raises, or never ends
        for each in dict.fromkeys((*([own_collective(name)] if is_in_file(name) else []), collective)):
            found = programs(name, each, ranks)
            verify(found)
            prove_messages(found)
    except (ProgramError, ValueError) as error:
        return str(error)
    return ""


def main() -> None:
    """Prove for the ranks of the race; if that is right, for the others."""
    name, collective, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    verdicts = sys.stdout
    with redirect_stdout(sys.stderr):  # what students print
        for size in dict.fromkeys((ranks, *range(1, PROVED_UP_TO + 1))):
            fault = fault_on(name, collective, size)
            print(json.dumps([size, fault]), file=verdicts, flush=True)
            if fault and size == ranks:
                break


if __name__ == "__main__":
    main()
