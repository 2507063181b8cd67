"""Allocate the memory of the flat buffer: values, gradients and optimiser state.

    values   | weight | bias |.| weight | bias |......|     parameters of the layers are views into it
    grads    | weight | bias |.| weight | bias |......|     layers write their gradients straight into it

    wire     the same array as grads, or its copy in the type that travels
    state    | ...                                    |     one array per optimiser state, for this rank's
                                                            shards (``owners.py``), once buckets are known

Cutting buckets anew moves no byte. A parameter with its own memory (``rebind=False``) or type stays in place: its
gradient is packed; its value is unpacked, and read before an update.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.calls import copier, packer, unpacker
from dear_mpi.kernels.optimizers import Optimizer
from dear_mpi.kernels.slab import ALIGNMENT, Slab
from dear_mpi.models.layer import Layer, Parameter
from dear_mpi.training.buckets.layout import Bucket, Call, Cut, Layout, flat_dtype, held, of_tensors, readers, trained
from dear_mpi.training.buckets.owners import Owners, Sharing
from dear_mpi.training.routes.find import FULL
from dear_mpi.training.routes.route import Route

if TYPE_CHECKING:
    from dear_mpi.training.learning_rate import Rate

ALONE = Owners()  # of the only rank


@dataclass
class GradPlace:
    parameter: Parameter
    value: Array
    grad: Array
    left: Array | None = None  # previous value array, if held elsewhere


class Arena:
    """Bind a model's parameters to flat arrays.

    Args:
        calls: the layers, in forward order.
        wire: the type of travelling gradients.
        learning_rate: a function of the update, counted from 0; default: the optimiser's.
        hosts: each rank's.
        slab: communicated arrays; ``put`` moves an array to its device.
    """

    def __init__(
        self,
        calls: Sequence[Layer],
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
        dtype = flat_dtype(calls)
        self.layout, self.optimizer, self.learning_rate = layout, optimizer, learning_rate
        self.route, self.owners, self.sharded = route, owners, route.update.shard
        self.rank, self.hosts, self.put = rank, hosts, put
        self.values, self.grads = slab.zeros(layout.count, dtype), slab.zeros(layout.count, dtype)
        self.wire = self.grads if wire == dtype else slab.zeros(layout.count, wire)
        self.state: list[Array] = []
        self.buffers = {name: array_module(self.values).zeros(layout.count, dtype) for name in route.buffers}
        self.parameters = of_tensors(calls, layout)
        self.updates = 0  # of every bucket; survives new cuts
        self.over = False
        self.staying: dict[int, Parameter] = {}  # by tensor, parameters that stay in place
        self.tied: dict[int, list[Array]] = {}  # gradients, from layer calls that do not own them
        self.bound_values: dict[int, Array] = {}
        for parameter in (parameter for layer in calls for parameter in layer.parameters if not parameter.trained):
            parameter.value, parameter.grad = put(parameter.value), put(parameter.grad)
        self.places = [
            [self.place(*pair) for pair in zip(trained(layer), tensors, strict=True)]
            for layer, tensors in zip(calls, layout.calls, strict=True)
        ]
        self.begin_buffers()

    def begin_buffers(self) -> None:
        for name, buffer in self.buffers.items():
            if self.route.buffers[name] == "values":
                buffer[...] = self.values

    @staticmethod
    def nbytes(layout: Layout, dtype: np.dtype[Any], wire: np.dtype[Any]) -> int:
        itemsizes = [dtype.itemsize, dtype.itemsize, *([wire.itemsize] if wire != dtype else [])]
        return sum(layout.count * itemsize + ALIGNMENT for itemsize in itemsizes)

    def nbytes_of(self, buffer: str, bucket: Bucket) -> int:
        sizes = {"wire": self.wire.itemsize, "values": self.values.itemsize, "ranks": self.owners.ranks}
        longest = self.sharing.longest(bucket)
        return self.route.nbytes(buffer, bucket.count, longest=longest, shapes=bucket.shapes, **sizes)

    def share_out(self, buckets: Cut) -> None:
        """Adopt these buckets; sharded optimiser state restarts at zero."""
        self.sharing = Sharing(self.owners, self.layout, buckets, rank=self.rank)
        self.shards = self.sharing if self.sharded else Sharing(ALONE, self.layout, buckets)
        if self.sharded or not self.state:
            self.state = self.optimizer.new_state(self.values[: self.shards.held(self.shards.rank)])

    def whole_state(self, transport: Transport) -> Iterator[Array]:
        """Gather the whole optimiser state on all ranks. Collective."""
        shards = self.shards
        if shards.owners.ranks == 1:
            yield from self.state
            return
        counts = [shards.held(rank) for rank in range(shards.owners.ranks)]
        for own in self.state:
            gathered, buffer = (array_module(own).empty_like(self.values, dtype=own.dtype) for _ in range(2))
            parts = [gathered[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True)]
            parts[self.rank][...] = own
            with make_plan("all_gather", gathered, transport, algorithm="auto", alike=True, counts=counts) as plan:
                plan()
            for rank, part in enumerate(parts):
                for bucket, place in shards.packed(rank).items():
                    buffer[shards.shard(bucket, rank)] = part[place]
            yield buffer

    def take_state(self, state: Iterable[Array]) -> None:
        """Keep this rank's part of the whole state, unless it holds all."""
        for own, buffer in zip(self.state, state, strict=True):
            if own is not buffer:
                for bucket, place in self.shards.state.items():
                    own[place] = buffer[self.shards.own(bucket)]

    def place(self, parameter: Parameter, tensor: int) -> GradPlace:
        """Bind a parameter, if unbound; return its gradient's place."""
        other = None if parameter.buffer is None else parameter.buffer()
        if other is not None and other is not self and not other.over:
            what = "is trained by another session that is not over; ranks that are threads need layers of their own"
            raise ValueError(f"parameter {parameter.name} {what}")
        parameter.buffer = weakref.ref(self)
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
                raise ValueError(
                    f"parameter {parameter.name} is tied, so it must take the flat buffer's memory and type"
                )
            if not (parameter.value.flags.c_contiguous and parameter.grad.flags.c_contiguous):
                raise ValueError(f"parameter {parameter.name} must be contiguous, because it stays where it is")
            self.staying[tensor] = parameter
            parameter.value, parameter.grad = self.put(parameter.value), self.put(parameter.grad)
            return GradPlace(parameter, parameter.value, parameter.grad)
        if tied:
            grad = array_module(grad).zeros_like(grad)
            self.tied[tensor].append(grad)
        left, parameter.value, parameter.grad = parameter.value, value, grad
        kept = left is not value and held(left)  # both are one if the parameter has another layer call
        return GradPlace(parameter, parameter.value, grad, left if kept else None)

    def view(self, array: Array, tensor: int, *, begin: int = 0) -> Array:
        layout = self.layout
        return array[layout.offsets[tensor] - begin : layout.ends[tensor] - begin].reshape(layout.shapes[tensor])

    @property
    def names(self) -> list[str]:
        return [parameter.name for parameter in self.parameters]

    def optimizer_at(self, update: int) -> Optimizer:
        if self.learning_rate is None:
            return self.optimizer
        from dear_mpi.training.learning_rate import checked

        return replace(self.optimizer, lr=checked(self.learning_rate, update))

    def add_tied(self, call: int) -> None:
        """Add later layer calls' gradients to the owner's, which ends backward."""
        for tensor in dict.fromkeys(self.layout.calls[call]):  # maybe tied within a layer
            if self.layout.first_calls[tensor] == call:
                for grad in self.tied[tensor]:
                    self.view(self.grads, tensor)[...] += grad

    def packing(self, bucket: Bucket) -> list[Call]:
        """Return the calls that pack a bucket's gradients; none if layers write in place."""
        steps: list[Call] = []
        if pieces := self.pieces(bucket):
            steps.append(packer([grads for _, _, grads in pieces], [self.grads[here] for here, _, _ in pieces]))
        if self.wire is not self.grads:
            span = slice(*bucket.interval)
            steps.append(copier(self.wire[span], self.grads[span]))
        return steps

    def unpacking(self, bucket: Bucket) -> list[Call]:
        pieces = self.pieces(bucket)
        values = [self.values[here] for here, _, _ in pieces]
        return [unpacker(values, [own for _, own, _ in pieces])] if pieces else []

    def reading(self, span: slice) -> list[Call]:
        return [call for here, own, _ in self.pieces(span) for call in readers(self.values[here], own)]

    def read(self) -> None:
        for call in self.reading(slice(0, self.layout.count)):
            call()

    def pieces(self, span: Bucket | slice) -> list[tuple[slice, Array, Array]]:
        """List interval, values and gradients of staying parameters."""
        found = []
        for tensor, owner in self.staying.items():
            offset = self.layout.offsets[tensor]
            start, stop = max(span.start, offset), min(span.stop, self.layout.ends[tensor])
            if start < stop:
                values, grads = (own.reshape(-1)[start - offset : stop - offset] for own in (owner.value, owner.grad))
                found.append((slice(start, stop), values, grads))
        return found
