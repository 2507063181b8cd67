"""Encode elements in a few bits, with a scale for each block of 256 elements.

    elements   | 256              | 256              | the rest |
    codes      | scale scale scale | numbers of 8 bits, of 4 bits in pairs, or in fp8 ...

A scale is the block's largest magnitude divided by the largest number. The rounding error is at most half a step: 1/254
of that magnitude with 8 bits, 1/14 with 4; in fp8 (e4m3) 1/16 of the element, or of the smallest normal number. A block
with an infinity or NaN becomes NaN. A block of zeros, or with a scale below the smallest normal number, becomes zero.

Cost: 1 + 1/64 bytes per element with 8 bits, 1/2 + 1/64 with 4. Source: Dettmers et al., 8-bit Optimizers, ICLR 2022,
section 2.1 (block-wise quantisation); ZeRO++, arXiv 2306.10209, section 3.3 (4 bits).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from dear_mpi.kernels.array import Array, array_module

BLOCK = 256
PIECE = 256 * BLOCK  # elements at a time, to stay in cache
SCALE = np.dtype(np.float32)
LEAST = np.finfo(SCALE).tiny  # a smaller scale has no inverse


@dataclass(frozen=True)
class Blocks:
    """Use whole numbers from ``-largest`` to ``largest``, a byte each."""

    encode_s: ClassVar[float] = 1.5e-9
    decode_s: ClassVar[float] = 0.8e-9
    encode_call_s: ClassVar[float] = 17e-6
    decode_call_s: ClassVar[float] = 4e-6
    largest: ClassVar[float] = 127.0
    dtype: ClassVar[Any] = np.dtype(np.int8)

    def nbytes(self, count: int) -> int:
        return SCALE.itemsize * -(-count // BLOCK) + self.number_bytes(count)

    def number_bytes(self, count: int) -> int:
        return count

    def encode(self, x: Array, out: Array) -> None:
        xp: Any = array_module(x)
        for values, scales, codes in self.pieces(x, out):
            with np.errstate(all="ignore"):
                most = xp.abs(values).max(axis=1).astype(SCALE) / SCALE.type(self.largest)
                scales[...] = xp.where(most < xp.inf, xp.where(most < LEAST, 0, most), xp.nan)
                inverse = xp.where(scales > 0, 1 / scales, 0).astype(SCALE)
                self.write(values * inverse[:, None], codes)

    def decode(self, codes: Array, x: Array) -> None:
        for values, scales, numbers in self.pieces(x, codes):
            values[...] = self.read(numbers, values.shape) * scales[:, None]

    def pieces(self, x: Array, codes: Array) -> Iterator[tuple[Array, Array, Array]]:
        """Yield rows of elements, their scales and their numbers as bytes."""
        blocks = -(-x.size // BLOCK)
        scales = codes[: SCALE.itemsize * blocks].view(SCALE)
        numbers = codes[SCALE.itemsize * blocks : self.nbytes(x.size)]
        full = x.size - x.size % BLOCK
        for start in range(0, x.size, PIECE):
            for first, last in ((start, min(start + PIECE, full)), (max(start, full), min(start + PIECE, x.size))):
                if first < last:
                    width = min(BLOCK, last - first)
                    rows = x[first:last].reshape(-1, width)
                    at = slice(self.number_bytes(first), self.number_bytes(last))
                    yield rows, scales[first // BLOCK :][: len(rows)], numbers[at]

    def write(self, scaled: Array, codes: Array) -> None:
        array_module(scaled).rint(scaled, out=scaled)
        codes.view(self.dtype)[...] = scaled.reshape(-1)

    def read(self, codes: Array, shape: tuple[int, ...]) -> Array:
        numbers: Array = codes.view(self.dtype).reshape(shape)
        return numbers


@dataclass(frozen=True)
class Halves(Blocks):
    """Use whole numbers of 4 bits, two per byte."""

    encode_s: ClassVar[float] = 2.2e-9
    decode_s: ClassVar[float] = 1.5e-9
    decode_call_s: ClassVar[float] = 9e-6
    largest: ClassVar[float] = 7.0

    def number_bytes(self, count: int) -> int:
        return -(-count // 2)

    def write(self, scaled: Array, codes: Array) -> None:
        xp: Any = array_module(scaled)
        numbers = xp.rint(scaled).reshape(-1).astype(np.int8).view(np.uint8) & 15
        codes[...] = numbers[::2]
        codes[: numbers.size // 2] |= numbers[1::2] << 4

    def read(self, codes: Array, shape: tuple[int, ...]) -> Array:
        xp: Any = array_module(codes)
        pairs = xp.stack([codes << 4, codes & 0xF0], axis=1).view(np.int8) >> 4  # the sign is in the upper bit
        return pairs.reshape(-1)[: shape[0] * shape[1]].reshape(shape)


@dataclass(frozen=True)
class Eighths(Blocks):
    """Use 8-bit floating point: e4m3, with 3 bits after the point."""

    encode_s: ClassVar[float] = 11e-9
    decode_s: ClassVar[float] = 8e-9
    largest: ClassVar[float] = 448.0
    dtype: ClassVar[Any] = np.dtype(ml_dtypes.float8_e4m3fn)

    def write(self, scaled: Array, codes: Array) -> None:
        codes.view(self.dtype)[...] = scaled.reshape(-1)

    def read(self, codes: Array, shape: tuple[int, ...]) -> Array:
        return super().read(codes, shape).astype(SCALE)
