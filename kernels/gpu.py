"""Select the GPU of a process, or report why there is none."""

import contextlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """``number`` is the index in this process; ``address``, on the PCI bus, is the same in all processes."""

    number: int
    count: int
    name: str
    address: str


def use_gpu(local_rank: int) -> None:
    """Select GPU ``local_rank`` modulo their number. Call it before MPI starts, which binds to the GPU in use."""
    # CuPy raises CUDA's errors as RuntimeErrors
    with contextlib.suppress(ImportError, RuntimeError, ZeroDivisionError):
        import cupy

        cupy.cuda.Device(local_rank % cupy.cuda.runtime.getDeviceCount()).use()


def current_gpu() -> Gpu:
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
        if count == 0:
            raise RuntimeError("CUDA finds none")
        device = cupy.cuda.Device()
        name = cupy.cuda.runtime.getDeviceProperties(device.id)["name"]
        return Gpu(int(device.id), count, name.decode() if isinstance(name, bytes) else name, device.pci_bus_id)
    except ImportError as error:
        lacking = isinstance(error, ModuleNotFoundError) and error.name == "cupy"
        why = "CuPy is not installed" if lacking else f"CuPy cannot be imported: {error}"
        raise ValueError(f"{why} (pip install cupy-cuda13x or -cuda12x: our extras cuda13, cuda12)") from None
    except RuntimeError as error:
        raise ValueError(f"there is no GPU that can be used: {error} (see what nvidia-smi shows)") from None


def device_array(memory: Any) -> Any:
    """View another library's memory on a GPU (by DLPack) as an array of CuPy. Raises a ValueError without CuPy."""
    current_gpu()
    import cupy

    return cupy.from_dlpack(memory)
