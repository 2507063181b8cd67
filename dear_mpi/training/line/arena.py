"""The memory of the line: values, gradients and the optimiser's state, each one flat array.

    values   | weight | bias |.| weight | bias |......|     parameters of the layers are views into it
    grads    | weight | bias |.| weight | bias |......|     layers write their gradients straight into it
    wire     the same array as grads, or its copy in the type that travels
    state    | ...                                    |     one array for each that the optimiser keeps, of this
                                                            rank's shards (``shards.py``), when buckets are known

So an update of a bucket is one pass over flat arrays, wherever tensors end, and buckets can be cut anew without moving
a byte. A parameter whose memory is its owner's (``rebind=False``), or whose type is not the line's, stays where it is:
its gradient is packed into the line, and its value unpacked from it. Its owner may change the value in place: before an
update the line takes it back.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.calls import copier, packer, unpacker
from dear_mpi.kernels.optimizer import Optimizer
from dear_mpi.kernels.slab import ALIGNMENT, Slab
from dear_mpi.models.layer import Layer, Parameter
from dear_mpi.training.learning_rate import Rate, checked
from dear_mpi.training.line.bucket import Bucket, Cut
from dear_mpi.training.line.layout import Layout
from dear_mpi.training.line.owners import Owners, Sharing
from dear_mpi.training.line.parameters import Call, held, line_dtype, of_tensors, readers, trained
from dear_mpi.training.line.shards import Shards
from dear_mpi.training.routes.find import FULL
from dear_mpi.training.routes.route import Route

ALONE = Owners()  # of the only rank


@dataclass
class GradPlace:
    """Where one use of a layer finds the value and writes the gradient of one parameter."""

    parameter: Parameter
    value: Array
    grad: Array
    left: Array | None = None  # what its value was moved from, if any other code still holds that


class Arena:
    """The flat arrays of a model's line, to which its parameters are bound.

    Args:
        uses: the layers, in the order in which they run.
        wire: the type in which gradients travel.
        learning_rate: from the number of an update, counted from 0; the optimiser's rate if it is not given.
        route: says whether a rank updates its shards alone, and which lines it has for itself.
        hosts: of each rank the number of its host.
        owners: who updates which part of buckets, where a rank updates its shards alone.
        slab: what is communicated is taken from it.
        put: brings an array to where the slab is.
    """

    def __init__(
        self,
        uses: Sequence[Layer],
        layout: Layout,
        *,
        wire: np.dtype[Any],
        optimizer: Optimizer,
        learning_rate: Rate | None = None,
        route: Route = FULL,
        rank: int = 0,
        hosts: Sequence[int] = (0,),
        owners: Owners = ALONE,
        slab: Slab,
        put: Callable[[Array], Array] = lambda array: array,
    ) -> None:
        dtype = line_dtype(uses)
        self.layout, self.optimizer, self.learning_rate = layout, optimizer, learning_rate
        self.route, self.owners, self.sharded = route, owners, route.update.shard
        self.rank, self.hosts = rank, hosts
        self.values, self.grads = slab.zeros(layout.count, dtype), slab.zeros(layout.count, dtype)
        self.wire = self.grads if wire == dtype else slab.zeros(layout.count, wire)
        self.state: list[Array] = []
        self.lines = {name: array_module(self.values).zeros(layout.count, dtype) for name in route.lines}
        self.parameters = of_tensors(uses, layout)
        self.updates = 0  # of every bucket, whenever buckets are cut
        self.over = False
        self.staying: dict[int, Parameter] = {}  # of tensors that stay where they are
        self.tied: dict[int, list[Array]] = {}  # gradients of the tied, from uses that do not own them
        self.put = put
        self.bound_values: dict[int, Array] = {}  # the views that parameters have
        for parameter in (parameter for layer in uses for parameter in layer.parameters if not parameter.trained):
            parameter.value, parameter.grad = put(parameter.value), put(parameter.grad)
        self.places = [
            [self.place(*pair) for pair in zip(trained(layer), tensors, strict=True)]
            for layer, tensors in zip(uses, layout.uses, strict=True)
        ]
        self.begin_lines()

    def begin_lines(self) -> None:
        """Some lines have the values at first."""
        for name, line in self.lines.items():
            if self.route.lines[name] == "values":
                line[...] = self.values

    @staticmethod
    def nbytes(layout: Layout, dtype: np.dtype[Any], wire: np.dtype[Any]) -> int:
        """What an arena takes from its slab."""
        itemsizes = [dtype.itemsize, dtype.itemsize, *([wire.itemsize] if wire != dtype else [])]
        return sum(layout.count * itemsize + ALIGNMENT for itemsize in itemsizes)

    def nbytes_of(self, line: str, bucket: Bucket) -> int:
        """Bytes that a collective of a line has for a bucket, as ``Route.nbytes`` counts them."""
        sizes = {"wire": self.wire.itemsize, "values": self.values.itemsize, "ranks": self.owners.ranks}
        longest = self.sharing.longest(bucket)
        return self.route.nbytes(line, bucket.count, longest=longest, shapes=bucket.shapes, **sizes)

    def share_out(self, buckets: Cut) -> None:
        """From now on these are the buckets. The state of a rank that updates its shards alone is zero then."""
        self.sharing = Sharing(self.owners, self.layout, buckets)
        self.ranks = Shards(self.rank, self.owners.ranks, self.sharing.partitions)
        self.shards = self.ranks if self.sharded else Shards(0, 1, ALONE.partitions(self.layout, buckets))
        if self.sharded or not self.state:
            self.state = self.optimizer.new_state(self.values[: self.shards.count])

    def place(self, parameter: Parameter, tensor: int) -> GradPlace:
        """Bind a parameter to its part of the line, if it has not been bound, and say where its gradient goes."""
        other = None if parameter.line is None else parameter.line()
        if other is not None and other is not self and not other.over:
            what = "is trained by another session that is not over; ranks that are threads need layers of their own"
            raise ValueError(f"parameter {parameter.name} {what}")
        parameter.line = weakref.ref(self)
        tied = tensor in self.tied
        value = self.bound_values.setdefault(tensor, self.view(self.values, tensor))
        grad = self.view(self.grads, tensor)
        if not tied:
            self.tied[tensor] = []
            value[...] = self.put(parameter.value)
        if tied and tensor in self.staying:
            raise ValueError(f"parameter {parameter.name} is tied to one that must stay in its own memory")
        if not parameter.rebind or parameter.value.dtype != value.dtype:
            if tied:
                raise ValueError(f"parameter {parameter.name} is tied, so it must take the line's memory and type")
            if not (parameter.value.flags.c_contiguous and parameter.grad.flags.c_contiguous):
                raise ValueError(f"parameter {parameter.name} must be contiguous, because it stays where it is")
            self.staying[tensor] = parameter
            parameter.value, parameter.grad = self.put(parameter.value), self.put(parameter.grad)
            return GradPlace(parameter, parameter.value, parameter.grad)
        if tied:
            grad = array_module(grad).zeros_like(grad)
            self.tied[tensor].append(grad)
        left, parameter.value, parameter.grad = parameter.value, value, grad
        kept = left is not value and held(left)  # they are one where a parameter has another use
        return GradPlace(parameter, parameter.value, grad, left if kept else None)

    def view(self, array: Array, tensor: int, *, begin: int = 0) -> Array:
        """A tensor's part of a flat array, which begins at an element of the line, in its shape."""
        layout = self.layout
        return array[layout.offsets[tensor] - begin : layout.ends[tensor] - begin].reshape(layout.shapes[tensor])

    def seen(self, array: Array, tensor: int, *, begin: int) -> Array:
        """The same as optimisers of whole tensors are given it."""
        return self.parameters[tensor].outputs_first(self.view(array, tensor, begin=begin))

    @property
    def names(self) -> list[str]:
        """Of each tensor, in its first use."""
        return [parameter.name for parameter in self.parameters]

    def optimizer_at(self, update: int) -> Optimizer:
        """The optimiser for an update, counted from 0."""
        rate = self.learning_rate
        return self.optimizer if rate is None else replace(self.optimizer, lr=checked(rate, update))

    def add_tied(self, use: int) -> None:
        """Add what later uses have contributed to the gradients that a use owns; backward ends with the owner."""
        for tensor in dict.fromkeys(self.layout.uses[use]):  # one may be tied within a layer
            if self.layout.first_uses[tensor] == use:
                for grad in self.tied[tensor]:
                    self.view(self.grads, tensor)[...] += grad

    def packing(self, bucket: Bucket) -> list[Call]:
        """The calls that bring a bucket's gradients into the form that travels; none where layers write that."""
        steps: list[Call] = []
        if pieces := self.pieces(bucket):
            steps.append(packer([grads for _, _, grads in pieces], [self.grads[here] for here, _, _ in pieces]))
        if self.wire is not self.grads:
            span = slice(bucket.start, bucket.stop)
            steps.append(copier(self.wire[span], self.grads[span]))
        return steps

    def unpacking(self, bucket: Bucket) -> list[Call]:
        """The calls that bring updated values to the parameters that stay."""
        pieces = self.pieces(bucket)
        values = [self.values[here] for here, _, _ in pieces]
        return [unpacker(values, [own for _, own, _ in pieces])] if pieces else []

    def reading(self, span: Bucket | slice) -> list[Call]:
        """The calls that bring to the line what was changed in parameters that stay."""
        return [call for here, own, _ in self.pieces(span) for call in readers(self.values[here], own)]

    def read(self) -> None:
        for call in self.reading(slice(0, self.layout.count)):
            call()

    def pieces(self, span: Bucket | slice) -> list[tuple[slice, Array, Array]]:
        """Of each parameter that stays: its elements in a span of the line, its values and gradients."""
        found = []
        for tensor, owner in self.staying.items():
            offset = self.layout.offsets[tensor]
            start, stop = max(span.start, offset), min(span.stop, self.layout.ends[tensor])
            if start < stop:
                values, grads = (own.reshape(-1)[start - offset : stop - offset] for own in (owner.value, owner.grad))
                found.append((slice(start, stop), values, grads))
        return found
