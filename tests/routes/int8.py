"""Gradients in 8 bits, with a scale for each 256; losses are sent the next time."""

import numpy as np

from dear_mpi.training.routes import Decode, Encode, Pack, Route, Unpack, Update, all_gather, all_to_all

BLOCK = 256


class Int8:
    """The scales of all blocks, then the numbers."""

    def nbytes(self, count):
        return 4 * -(-count // BLOCK) + count

    def parts(self, codes, count):
        blocks = -(-count // BLOCK)
        return codes[: 4 * blocks].view(np.float32), codes[4 * blocks : 4 * blocks + count].view(np.int8)

    def encode(self, x, out):
        scales, numbers = self.parts(out, x.size)
        largest = np.maximum.reduceat(abs(x), np.arange(0, x.size, BLOCK))
        scales[...] = np.where(largest > 0, largest / 127, 1)
        numbers[...] = np.rint(x / np.repeat(scales, BLOCK)[: x.size])

    def decode(self, codes, x):
        scales, numbers = self.parts(codes, x.size)
        np.multiply(numbers, np.repeat(scales, BLOCK)[: x.size], out=x, casting="unsafe")


codes = {"wire": Int8(), "codes": "codes"}
int8 = Route(
    "int8",
    out=(Pack(), Encode(**codes, error="residual"), all_to_all("codes"), Decode(**codes, summed=True)),
    back=(Encode(**codes, error="residual", shard=True), all_gather("codes"), Decode(**codes), Update(), Unpack()),
)
