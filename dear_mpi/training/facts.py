"""Compute checksums for comparing models between ranks."""

import hashlib
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from dear_mpi.kernels.array import Array, to_host
from dear_mpi.models.layer import Layer, Loss

MOST = 300  # characters


def model_of(layers: Sequence[Layer], loss: Loss) -> str:
    """Describe the model facts that ranks compare, except parameter bytes; of large models only the first ones."""
    parameters = [
        f"{number}: {parameter.name} {parameter.value.dtype}{list(parameter.value.shape)}"
        + " frozen" * (not parameter.trained)
        + " in its own memory" * (not parameter.rebind)
        for number, layer in enumerate(layers)
        for parameter in layer.parameters
    ]
    kinds = ", ".join(type(each).__name__ for each in (*layers, loss))
    text = f"{', '.join(parameters)}; of {kinds}"
    return text if len(text) <= MOST else f"{text[:MOST]}... (checksum {zlib.crc32(text.encode()):08x})"


def sha256(arrays: Iterable[Array]) -> str:
    """Return the SHA-256 of the bytes of some arrays, in order."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(octets(array))
    return digest.hexdigest()


def checksum(array: Array) -> str:
    """Return a checksum of an array's bytes, in a third of the time of SHA-256."""
    return f"{zlib.crc32(octets(array)):08x}"


def octets(array: Array) -> memoryview:
    return np.ascontiguousarray(to_host(array)).view("u1").data
