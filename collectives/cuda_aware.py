"""Whether this MPI can be handed device memory: asked, tried, and decided by all ranks together.

What an MPI says about itself is wrong both ways: Open MPI says yes where its UCX was built without CUDA, and no where
another UCX with CUDA was put under it. A wrong yes is a crash, not an error. So a child process tries it
(``probe_device.py``), and the queries are for reports alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

from dear_mpi.collectives.errors import ArgumentError, MismatchError
from dear_mpi.collectives.probe_device import current_gpu
from dear_mpi.kernels.choose import choose

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["OVERRIDES", "Probe", "Verdict", "decide", "probe", "queries"]

OVERRIDES = ("auto", "direct", "staged")
CUDA = 0  # MPIX_GPU_SUPPORT_CUDA

# What launchers tell their ranks: with it the child would take itself for a rank of this job.
LAUNCHER = (
    *("OMPI_COMM_WORLD_", "OMPI_WORLD_", "OMPI_UNIVERSE_", "OMPI_NUM_APP", "OMPI_APP_", "OMPI_FIRST_RANKS"),
    *("OMPI_MCA_ess", "OMPI_MCA_orte_", "OMPI_MCA_num_procs", "OMPI_MCA_initial_wdir"),
    *("PMIX_", "PRTE_", "PMI_", "PMI2_", "HYDI_", "HYDRA_", "MPI_LOCAL", "MPIEXEC_", "I_MPI_HYDRA_"),
    *("MPIRUN_", "MV2_COMM_WORLD_", "PALS_", "ALPS_APP_", "FLUX_TASK_", "SLURM_"),
)
SETTINGS = ("PMIX_MCA_", "PRTE_MCA_", "PMIX_PREFIX", "PRTE_PREFIX")  # the user's, or where the library lies


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


def queries(comm: MPI.Intracomm) -> dict[str, bool | str | None]:
    """What the MPI library says about itself; None where it does not have the question."""
    info = comm.Get_info()
    kinds = info.Get("mpi_memory_alloc_kinds")
    info.Free()
    return {
        "MPIX_Query_cuda_support": ask("MPIX_Query_cuda_support"),
        "MPIX_GPU_query_support": ask_gpu("MPIX_GPU_query_support"),
        "mpi_memory_alloc_kinds": kinds,
    }


def ask(name: str) -> bool | None:
    function = library_function(name)
    return None if function is None else bool(function())


def ask_gpu(name: str) -> bool | None:
    function, flag = library_function(name), ctypes.c_int(0)
    if function is None or function(ctypes.c_int(CUDA), ctypes.byref(flag)) != 0:
        return None
    return bool(flag.value)


def library_function(name: str) -> Callable[..., int] | None:
    """A C function of the MPI library in this process."""
    for path in (None, *loaded_libraries()):
        with contextlib.suppress(OSError):  # a library that is there and cannot be opened once more has no answer
            function: Callable[..., int] | None = getattr(ctypes.CDLL(path), name, None)
            if function is not None:
                return function
    return None


def loaded_libraries(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Paths of the MPI libraries in this process: mpi4py loads them so that other libraries do not see them."""
    try:
        return sorted(set(re.findall(r"/.*/libmpi(?:_\w+)?\.so\S*", maps.read_text())))
    except OSError:
        return []


def probe(timeout_s: float = 60, *, command: Sequence[str] | None = None) -> Probe:
    """Try it in a child process, on the GPU that this process uses. Never hangs, and leaves no child.

    Args:
        command: run this instead of the child.
    """
    if command is None:
        try:
            limit_s = int(timeout_s) + 1
            module = "dear_mpi.collectives.probe_device"
            command = (sys.executable, "-m", module, str(current_gpu()), str(limit_s))
        except ValueError as error:
            return Probe(False, str(error))
    with tempfile.TemporaryFile() as output:  # a pipe would be held open by whatever the child left behind
        try:
            status = run_child(command, output, timeout_s)
        except OSError as error:
            return Probe(False, f"the probe could not be started: {error}")
        output.seek(0)
        return outcome(status, output.read().decode(errors="replace"), timeout_s)


def run_child(command: Sequence[str], output: IO[bytes], timeout_s: float) -> int | None:
    """The exit status of a child in a session of its own; None if it had to be killed after that time."""
    child = subprocess.Popen(
        command,
        env=child_environment(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child.returncode is None:  # also after Ctrl-C
            os.killpg(child.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the driver: nothing ends it now
                child.wait(5)


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Ours, without what would make the child a rank of this job; settings of MPI and of UCX stay.

    >>> sorted(child_environment({"PMIX_RANK": "1", "UCX_TLS": "all", "OMPI_MCA_pml": "ucx"}))
    ['OMPI_MCA_pml', 'PYTHONPATH', 'UCX_TLS']
    """
    kept = {
        name: value for name, value in environment.items() if name.startswith(SETTINGS) or not name.startswith(LAUNCHER)
    }
    # The child finds the modules that this process finds, wherever it found them.
    return kept | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def outcome(status: int | None, output: str, timeout_s: float) -> Probe:
    """What the child's end means.

    >>> outcome(-11, "", 60)
    Probe(ok=False, reason='the probe died of SIGSEGV')
    """
    if status == 0:
        return Probe(True, "the probe sent and received device memory")
    if status is None:
        return Probe(False, f"the probe did not end within {timeout_s:g} s")
    if status < 0:
        names = {number.value: number.name for number in signal.Signals}
        return Probe(False, f"the probe died of {names.get(-status, f'signal {-status}')}")
    said = [line.strip() for line in output.splitlines() if line.strip()]
    return Probe(False, f"the probe failed with status {status}: {said[-1] if said else 'it said nothing'}")


@cache
def probed() -> Probe:
    """``probe``, once per process: the answer does not change."""
    return probe()


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


def attempt(probing: Callable[[], Probe]) -> Probe:
    """Whatever goes wrong in it: a rank that left here would leave the others waiting."""
    try:
        return probing()
    except Exception as error:
        return Probe(False, f"the probe failed: {type(error).__name__}: {error}")


def verdict(answers: Sequence[tuple[str, str, Probe | None]]) -> Verdict:
    """From (override, host, probe if it was this rank's to do) of each rank."""
    overrides = sorted({override for override, _, _ in answers})
    if len(overrides) > 1:
        raise MismatchError(f"device_memory must be the same on all ranks, not {' and '.join(overrides)}")
    try:
        choose("device_memory", overrides[0], dict.fromkeys(OVERRIDES))
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
    more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
    return Verdict(False, f"staged through pinned host memory: {f'on host {host}{more}, ' if several else ''}{reason}")
