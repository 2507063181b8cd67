"""Decide whether this MPI accepts device memory, by a trial in a child process.

MPI's own answer may be wrong: Open MPI says yes if its UCX lacks CUDA. A wrong yes is a crash. So a child runs this
file as a one-rank MPI job that sends device buffers to itself.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from ctypes import CDLL, byref, c_int
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dear_mpi.collectives.launch.launcher import child_environment
from dear_mpi.collectives.program.errors import ArgumentError, MismatchError
from dear_mpi.kernels.array import Array, current_gpu, library_of
from dear_mpi.kernels.lookup import lookup

if TYPE_CHECKING:
    from mpi4py import MPI

CUDA = 0  # MPIX_GPU_SUPPORT_CUDA
SIZES = (64, 4 << 20)  # eager and rendezvous take different paths


@dataclass(frozen=True)
class DeviceMemory:
    direct: bool
    why: str


STAGED = "staged through pinned host memory"
OVERRIDES = {
    "auto": None,
    "direct": DeviceMemory(True, "direct: device memory goes to MPI (as asked, not probed)"),
    "staged": DeviceMemory(False, f"{STAGED} (as asked)"),
}


def probe(timeout_s: float = 60, *, command: Sequence[str] | None = None) -> DeviceMemory:
    """Try it on this GPU; never hangs, leaves no child."""
    try:  # if this rank raised, the others would hang
        if command is None:
            module, limit_s = "dear_mpi.collectives.launch.cuda_aware", int(timeout_s) + 1
            command = (sys.executable, "-m", module, str(current_gpu().number), str(limit_s))
        status, output = run_alone(command, timeout_s)
        if status == 0:
            return DeviceMemory(True, "the probe sent and received device memory")
        if status < 0:
            return DeviceMemory(False, f"the probe died of {signal.Signals(-status).name}")
        said = output.strip().splitlines() or ["it printed nothing"]
        return DeviceMemory(False, f"the probe failed with status {status}: {said[-1].strip()}")
    except subprocess.TimeoutExpired:
        return DeviceMemory(False, f"the probe did not end within {timeout_s:g} s")
    except Exception as error:
        return DeviceMemory(False, f"the probe could not be run: {error}")


def run_alone(command: Sequence[str], timeout_s: float) -> tuple[int, str]:
    """Run a process outside this job; return exit status and output. Its descendants end with it."""
    with tempfile.TemporaryFile() as output:  # descendants would hold a pipe open
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
        finally:
            if child.returncode is None:
                os.killpg(child.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the driver
                    child.wait(5)
        output.seek(0)
        return child.returncode, output.read().decode(errors="replace")


probed = cache(probe)  # once per process: the answer does not change


def decide(
    comm: "MPI.Intracomm", override: str = "auto", *, probing: Callable[[], DeviceMemory] = probed
) -> DeviceMemory:
    """Collective: both ends of a message must take one path.

    Under ``auto`` a rank of each host probes, and all must succeed.
    """
    from mpi4py import MPI

    answer: DeviceMemory | None = None
    if override == "auto":
        host = comm.Split_type(MPI.COMM_TYPE_SHARED)
        answer = probing() if host.Get_rank() == 0 else None
        host.Free()
    return decision(comm.allgather((override, MPI.Get_processor_name(), answer)))


def built_for(array: Array, comm: "MPI.Intracomm", *, taken: bool) -> bool:
    """Return whether the library's own collectives accept this memory.

    Messages need a UCX with CUDA. Reductions crash unless MPI was built with CUDA.
    """
    return library_of(array) == "numpy" or (taken and True in queries(comm).values())


def queries(comm: "MPI.Intracomm") -> dict[str, bool | str | None]:
    info = comm.Get_info()
    kinds = info.Get("mpi_memory_alloc_kinds")
    info.Free()
    cuda, gpu, flag = library_function("MPIX_Query_cuda_support"), library_function("MPIX_GPU_query_support"), c_int(0)
    answered = gpu is not None and gpu(c_int(CUDA), byref(flag)) == 0
    return {
        "MPIX_Query_cuda_support": None if cuda is None else bool(cuda()),
        "MPIX_GPU_query_support": bool(flag.value) if answered else None,
        "mpi_memory_alloc_kinds": kinds,
    }


def library_function(name: str) -> Callable[..., int] | None:
    for path in (None, *loaded("libmpi")):
        with contextlib.suppress(OSError):
            function: Callable[..., int] | None = getattr(CDLL(path), name, None)
            if function is not None:
                return function
    return None


def loaded(name: str, maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Return this process's shared libraries by name; ``libmpi`` includes libmpi_gnu.

    mpi4py hides MPI, but not from the memory map.
    """
    try:
        return sorted(set(re.findall(rf"/.*/{re.escape(name)}(?:[-_]\w+)?\.so\S*", maps.read_text())))
    except OSError:
        return []


def decision(answers: Sequence[tuple[str, str, DeviceMemory | None]]) -> DeviceMemory:
    overrides = sorted({override for override, _, _ in answers})
    if len(overrides) > 1:
        raise MismatchError(f"device_memory must be the same on all ranks, not {' and '.join(overrides)}")
    try:
        asked = lookup("device_memory", overrides[0], OVERRIDES)
    except ValueError as error:
        raise ArgumentError(str(error)) from None
    if asked is not None:
        return asked
    refusals = [(host, trial.why) for _, host, trial in answers if trial is not None and not trial.direct]
    if not refusals:
        return DeviceMemory(True, "direct: device memory goes to MPI (probed)")
    host, reason = refusals[0]
    several = len({host for _, host, _ in answers}) > 1
    return DeviceMemory(False, f"{STAGED}: {f'on host {host}, ' if several else ''}{reason}")


def send_to_itself(gpu: int) -> None:
    import cupy

    cupy.cuda.Device(gpu).use()
    patterns = [np.arange(nbytes).astype(np.uint8) ^ 0xA5 for nbytes in SIZES]  # unlikely in fresh memory
    pairs = [(cupy.asarray(pattern), cupy.zeros(pattern.size, np.uint8)) for pattern in patterns]
    cupy.cuda.get_current_stream().synchronize()  # MPI knows no streams
    from mpi4py import MPI  # starts MPI, after the device is chosen

    for sent, received in pairs:
        receive = MPI.COMM_SELF.Irecv([received, MPI.BYTE], 0)
        send = MPI.COMM_SELF.Isend([sent, MPI.BYTE], 0)
        MPI.Request.Waitall([receive, send])
        if not np.array_equal(received.get(), sent.get()):
            raise RuntimeError(f"{sent.nbytes} B of device memory were sent, and something else arrived")


if __name__ == "__main__":
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # crashes leave no core file
    signal.alarm(int(sys.argv[2]))
    send_to_itself(int(sys.argv[1]))
