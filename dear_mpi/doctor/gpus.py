"""The GPU of a rank: chosen by its local rank, before MPI starts."""

from __future__ import annotations

from dataclasses import dataclass

from dear_mpi.collectives.probe_device import current_gpu
from dear_mpi.kernels.array import Array
from dear_mpi.streams import select_gpu

__all__ = ["Gpu", "device_zeros", "take_gpu"]


@dataclass(frozen=True)
class Gpu:
    """``number`` counts what this process sees; ``address`` (on the PCI bus) is the same for all that share it."""

    number: int
    count: int
    name: str
    address: str


def take_gpu() -> Gpu:
    """Select the GPU that training would use in this process.

    Raises:
        ValueError: there is none that CuPy could use.
    """
    select_gpu()
    number = current_gpu()
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(number)["name"]
    return Gpu(
        number,
        count=cupy.cuda.runtime.getDeviceCount(),
        name=name.decode() if isinstance(name, bytes) else str(name),
        address=cupy.cuda.Device(number).pci_bus_id,
    )


def device_zeros(nbytes: int) -> Array:
    """Zeros in device memory, ready to be handed to MPI; allocated as buckets are, which decides how they travel."""
    from dear_mpi.kernels.cuda_backend import allocate, event  # imports CuPy

    array = allocate(nbytes)
    array[...] = 0
    zeroed = event()
    zeroed.record()
    zeroed.synchronize()
    return array
