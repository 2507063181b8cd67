"""A bucket, bound to the memory of an arena: what packs it, and what updates its values when it has been reduced.

Whatever goes wrong with a gradient on one rank ends as a NaN or an infinity in the sum, which is the same on all ranks.
The update tells whether it met one: so all ranks find it in the same iteration, without a message. Where each rank
updates a shard, one rank alone meets it. That rank then puts a mark into the first value of its shard: a NaN that no
computation gives. All ranks look for the mark there when they have gathered the values. Empty shards have no gradients.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.calls import UpdateCall, updater
from dear_mpi.kernels.slab import Slab
from dear_mpi.training.line.arena import Arena
from dear_mpi.training.line.bucket import Bucket

READINESS = "readiness"  # a byte for each tensor, by which ranks see that all are ready everywhere
WORDS = {2: 0x7FDE, 4: 0x7FDEDEAD, 8: 0x7FFDEDEADEADDEAD}  # by itemsize; each is a NaN in all types of that size


class BoundBucket:
    """A bucket with its part of the gradients, as they travel, the values and the optimiser's state.

    Args:
        finite: a boolean array of one element, which turns False when a summed gradient is not finite.

    Attributes:
        buffer, values: its gradients as they travel, and its parameters: views into the arena.
        own_updates, updates: how often this rank's shard, and all of its parameters, have been updated.
        tally: how often codes did not fit, and how often they did.
    """

    def __init__(self, bucket: Bucket, arena: Arena, finite: Array) -> None:
        self.bucket, self.arena, self.finite = bucket, arena, finite
        span, own = slice(bucket.start, bucket.stop), arena.shards.of(bucket)
        self.buffer, self.values, self.own = arena.wire[span], arena.values[span], arena.values[own]
        self.own_updates = self.updates = arena.updates
        self.rank, self.ranks, self.hosts, self.begin = arena.rank, arena.owners.ranks, arena.hosts, bucket.start
        self.side: dict[str, Array] = {}  # what travels beside the lines
        self.fits, self.found, self.tally = True, None, [0, 0]
        self.look: Any = None  # takes a shard of the sums into the statistics, if there are any
        self.packing, self.unpacking = arena.packing(bucket), arena.unpacking(bucket)
        self.reading = arena.reading(own)
        self.own_finite = array_module(finite).ones_like(finite) if arena.sharded else finite
        self.word = np.dtype(f"u{self.values.itemsize}").type(WORDS[self.values.itemsize])
        self.words = self.values.view(self.word.dtype)
        self.firsts = array_module(finite).asarray(arena.shards.begins(bucket))  # where a mark may be
        self.state = [array[arena.shards.state[bucket]] for array in arena.state]
        lines = arena.wire[own], self.own, *self.state
        if arena.optimizer.scope == "element":
            self.updaters = [self.updater(*lines)]
        else:
            self.updaters = [
                self.updater(*(arena.seen(line, tensor, begin=own.start) for line in lines), tensor=tensor)
                for tensor in arena.layout.tensors(own.start, own.stop)
            ]

    def updater(self, grads: Array, values: Array, *state: Array, tensor: int | None = None) -> UpdateCall:
        """What updates a part of a line, or a tensor; that one may have an optimiser of its own."""
        own = None if tensor is None else self.arena.parameters[tensor].optimizer
        call = updater(grads, values, state, own or self.arena.optimizer, finite=self.own_finite)
        return call if own is None else lambda optimizer, update, factor: call(own, update, factor)

    def line(self, name: str) -> Array:
        """Its part of a line: ``gradients`` (as they travel), ``values``, codes, or a rank's own."""
        if name in self.side:
            return self.side[name]
        lines = {"gradients": self.arena.wire, "values": self.arena.values, **self.arena.lines}
        part: Array = lines[name][self.bucket.start : self.bucket.stop]
        return part

    def place(self, shard: int) -> slice:
        """Where in it a rank's shard is."""
        return self.arena.ranks.partitions[self.bucket].shard(shard)

    def shard(self, name: str, shard: int) -> Array:
        return self.line(name)[self.place(shard)]

    def rows(self, codes: str) -> Array:
        """The codes of its shards, a row of bytes for each."""
        return self.side[codes].reshape(self.ranks, -1)

    def has_elements(self, line: str) -> bool:
        """Whether a line is one of the arena, in which each rank owns a part of the bucket."""
        return line not in self.arena.route.codes and line != READINESS

    def tensors(self, name: str) -> list[Array]:
        """The tensors of its part of a line, in their shapes; buckets must have whole ones."""
        part = self.line(name)
        numbers = self.arena.layout.tensors(*self.bucket.interval)
        return [self.arena.view(part, tensor, begin=self.begin) for tensor in numbers]

    def filled(self, shard: int) -> Array:
        """Which elements of a rank's shard are a tensor's, and no padding: an array of the host."""
        layout, (start, stop) = self.arena.layout, self.bucket.interval
        found = np.zeros(stop - start, bool)
        for tensor in layout.tensors(start, stop):
            found[max(layout.offsets[tensor], start) - start : layout.ends[tensor] - start] = True
        return found[self.place(shard)]

    def travels(self, line: str, slab: Slab) -> Array:
        """What a collective of a line sends; what has no part in the arena is taken from a slab."""
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
        """Act where codes fit, or where they do not."""
        if self.fits == fits:
            act()

    def update_own(self, factor: float) -> None:
        """Apply the optimiser to this rank's shard, with the reduced gradients in the buffer, times a factor.

        Before that the line takes back what was changed in parameters that stay where they are.
        """
        self.apply(self.updaters, factor)
        if self.arena.sharded and self.own.size:  # perhaps on another thread than the one that looks at the result
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
        """What applies the optimiser to some elements alone, by their gradients; ``places`` says which, each time."""
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
        """All values are new: bring them to the parameters that stay."""
        if self.arena.sharded:
            self.finite &= (self.words[self.firsts] != self.word).all()
        self.updates += 1
        self.unpack()

    def unpack(self) -> None:
        for call in self.unpacking:
            call()

    def complaint(self, *, summed: bool) -> str:
        """Say that gradients were not finite; if they were summed, all ranks say the same."""
        wire, advice = self.buffer.dtype, "try a lower learning rate (--lr)"
        if wire.itemsize < 4:
            advice = f"a type of a wider range may carry them (--wire bf16 or fp32), or {advice}"
        wrong = "infinite or not a number"
        if not summed:
            return f"{self.parameters()}: gradients are {wrong} in update {self.own_updates - 1}: {advice}"
        return f"{self.bucket}: gradients, summed in {wire}, are {wrong} in update {self.updates - 1}: {advice}"

    def parameters(self) -> str:
        """Its parameters that are not finite, or all of them, by name."""
        layout, xp = self.arena.layout, array_module(self.values)
        tensors = layout.tensors(*self.bucket.interval)
        spans = [(tensor, self.arena.values[layout.offsets[tensor] : layout.ends[tensor]]) for tensor in tensors]
        wrong = [tensor for tensor, values in spans if not bool(xp.isfinite(values).all())] or tensors
        return f"parameter{'s' * (len(wrong) > 1)} {', '.join(self.arena.names[tensor] for tensor in wrong):.200}"
