"""Runs a Python command under every MPI at hand, on several numbers of ranks, each launch bounded in time.

    python tests/launch.py --ranks 1 2 3 -- -m pytest --with-mpi --only-mpi tests/mpi

An MPI "at hand" is one that `make install` put beside this Python, or else the `mpirun` on PATH (a cluster's).
Stops at the first launch that fails, with its exit status; with --keep-going, does the others first.
"""

import argparse
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TIMED_OUT = 124  # as timeout(1)


@dataclass(frozen=True)
class Mpi:
    """A launcher, and the library that mpi4py must load to match it (None: the one it finds by itself)."""

    name: str
    mpirun: tuple[str, ...]
    libmpi: Path | None = None

    def environment(self, ranks: int) -> dict[str, str]:
        """Ours, with what a launch on one machine needs; a variable that the user has set wins."""
        lines = (ROOT / "hostfiles" / "local.env").read_text(encoding="utf-8").splitlines()
        settings = dict(line.removeprefix("export ").split("=", 1) for line in lines if line.startswith("export "))
        if ranks > len(os.sched_getaffinity(0)):
            settings["MPIR_CVAR_ENABLE_HEAVY_YIELD"] = "1"  # MPICH: 3 times as fast then, 15 times as slow otherwise
        if not sys.stdout.isatty():
            settings["NO_COLOR"] = "1"  # Open MPI gives the ranks a terminal all the same
        # tests/conftest.py refuses another number of ranks than was launched: a launcher and a library that do not
        # match give as many jobs of one rank each.
        settings |= dict(os.environ) | {"LAUNCHED_RANKS": str(ranks)}
        settings.pop("MPIEXEC_TIMEOUT", None)  # MPICH 5.0.2 ends the job when it is over, and may return 0: success
        # The library alone: with MPI4PY_MPIABI too, mpi4py does not open the library that it is told to open.
        return settings | ({"MPI4PY_LIBMPI": str(self.libmpi)} if self.libmpi else {})


def mpis_at_hand() -> list[Mpi]:
    """The MPIs of this virtual environment (see `make install`), else the one on PATH."""
    prefix = Path(sys.prefix)
    mpich = prefix / "mpich"
    ours = [
        Mpi("Open MPI", (f"{prefix}/bin/mpirun",)),
        Mpi("MPICH", (f"{mpich}/bin/mpirun",), mpich / "lib" / "libmpi.so.12"),
    ]
    found = [mpi for mpi in ours if Path(mpi.mpirun[0]).exists()]
    system = shutil.which("mpirun") or shutil.which("mpiexec")
    return found or ([Mpi("system MPI", (system,))] if system else [])


def launch(mpi: Mpi, ranks: int, arguments: list[str], *, limit_s: int) -> int:
    """Runs `python arguments` on so many ranks; ends the whole launch when the time is over."""
    command = [*mpi.mpirun, "-n", str(ranks), sys.executable, *arguments]
    # Ranks that are killed leave files behind: in a folder of this launch.
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:
        environment = mpi.environment(ranks) | {"TMPDIR": folder}
        job = subprocess.Popen(command, env=environment)
        with ended(job):
            try:
                return job.wait(limit_s)
            except subprocess.TimeoutExpired:
                return TIMED_OUT


@contextmanager
def ended(job: "subprocess.Popen[Any]") -> Iterator[None]:
    """End a launcher that still runs behind the block, also after Ctrl-C: told to, it ends its ranks; killed, not."""
    try:
        yield
    finally:
        if job.poll() is None:
            job.terminate()
            try:
                job.wait(60)
            except subprocess.TimeoutExpired:
                job.kill()
                job.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--mpi", help="only the MPI of this name, such as MPICH")
    parser.add_argument("--first", action="store_true", help="only the first MPI at hand")
    parser.add_argument("--mpirun", help="start ranks with this command, such as hostfiles/wheels-cuda.sh")
    parser.add_argument("--limit", type=int, default=1800, help="seconds for one launch")
    parser.add_argument("--keep-going", action="store_true", help="do the launches that remain after a failure")
    parser.add_argument("arguments", nargs="+", help="what follows `python`, after --")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the ranks and tidies up first

    given = [Mpi("the given MPI", tuple(shlex.split(options.mpirun)))] if options.mpirun else None
    mpis = given or [mpi for mpi in mpis_at_hand() if options.mpi in (None, mpi.name)]
    mpis = mpis[: 1 if options.first else None]
    if not mpis:
        print(f"no mpirun for {options.mpi or 'any MPI'}: run `make install`, or load the MPI of your cluster and use"
              " `make MPI=system`", file=sys.stderr)  # fmt: skip
        return 2
    first_failure = 0
    for mpi, ranks in itertools.product(mpis, options.ranks):
        print(f"== {mpi.name}, {ranks} rank(s): python {' '.join(options.arguments)}", flush=True)
        status = launch(mpi, ranks, options.arguments, limit_s=options.limit)
        if status != 0:
            print(f"== FAILED with status {status}: {mpi.name}, {ranks} rank(s)", flush=True)
            first_failure = first_failure or abs(status)
            if not options.keep_going:
                break
    return first_failure


if __name__ == "__main__":
    sys.exit(main())
