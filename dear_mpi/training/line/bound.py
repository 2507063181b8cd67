"""Bind a bucket to an arena's memory: packing, and updates after reduction.

A faulty gradient on any rank makes the sum NaN or infinite on all ranks. So all ranks notice in the same update,
without a message. With sharded updates only one rank sees it: that rank writes a mark, a NaN that no computation
produces, into its shard's first value. All ranks look for marks in the gathered values. Empty shards have no gradients.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.calls import UpdateCall, updater
from dear_mpi.kernels.slab import Slab
from dear_mpi.training.line.arena import Arena
from dear_mpi.training.line.bucket import Bucket

READINESS = "readiness"  # a byte per tensor; tells ranks that a tensor is ready everywhere
WORDS = {2: 0x7FDE, 4: 0x7FDEDEAD, 8: 0x7FFDEDEADEADDEAD}  # by itemsize; each is a NaN in all types of that size


class BoundBucket:
    """Hold a bucket's views of travelling gradients, values and optimiser state.

    Args:
        finite: a one-element boolean array; becomes False when a summed gradient is not finite.

    Attributes:
        buffer, values: its travelling gradients and its parameters.
        own_updates, updates: number of updates of this rank's shard, and of all its parameters.
        tally: how often codes did not fit, and how often they did.
    """

    def __init__(self, bucket: Bucket, arena: Arena, finite: Array) -> None:
        self.bucket, self.arena, self.finite = bucket, arena, finite
        span, own = slice(bucket.start, bucket.stop), arena.shards.of(bucket)
        self.buffer, self.values, self.own = arena.wire[span], arena.values[span], arena.values[own]
        self.own_updates = self.updates = arena.updates
        self.rank, self.ranks, self.hosts, self.begin = arena.rank, arena.owners.ranks, arena.hosts, bucket.start
        self.side: dict[str, Array] = {}  # arrays that travel but are not on the arena's lines
        self.fits, self.found, self.tally = True, None, [0, 0]
        self.look: Any = None  # adds a shard of the sums to the statistics, if any
        self.packing, self.unpacking = arena.packing(bucket), arena.unpacking(bucket)
        self.reading = arena.reading(own)
        self.own_finite = array_module(finite).ones_like(finite) if arena.sharded else finite
        self.word = np.dtype(f"u{self.values.itemsize}").type(WORDS[self.values.itemsize])
        self.words = self.values.view(self.word.dtype)
        self.firsts = array_module(finite).asarray(arena.shards.begins(bucket))  # possible places of a mark
        self.state = [array[arena.shards.state[bucket]] for array in arena.state]
        lines = arena.wire[own], self.own, *self.state
        if hasattr(arena.optimizer, "bind"):
            self.updaters = arena.optimizer.bind(self)
        elif arena.optimizer.scope == "element":
            self.updaters = [self.updater(*lines)]
        else:
            self.updaters = [
                self.updater(*(arena.seen(line, tensor, begin=own.start) for line in lines), tensor=tensor)
                for tensor in arena.layout.tensors(own.start, own.stop)
            ]

    def updater(self, grads: Array, values: Array, *state: Array, tensor: int | None = None) -> UpdateCall:
        """Return the call that updates a span, or a tensor, perhaps with a private optimiser."""
        own = None if tensor is None else self.arena.parameters[tensor].optimizer
        call = updater(grads, values, state, own or self.arena.optimizer, finite=self.own_finite)
        return call if own is None else lambda optimizer, update, factor: call(own, update, factor)

    def line(self, name: str) -> Array:
        """Return its part of a line: travelling ``gradients``, ``values``, codes, or an extra line."""
        if name in self.side:
            return self.side[name]
        lines = {"gradients": self.arena.wire, "values": self.arena.values, **self.arena.lines}
        part: Array = lines[name][self.bucket.start : self.bucket.stop]
        return part

    def place(self, shard: int) -> slice:
        return self.arena.ranks.partitions[self.bucket].shard(shard)

    def shard(self, name: str, shard: int) -> Array:
        return self.line(name)[self.place(shard)]

    def rows(self, codes: str) -> Array:
        """Return the codes, a row of bytes per shard."""
        return self.side[codes].reshape(self.ranks, -1)

    def has_elements(self, line: str) -> bool:
        """Tell whether the line is in the arena, with a part for each rank."""
        return line not in self.arena.route.codes and line != READINESS

    def tensors(self, name: str) -> list[Array]:
        """List the tensors of its part of a line; buckets must consist of whole ones."""
        part = self.line(name)
        numbers = self.arena.layout.tensors(*self.bucket.interval)
        return [self.arena.view(part, tensor, begin=self.begin) for tensor in numbers]

    def filled(self, shard: int) -> Array:
        """Mark the elements of a rank's shard that are not padding, in a host array."""
        layout, (start, stop) = self.arena.layout, self.bucket.interval
        found = np.zeros(stop - start, bool)
        for tensor in layout.tensors(start, stop):
            found[max(layout.offsets[tensor], start) - start : layout.ends[tensor] - start] = True
        return found[self.place(shard)]

    def travels(self, line: str, slab: Slab) -> Array:
        """Return the array that a collective sends; from a slab if the arena has none."""
        if self.has_elements(line):
            return self.line(line)
        if line not in self.side:
            tensors = len(self.arena.layout.tensors(*self.bucket.interval))
            nbytes = tensors if line == READINESS else self.arena.nbytes_of(line, self.bucket)
            adds_up = line != READINESS and self.arena.route.codes[line].adds_up
            dtype = self.buffer.dtype if adds_up else np.dtype("u1")
            self.side[line] = slab.empty(nbytes // dtype.itemsize, dtype)
        return self.side[line]

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
        """Apply the optimiser to this rank's shard, with the reduced gradients times a factor.

        First copy changed staying parameters to the line.
        """
        self.apply(self.updaters, factor)
        if self.arena.sharded and self.own.size:  # perhaps on another thread than the one that reads the result
            xp: Any = array_module(self.own)
            first = self.own.view(self.word.dtype)[:1]
            first[...] = xp.where(self.own_finite, first, self.word)

    def apply(self, updaters: Sequence[UpdateCall], factor: float) -> None:
        optimizer = self.arena.optimizer_at(self.own_updates)
        for call in self.reading:
            call()
        self.own_updates += 1
        for update in updaters:
            update(optimizer, self.own_updates, factor)

    def selected(self, grads: Array, places: Callable[[], Array]) -> Callable[[float], None]:
        """Return a call that updates only the elements ``places()``, by their gradients."""
        lines = (self.values, *self.state)
        some = [line[: grads.size].copy() for line in lines]
        updaters = [self.updater(grads, *some)]

        def update(factor: float) -> None:
            at = places()
            for part, line in zip(some, lines, strict=True):
                part[...] = line[at]
            self.apply(updaters, factor)
            for part, line in zip(some, lines, strict=True):
                line[at] = part

        return update

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
        """Report non-finite gradients, equally on all ranks if they were summed."""
        wire, advice = self.buffer.dtype, "try a lower learning rate (--lr)"
        if wire.itemsize < 4:
            advice = f"a type of a wider range may carry them (--wire bf16 or fp32), or {advice}"
        wrong = "infinite or not a number"
        if not summed:
            return f"{self.parameters()}: gradients are {wrong} in update {self.own_updates - 1}: {advice}"
        return f"{self.bucket}: gradients, summed in {wire}, are {wrong} in update {self.updates - 1}: {advice}"

    def parameters(self) -> str:
        """Name the non-finite parameters, or all if none is."""
        layout, xp = self.arena.layout, array_module(self.values)
        tensors = layout.tensors(*self.bucket.interval)
        spans = [(tensor, self.arena.values[layout.offsets[tensor] : layout.ends[tensor]]) for tensor in tensors]
        wrong = [tensor for tensor, values in spans if not bool(xp.isfinite(values).all())] or tensors
        return f"parameter{'s' * (len(wrong) > 1)} {', '.join(self.arena.names[tensor] for tensor in wrong):.200}"
