"""Whether this MPI can be handed device memory: tried in a child process, and decided by all ranks together.

What an MPI says about itself is wrong both ways: Open MPI says yes where its UCX was built without CUDA, and no where
another UCX with CUDA was put under it. A wrong yes is a crash, not an error. So a child runs this file as an MPI job of
one rank that sends device buffers to itself. That proves that MPI recognises device memory, not which transports would
carry it to other ranks.
"""

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

import numpy as np

from dear_mpi.collectives.launch.launcher import child_environment
from dear_mpi.collectives.launch.mpi_facts import queries
from dear_mpi.collectives.program.errors import ArgumentError, MismatchError
from dear_mpi.kernels.array import Array, library_of
from dear_mpi.kernels.gpu import current_gpu
from dear_mpi.kernels.lookup import lookup

if TYPE_CHECKING:
    from mpi4py import MPI

SIZES = (64, 4 << 20)  # bytes: an eager message and one by rendezvous take different ways through MPI


@dataclass(frozen=True)
class DeviceMemory:
    """Whether device memory goes to MPI as it is; ``why`` is a line for reports, or how a trial of that ended."""

    direct: bool
    why: str


STAGED = "staged through pinned host memory"
OVERRIDES = {
    "auto": None,  # by trial
    "direct": DeviceMemory(True, "direct: device memory goes to MPI (as asked, not probed)"),
    "staged": DeviceMemory(False, f"{STAGED} (as asked)"),
}


def probe(timeout_s: float = 60, *, command: Sequence[str] | None = None) -> DeviceMemory:
    """Try it in a child process (or in ``command``), on the GPU of this process. Never hangs, leaves no child."""
    try:  # what goes wrong is an answer, too: if this rank raised, the others would wait for ever
        if command is None:
            module, limit_s = "dear_mpi.collectives.launch.cuda_aware", int(timeout_s) + 1
            command = (sys.executable, "-m", module, str(current_gpu().number), str(limit_s))
        status, output = run_alone(command, timeout_s)
        if status == 0:
            return DeviceMemory(True, "the probe sent and received device memory")
        if status < 0:
            return DeviceMemory(False, f"the probe died of {signal.Signals(-status).name}")
        said = output.strip().splitlines() or ["it said nothing"]
        return DeviceMemory(False, f"the probe failed with status {status}: {said[-1].strip()}")
    except subprocess.TimeoutExpired:
        return DeviceMemory(False, f"the probe did not end within {timeout_s:g} s")
    except Exception as error:
        return DeviceMemory(False, f"the probe could not be run: {error}")


def run_alone(command: Sequence[str], timeout_s: float) -> tuple[int, str]:
    """The exit status and the output of a process that is no rank of this job, and ends with all that it started."""
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
        finally:
            if child.returncode is None:  # also after Ctrl-C
                os.killpg(child.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the driver: nothing ends it now
                    child.wait(5)
        output.seek(0)
        return child.returncode, output.read().decode(errors="replace")


probed = cache(probe)  # once per process: the answer does not change


def decide(
    comm: "MPI.Intracomm", override: str = "auto", *, probing: Callable[[], DeviceMemory] = probed
) -> DeviceMemory:
    """Collective: whether device memory goes to MPI as it is; the same on all ranks, what it raises, too.

    With ``auto`` the lowest rank of each host probes, and all hosts must succeed; else it is as the user says.
    """
    from mpi4py import MPI

    answer: DeviceMemory | None = None
    if override == "auto":
        host = comm.Split_type(MPI.COMM_TYPE_SHARED)
        answer = probing() if host.Get_rank() == 0 else None
        host.Free()
    return decision(comm.allgather((override, MPI.Get_processor_name(), answer)))


def built_for(array: Array, comm: "MPI.Intracomm", *, taken: bool) -> bool:
    """Whether the library's own collectives take this memory: if messages do (``taken``), which need only a UCX that
    knows CUDA, and the library says so: reductions crash if MPI itself was built without CUDA."""
    return library_of(array) == "numpy" or (taken and True in queries(comm).values())


def decision(answers: Sequence[tuple[str, str, DeviceMemory | None]]) -> DeviceMemory:
    """The decision, from (override, host, probe or None) of each rank."""
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
    """Send a buffer of each size from and to device memory; raise RuntimeError if something else arrives."""
    import cupy

    cupy.cuda.Device(gpu).use()
    patterns = [np.arange(nbytes).astype(np.uint8) ^ 0xA5 for nbytes in SIZES]  # no fresh memory holds it by chance
    pairs = [(cupy.asarray(pattern), cupy.zeros(pattern.size, np.uint8)) for pattern in patterns]
    cupy.cuda.get_current_stream().synchronize()  # MPI knows no streams
    from mpi4py import MPI  # starts MPI, which wants the device chosen before

    for sent, received in pairs:
        receive = MPI.COMM_SELF.Irecv([received, MPI.BYTE], 0)
        send = MPI.COMM_SELF.Isend([sent, MPI.BYTE], 0)
        MPI.Request.Waitall([receive, send])
        if not np.array_equal(received.get(), sent.get()):
            raise RuntimeError(f"{sent.nbytes} B of device memory were sent, and something else arrived")


if __name__ == "__main__":
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is an answer here: write no core file
    signal.alarm(int(sys.argv[2]))  # ends this process even if the parent is gone
    send_to_itself(int(sys.argv[1]))
