"""Bind a bucket to an arena's memory: packing, and updates after reduction.

A faulty gradient makes the sum NaN or infinite on all ranks, so all notice in one update. With sharded updates only the
owner sees it, and marks its shard's first value by a NaN that no computation produces. All ranks look for marks in the
gathered values.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.calls import Call, UpdateCall, updater
from dear_mpi.kernels.slab import Slab
from dear_mpi.training.buckets.arena import Arena
from dear_mpi.training.buckets.layout import Bucket

READINESS = "readiness"  # a byte per tensor, set if it is ready everywhere
WORDS = {2: 0x7FDE, 4: 0x7FDEDEAD, 8: 0x7FFDEDEADEADDEAD}  # by itemsize; a NaN in all types of that size


class BoundBucket:
    """Hold a bucket's views of travelling gradients, values and optimiser state, for stages.

    ``finite``: a one-element boolean array; becomes False when a summed gradient is not finite.

    Attributes:
        begin: its first element in the flat buffer.
        own_updates, updates: of this rank's shard, and of all its parameters.
        fits, tally: whether codes fit (a stage's ``judge``); how often not, and how often.
        found: whatever one stage passes to another.
        look: adds a shard of the sums to the statistics, if any.
    """

    def __init__(self, bucket: Bucket, arena: Arena, finite: Array) -> None:
        self.bucket, self.arena, self.finite = bucket, arena, finite
        span, own = slice(*bucket.interval), arena.shards.own(bucket)
        self.gradients, self.values, self.own = arena.wire[span], arena.values[span], arena.values[own]
        self.own_updates = self.updates = arena.updates
        self.rank, self.ranks, self.hosts, self.begin = arena.rank, arena.owners.ranks, arena.hosts, bucket.start
        self.side: dict[str, Array] = {}  # arrays that travel, not on the arena's buffers
        self.fits, self.found, self.tally = True, None, [0, 0]
        self.look: Any = None
        self.packing, self.unpacking = arena.packing(bucket), arena.unpacking(bucket)
        self.reading = arena.reading(own)
        self.own_finite = array_module(finite).ones_like(finite) if arena.sharded else finite
        self.word = np.dtype(f"u{self.values.itemsize}").type(WORDS[self.values.itemsize])
        self.words = self.values.view(self.word.dtype)
        borders = arena.shards.partitions[bucket].borders
        self.firsts = array_module(finite).asarray([start for start, stop in pairwise(borders) if start < stop])
        self.state = [array[arena.shards.state[bucket]] for array in arena.state]
        self.before: list[Call] = []  # calls before each update, see ``kept.py``
        self.copy_state: Call = lambda: None
        self.updaters: list[UpdateCall] = arena.optimizer.bind(self)

    def updaters_on_arrays(self) -> list[UpdateCall]:
        """Return a call that updates the own part, or one for each tensor."""
        arena, own = self.arena, self.arena.shards.own(self.bucket)
        buffers, found = (arena.wire[own], self.own, *self.state), list[UpdateCall]()
        if arena.optimizer.scope == "element":
            return [self.updater(*buffers)]
        for tensor in arena.layout.tensors(own.start, own.stop):
            parameter = arena.parameters[tensor]
            views = (parameter.outputs_first(arena.view(buffer, tensor, begin=own.start)) for buffer in buffers)
            found.append(self.updater(*views, tensor=tensor))
        return found

    def updater(self, grads: Array, values: Array, *state: Array, tensor: int | None = None) -> UpdateCall:
        """Return a call that updates a span, or a tensor, perhaps with a private optimiser."""
        own = None if tensor is None else self.arena.parameters[tensor].optimizer
        call = updater(grads, values, state, own or self.arena.optimizer, finite=self.own_finite)
        return call if own is None else lambda optimizer, update, factor: call(own, update, factor)

    def buffer(self, name: str) -> Array:
        """Return its part of a buffer: travelling ``gradients``, ``values``, codes, or an extra."""
        if name in self.side:
            return self.side[name]
        buffers = {"gradients": self.arena.wire, "values": self.arena.values, **self.arena.buffers}
        part: Array = buffers[name][slice(*self.bucket.interval)]
        return part

    def place(self, shard: int) -> slice:
        return self.arena.sharing.of(self.bucket).shard(shard)

    def shard(self, name: str, shard: int) -> Array:
        return self.buffer(name)[self.place(shard)]

    def rows(self, codes: str) -> Array:
        return self.side[codes].reshape(self.ranks, -1)

    def has_elements(self, buffer: str) -> bool:
        """Tell whether the buffer has an element for each of the bucket's, so that each rank has its shard."""
        codes = self.arena.route.codes
        return codes[buffer].by_element if buffer in codes else buffer != READINESS

    def numbers(self) -> list[int]:
        return self.arena.layout.tensors(*self.bucket.interval)

    def tensors(self, name: str) -> list[Array]:
        """List its tensors in a buffer; buckets must consist of whole ones."""
        part = self.buffer(name)
        return [self.arena.view(part, tensor, begin=self.begin) for tensor in self.numbers()]

    def filled(self, shard: int) -> Array:
        """Mark elements of a rank's shard that are not padding, in a host array."""
        layout, found = self.arena.layout, np.zeros(self.bucket.count, bool)
        for tensor in self.numbers():
            found[max(layout.offsets[tensor] - self.begin, 0) : layout.ends[tensor] - self.begin] = True
        return found[self.place(shard)]

    def travels(self, buffer: str, slab: Slab) -> Array:
        """Return the array that a collective sends, by default from a slab."""
        codes = self.arena.route.codes.get(buffer)
        if codes is None and buffer != READINESS:
            return self.buffer(buffer)
        if buffer not in self.side:
            nbytes = self.arena.nbytes_of(buffer, self.bucket) if codes else len(self.numbers())
            dtype = (codes.dtype or self.gradients.dtype) if codes and codes.adds_up else np.dtype("u1")
            count = self.bucket.count if self.has_elements(buffer) else nbytes // dtype.itemsize
            self.side[buffer] = slab.empty(count, dtype)
        return self.side[buffer]

    def pack(self) -> None:
        for call in self.packing:
            call()

    def judge(self, *, fits: bool) -> None:
        self.fits = fits
        self.tally[fits] += 1

    def where(self, act: Callable[[], object], *, fits: bool) -> None:
        if self.fits == fits:
            act()

    def update_own(self, factor: float) -> None:
        self.apply(self.updaters, factor)
        if self.arena.sharded and self.own.size:  # another thread may read the result
            xp: Any = array_module(self.own)
            first = self.own.view(self.word.dtype)[:1]
            first[...] = xp.where(self.own_finite, first, self.word)

    def apply(self, updaters: Sequence[UpdateCall], factor: float) -> None:
        optimizer = self.arena.optimizer_at(self.own_updates)
        for call in self.reading:
            call()
        for call in self.before:
            call()
        self.own_updates += 1
        for update in updaters:
            update(optimizer, self.own_updates, factor)

    def updated(self) -> None:
        """Check gathered values for marks, and unpack them."""
        if self.arena.sharded:
            self.finite &= (self.words[self.firsts] != self.word).all()
        self.updates += 1
        self.unpack()

    def unpack(self) -> None:
        for call in self.unpacking:
            call()

    def complaint(self, *, summed: bool) -> str:
        """Report non-finite gradients, equally on all ranks if summed."""
        wire, advice = self.gradients.dtype, "try a lower learning rate (--lr)"
        if wire.itemsize < 4:
            advice = f"a type of a wider range may carry them (--wire bf16 or fp32), or {advice}"
        wrong = "infinite or not a number"
        if not summed:
            return f"{self.parameters()}: gradients are {wrong} in update {self.own_updates - 1}: {advice}"
        return f"{self.bucket}: gradients, summed in {wire}, are {wrong} in update {self.updates - 1}: {advice}"

    def parameters(self) -> str:
        """Name non-finite parameters, or all if none is."""
        xp, values = array_module(self.values), self.arena.values
        wrong = [each for each in self.numbers() if not bool(xp.isfinite(self.arena.view(values, each)).all())]
        names = [self.arena.names[tensor] for tensor in wrong or self.numbers()]
        return f"parameter{'s' * (len(names) > 1)} {', '.join(names):.200}"
