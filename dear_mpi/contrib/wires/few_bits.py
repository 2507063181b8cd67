"""Encode blocks of gradients in 4 bits, or in 8-bit floating point: ``--wire int4``, ``--wire fp8``.

    elements   | 256               | 256               | the rest |
    blocks     | scale scale scale | numbers of 4 bits in pairs, or in fp8 ...

As with int8 (``dear_mpi/training/routes``), a scale is the block's largest magnitude divided by the largest number. The
rounding error is at most half a step: 1/14 of that magnitude with 4 bits; in fp8 (e4m3) 1/16 of the element, or of the
smallest normal number. Bytes per element: 1/2 + 1/64 with 4 bits, 1 + 1/64 in fp8.

Source: ZeRO++, arXiv 2306.10209, section 3.3 (4 bits).
"""

from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.training.routes import Blocks, Kind, coded


class Halves(Blocks):
    """Use whole numbers of 4 bits, two per byte."""

    encode_s, decode_s, decode_call_s = 2.2e-9, 1.5e-9, 9e-6
    largest = 7.0

    def number_bytes(self, count: int) -> int:
        return -(-count // 2)

    def write(self, scaled: Array, codes: Array) -> None:
        xp: Any = array_module(scaled)
        numbers = xp.rint(scaled).reshape(-1).astype(np.int8).view(np.uint8) & 15
        codes[...] = numbers[::2]
        codes[: numbers.size // 2] |= numbers[1::2] << 4

    def read(self, codes: Array, shape: tuple[int, ...]) -> Array:
        xp: Any = array_module(codes)
        pairs = xp.stack([codes << 4, codes & 0xF0], axis=1).view(np.int8) >> 4  # sign in the upper bit
        return pairs.reshape(-1)[: shape[0] * shape[1]].reshape(shape)


class Eighths(Blocks):
    """Use 8-bit floating point: e4m3, with 3 bits after the point."""

    encode_s, decode_s = 11e-9, 8e-9
    largest = 448.0
    dtype: ClassVar[Any] = np.dtype(ml_dtypes.float8_e4m3fn)

    def write(self, scaled: Array, codes: Array) -> None:
        codes.view(self.dtype)[...] = scaled.reshape(-1)

    def read(self, codes: Array, shape: tuple[int, ...]) -> Array:
        return super().read(codes, shape).astype(np.float32)


INT4, FP8 = (Kind(make, coded, options=("error=no", "between")) for make in (Halves, Eighths))
