import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import msgspec

from dear_mpi.contrib.advise.assembled import assemble
from dear_mpi.contrib.advise.observation import Observation, read_observation
from dear_mpi.contrib.advise.observed import JOB, Outcome, Watched
from dear_mpi.reporting.terminal import note

ITERATIONS = 10
PROCESS = "dear_mpi.contrib.advise.torch_script"
ADOPT = 36  # PR_SET_CHILD_SUBREAPER of Linux
GRACE_S = 5.0  # between SIGTERM and SIGKILL


def observe(script: Path, arguments: Sequence[str], iterations: int = ITERATIONS) -> Observation:
    """Run the script, or read an earlier observation.

    Raises:
        ValueError: there is no such file; PyTorch is missing; or as for ``watch`` and ``read_observation``.
    """
    if not script.is_file():
        wrong = "it is a folder" if script.is_dir() else "there is no such file"
        raise ValueError(f"script {str(script)!r}: {wrong}")
    if script.suffix == ".json":
        if arguments:
            raise ValueError(f"{str(script)!r} was observed before: it takes no arguments, as {arguments[0]!r}")
        return read_observation(script)
    if find_spec("torch") is None:
        advice = "pip install torch; or give FILE.json, which advise --save wrote elsewhere"
        raise ValueError(f"advise runs scripts of PyTorch, which is not installed: {advice}")
    return assemble(watch(script, arguments, iterations))


def watch(script: Path, arguments: Sequence[str], iterations: int) -> Watched:
    """Run the script in a separate process until enough iterations were watched.

    If it reads a launcher's variables and fails without them, it runs again as ``torchrun`` would start one rank.

    Raises:
        ValueError: it failed (its traceback is on standard error), or trained nothing visible, or too few iterations.
    """
    ranks = os.environ.get("WORLD_SIZE", "1")
    if ranks != "1":
        raise ValueError(f"advise watches a script on one rank, not on {ranks}: start it without torchrun")
    alone = outcome_of(script, arguments, iterations, {})
    if not alone.failed or alone.iterations or not alone.missed:
        return watched_in(alone)
    job = {name: value for name, value in JOB.items() if name not in os.environ}
    said = "as torchrun does for one rank: " + " ".join(f"{name}={value}" for name, value in job.items())
    why = f"asked for {', '.join(alone.missed)} in vain, and {alone.failed.removeprefix(named(script))}"
    note(None, f"{named(script)}{why}; it runs again with variables set {said}")
    launched = outcome_of(script, arguments, iterations, job)
    if launched.failed:
        print(alone.trace, end="", file=sys.stderr)
        launched = replace(launched, failed=f"{launched.failed}, with variables set {said}; without them it {why}")
    watched = watched_in(launched)
    return replace(watched, notes=(*watched.notes, f"the script failed without variables set {said}"))


def named(script: Path) -> str:
    return f"script {str(script)!r} "


def outcome_of(script: Path, arguments: Sequence[str], iterations: int, job: Mapping[str, str]) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="dear-mpi-advise-") as folder:
        path = Path(folder) / "outcome.json"
        given = [str(path), str(iterations), str(script), *arguments]
        with ending_children():
            ran = subprocess.run([sys.executable, "-m", PROCESS, *given], env=os.environ | job, check=False)
        if path.is_file():
            return msgspec.json.decode(path.read_bytes(), type=Outcome)
    code = ran.returncode
    how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
    return Outcome(failed=f"{named(script)}ended its process {how} before enough iterations were seen", iterations=1)


@contextmanager
def ending_children() -> Iterator[None]:
    """End the processes started in the block, and on Linux their children, which this process adopts."""
    if sys.platform != "linux":
        yield
        return
    before, prctl = children(), ctypes.CDLL(None).prctl
    prctl(ADOPT, 1)
    try:
        yield
    finally:
        begin, sent = time.monotonic(), set[tuple[int, signal.Signals]]()
        while (started := children() - before) and (waited_s := time.monotonic() - begin) < 2 * GRACE_S:
            how = signal.SIGTERM if waited_s < GRACE_S else signal.SIGKILL  # each once: some processes count
            for process in started:
                with suppress(OSError):
                    if (process, how) not in sent:
                        sent.add((process, how))
                        os.kill(process, how)
                    os.waitpid(process, os.WNOHANG)
            time.sleep(0.02)
        prctl(ADOPT, 0)


def children() -> set[int]:
    found = set[int]()
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(file.read_text("utf-8", "replace").rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(file.parent.name))
    return found


def watched_in(outcome: Outcome) -> Watched:
    print(outcome.trace, end="", file=sys.stderr)
    if outcome.watched is None:
        raise ValueError(outcome.failed)
    return outcome.watched
