"""The child process that hands device memory to MPI, to see what happens: it may well crash.

    python -m dear_mpi.collectives.launch.probe_device GPU LIMIT_S

It runs as an MPI job of one rank and sends device buffers to itself. An MPI that takes them for host memory dies of
SIGSEGV: so it is never tried in a process that is needed (``cuda_aware.py`` starts this one and reads how it ended).
It proves that MPI recognises device memory. It does not tell which transports would carry that to other ranks.
"""

import resource
import signal
import sys

import numpy as np

SIZES = (64, 4 << 20)  # bytes: an eager message and one by rendezvous take different ways through MPI


def send_to_itself(gpu: int) -> None:
    """Send a buffer of each size from and to device memory.

    Raises:
        RuntimeError: another content arrived than was sent.
    """
    import cupy

    cupy.cuda.Device(gpu).use()
    pairs = [(cupy.asarray(pattern(nbytes)), cupy.zeros(nbytes, np.uint8)) for nbytes in SIZES]
    cupy.cuda.get_current_stream().synchronize()  # MPI knows no streams
    from mpi4py import MPI  # starts MPI, which wants the device chosen before

    for sent, received in pairs:
        receive = MPI.COMM_SELF.Irecv([received, MPI.BYTE], 0)
        send = MPI.COMM_SELF.Isend([sent, MPI.BYTE], 0)
        MPI.Request.Waitall([receive, send])
        if not np.array_equal(received.get(), pattern(sent.nbytes)):
            raise RuntimeError(f"{sent.nbytes} B of device memory were sent, and something else arrived")


def pattern(nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Bytes that no fresh memory holds by chance."""
    return np.arange(1, nbytes + 1, dtype=np.uint32).astype(np.uint8) ^ np.uint8(0xA5)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is an answer here: write no core file
    signal.alarm(int(sys.argv[2]))  # ends this process even if the parent is gone
    send_to_itself(int(sys.argv[1]))
