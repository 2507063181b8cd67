"""The memory of a session: its arena, and the side buffers of its plans."""

from dear_mpi.collectives.plans.reach import wants_shared
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, library_of
from dear_mpi.kernels.slab import Slab

PLANS_BYTES = 16 << 20  # side buffers: a window of segments per plan and peer


def make_slab(nbytes: int, beside: Array, algorithm: str, transport: Transport) -> Slab:
    """Memory for the arena and the plans: one allocation, unless side buffers need more (between hosts, those of a
    bucket up to 1 MiB for each peer).

    The other ranks of the host can reach it if the algorithm makes use of that. Otherwise it is private, because MPI
    libraries are slower in shared memory, and on the device of the array ``beside``.
    """
    if library_of(beside) == "numpy" and wants_shared(algorithm, transport.hosts):
        return Slab(transport.allocate, nbytes + PLANS_BYTES, growth=PLANS_BYTES)
    return Slab.beside(beside, nbytes + PLANS_BYTES, growth=PLANS_BYTES)
