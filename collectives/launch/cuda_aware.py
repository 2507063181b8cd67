"""Whether this MPI can be handed device memory: asked, tried, and decided by all ranks together.

What an MPI says about itself is wrong both ways: Open MPI says yes where its UCX was built without CUDA, and no where
another UCX with CUDA was put under it. A wrong yes is a crash, not an error. So a child process tries it
(``probe_device.py``), and the queries (``mpi_facts.py``) are for reports.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from dear_mpi.collectives.launch.launcher import child_environment
from dear_mpi.collectives.launch.mpi_facts import queries
from dear_mpi.collectives.program.errors import ArgumentError, MismatchError
from dear_mpi.kernels.array import Array, library_of
from dear_mpi.kernels.gpu import current_gpu
from dear_mpi.kernels.lookup import lookup

if TYPE_CHECKING:
    from mpi4py import MPI

OVERRIDES = ("auto", "direct", "staged")


@dataclass(frozen=True)
class Probe:
    """How the attempt ended, in words that follow "because"."""

    ok: bool
    reason: str


@dataclass(frozen=True)
class Verdict:
    """Whether device memory goes to MPI as it is, on all ranks; ``why`` is one line for reports."""

    direct: bool
    why: str


def probe(timeout_s: float = 60, *, command: Sequence[str] | None = None) -> Probe:
    """Try it in a child process (or in ``command``), on the GPU that this process uses. Never hangs, leaves no child.

    Raises:
        OSError, ValueError: it cannot be started; there is no GPU.
    """
    if command is None:
        module, limit_s = "dear_mpi.collectives.launch.probe_device", int(timeout_s) + 1
        command = (sys.executable, "-m", module, str(current_gpu().number), str(limit_s))
    with tempfile.TemporaryFile() as output:  # a pipe would be held open by whatever the child left behind
        child = subprocess.Popen(
            command,
            env=child_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return Probe(False, f"the probe did not end within {timeout_s:g} s")
        finally:
            if child.returncode is None:  # also after Ctrl-C
                os.killpg(child.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the driver: nothing ends it now
                    child.wait(5)
        output.seek(0)
        return outcome(child.returncode, output.read().decode(errors="replace"))


def outcome(status: int, output: str) -> Probe:
    """The result of the probe, from the child's exit status and output.

    >>> outcome(-11, "")
    Probe(ok=False, reason='the probe died of SIGSEGV')
    """
    if status == 0:
        return Probe(True, "the probe sent and received device memory")
    if status < 0:
        names = {number.value: number.name for number in signal.Signals}
        return Probe(False, f"the probe died of {names.get(-status, f'signal {-status}')}")
    said = [line.strip() for line in output.splitlines() if line.strip()]
    return Probe(False, f"the probe failed with status {status}: {said[-1] if said else 'it said nothing'}")


probed = cache(probe)  # once per process: the answer does not change


def decide(comm: MPI.Intracomm, override: str = "auto", *, probing: Callable[[], Probe] = probed) -> Verdict:
    """Collective: whether device memory goes to MPI as it is; the same on all ranks.

    Args:
        override: ``direct`` or ``staged`` as the user says, without a probe; with ``auto`` the lowest rank of each
            host probes, and all hosts must succeed.

    Raises:
        ArgumentError: there is no such override; all ranks raise.
        MismatchError: the ranks were given different ones; all ranks raise.
    """
    from mpi4py import MPI

    answer: Probe | None = None
    if override == "auto":
        host = comm.Split_type(MPI.COMM_TYPE_SHARED)
        answer = attempt(probing) if host.Get_rank() == 0 else None
        host.Free()
    return verdict(comm.allgather((override, MPI.Get_processor_name(), answer)))


def built_for(array: Array, comm: MPI.Intracomm, *, taken: bool) -> bool:
    """Whether the library's own collectives take this memory: if messages do (``taken``), and the library says so.

    Messages need only a UCX that knows CUDA. Reductions crash if MPI itself was built without CUDA.
    """
    return library_of(array) == "numpy" or (taken and True in queries(comm).values())


def attempt(probing: Callable[[], Probe]) -> Probe:
    """Probe, and return any error as a failed probe: if this rank raised, the others would wait for ever."""
    try:
        return probing()
    except Exception as error:
        return Probe(False, f"the probe could not be run: {error}")


def verdict(answers: Sequence[tuple[str, str, Probe | None]]) -> Verdict:
    """The decision, from (override, host, probe or None) of each rank."""
    overrides = sorted({override for override, _, _ in answers})
    if len(overrides) > 1:
        raise MismatchError(f"device_memory must be the same on all ranks, not {' and '.join(overrides)}")
    try:
        lookup("device_memory", overrides[0], dict.fromkeys(OVERRIDES))
    except ValueError as error:
        raise ArgumentError(str(error)) from None
    if overrides[0] == "direct":
        return Verdict(True, "direct: device memory goes to MPI (as asked, not probed)")
    if overrides[0] == "staged":
        return Verdict(False, "staged through pinned host memory (as asked)")
    refusals = [(host, probe.reason) for _, host, probe in answers if probe is not None and not probe.ok]
    if not refusals:
        return Verdict(True, "direct: device memory goes to MPI (probed)")
    host, reason = refusals[0]
    several = len({host for _, host, _ in answers}) > 1
    return Verdict(False, f"staged through pinned host memory: {f'on host {host}, ' if several else ''}{reason}")
