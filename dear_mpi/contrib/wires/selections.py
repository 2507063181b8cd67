"""Send some elements of gradients: the largest (``topk:1%``), random ones (``randomk:10%``) or blocks (``blocks:10%``).

Top-k sends a shard's largest elements with their places, 8 bytes each; a NaN counts as the largest. An owner selects
again from the sum, so gathers do not grow with ranks.

A random selection adds up, because all ranks send the same elements I of a bucket:

    out    add the waiting gradients, take elements I: codes | reduce_scatter codes
    back   all_gather codes | update the elements I by their sums

A shared seed redraws I for each update, so no index travels. Other gradients wait on each rank's error buffer. State is
updated only for I: with momentum .9 and error feedback, training diverged otherwise.

``encode_s`` and ``decode_s`` are seconds per element on one core, ``encode_call_s`` and ``decode_call_s`` per call.

Source: Aji and Heafield, Sparse Communication, EMNLP 2017; Lin et al., DGC, ICLR 2018. Eghlidi and Jaggi, arXiv
2009.09271; Vogels et al., PowerSGD, NeurIPS 2019, appendix G.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.optimizers import CALL_COST
from dear_mpi.kernels.slab import CHUNK_BYTES, round_up
from dear_mpi.training.routes import (
    MAIN,
    Act,
    BucketMemory,
    Kind,
    Memory,
    Pack,
    Payload,
    Route,
    Sizes,
    Unpack,
    Update,
    WithErrors,
    all_gather,
    coded,
    reduce_scatter,
    share,
)

VALUE, PLACE = np.dtype(np.float32), np.dtype(np.int32)


@dataclass(frozen=True)
class Share:
    """Keep a share of the elements, at least one."""

    share: float

    def kept(self, count: int) -> int:
        return min(count, max(1, round(self.share * count)))


class TopK(Share):
    """Send the largest elements of a shard; selecting takes 6 to 27 ns per element in NumPy."""

    encode_s, decode_s = 6e-9, 0.5e-9
    encode_call_s, decode_call_s = 7e-6, 3e-6

    def nbytes(self, count: int) -> int:
        return self.kept(count) * (VALUE.itemsize + PLACE.itemsize)

    def parts(self, codes: Array, count: int) -> tuple[Array, Array]:
        border = self.kept(count) * VALUE.itemsize
        return codes[:border].view(VALUE), codes[border : self.nbytes(count)].view(PLACE)

    def encode(self, x: Array, out: Array) -> None:
        xp: Any = array_module(x)
        values, places = self.parts(out, x.size)
        places[...] = xp.sort(xp.argpartition(xp.abs(x), x.size - values.size)[x.size - values.size :])
        values[...] = x[places]

    def decode(self, codes: Array, x: Array) -> None:
        values, places = self.parts(codes, x.size)
        x[...] = 0
        x[places] = values


SEED = 20090926
LINE = CHUNK_BYTES // 4  # elements: whole cache lines; divides every bucket's length


class RandomK(Share):
    """Draw one random element per 1 / ``share`` elements; draws are pairwise independent."""

    encode_s, decode_s = 1.2e-9, 1.4e-9  # decoding: redraw, values and one optimiser array
    encode_call_s, decode_call_s = 30e-6, 35e-6  # cold cache; as far above a warm loop as int8

    def places(self, count: int, draw: tuple[int, int]) -> Array:
        """Return the selected indices, ascending and unique; equal for equal ``draw``."""
        kept = self.kept(count)
        borders = np.arange(kept + 1) * count // kept
        drawn = np.random.default_rng([SEED, *draw]).random(kept)
        return borders[:-1] + (drawn * (borders[1:] - borders[:-1])).astype(np.int64)


class RandomBlocks(RandomK):
    """Draw blocks of 32 elements on a fixed grid, so that copies are contiguous."""

    encode_s, decode_s = 0.8e-9, 0.7e-9

    def kept(self, count: int) -> int:
        return LINE * super().kept(count // LINE)

    def places(self, count: int, draw: tuple[int, int]) -> Array:
        blocks = RandomK(self.share).places(count // LINE, draw)
        return (blocks[:, None] * LINE + np.arange(LINE)).reshape(-1)


class Selection(Payload):
    """Give each selected element one of the buffer, in the type of gradients. ``wire``: see ``RandomK``."""

    adds_up: ClassVar[bool] = True

    def payload_bytes(self, of: Sizes) -> int:
        return round_up(self.wire.kept(of.count) * of.itemsize, of.ranks * CHUNK_BYTES)

    def places(self, bucket: BucketMemory) -> Array:
        found: Array = self.wire.places(bucket.buffer("gradients").size, (bucket.begin, bucket.own_updates))
        return found


class Select(WithErrors, Selection):
    """Select elements of gradients plus ``error``, the buffer of those waiting."""

    act: ClassVar[str] = "encode"

    def prove(self, memory: Memory) -> None:
        self.prove_at(memory, memory.places)

    def bind(self, bucket: BucketMemory) -> Act:
        gradients, codes = bucket.buffer("gradients"), bucket.buffer(self.codes)
        waiting = gradients if self.error is None else bucket.buffer(self.error)
        xp: Any = array_module(codes)
        kept = self.wire.kept(gradients.size)
        codes[kept:] = 0

        def select(factor: float) -> None:
            if waiting is not gradients:
                waiting[...] += gradients
            places = self.places(bucket)
            codes[:kept] = waiting[places]
            waiting[places] = 0
            codes[:1] = xp.where(xp.isfinite(waiting).all(), codes[:1], xp.nan)  # now, not when it is drawn

        return select

    def __str__(self) -> str:
        return f"select gradients to {self.codes}{f', with {self.error}' if self.error else ''}"


@dataclass(frozen=True, kw_only=True)
class UpdateSelected(Update, Selection):
    act: ClassVar[str] = "decode"

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.codes, "values", "state")

    def elements(self, whole: float, own: Any) -> Any:
        """Count a call's full cost: the mean cost per element spreads it over all elements."""
        return whole * (self.wire.kept(round(whole)) + CALL_COST) / (whole + CALL_COST)

    def bind(self, bucket: BucketMemory) -> Act:
        grads = bucket.buffer(self.codes)[: self.wire.kept(bucket.buffer("gradients").size)]
        buffers = (bucket.values, *bucket.state)
        some = [buffer[: grads.size].copy() for buffer in buffers]
        updaters = [bucket.updater(grads, *some)]

        def update(factor: float) -> None:
            at = self.places(bucket)
            for part, buffer in zip(some, buffers, strict=True):
                part[...] = buffer[at]
            bucket.apply(updaters, factor)
            for part, buffer in zip(some, buffers, strict=True):
                buffer[at] = part

        return update

    def __str__(self) -> str:
        return f"update what {self.codes} have"


def selected(name: str, wire: RandomK, *, sharded: bool = False, error: str | None = "residual") -> Route:
    """Send selected gradients and keep the rest for later; ValueError if ``sharded``."""
    if sharded:
        raise ValueError(f"update must be full: {name.partition(' over ')[2]} changes elements of all shards")
    codes: dict[str, Any] = {"wire": wire, "codes": "codes"}
    out = Pack(), Select(**codes, error=error), reduce_scatter("codes")
    return Route(name, out, (all_gather("codes"), UpdateSelected(**codes, on=MAIN), Unpack()))


TOPK = Kind(TopK, coded, share, "topk:1%", options=("error=no", "between"))
RANDOMK = Kind(RandomK, selected, share, "randomk:10%")
BLOCKS = Kind(RandomBlocks, selected, share, "blocks:10%")
