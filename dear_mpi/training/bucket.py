"""A bucket: the flat buffer that fuses the gradients of several layers into one message.

    layers    [ 4: weight, bias ][ 5: weight, bias ][ 6: weight ]
                  |       |         |        |          |           grads are views: nothing is packed
    buffer    [ weight | bias |.| weight   | bias |.| weight  |...] = size equal chunks

Where the wire has the gradients' own type, each ``Parameter.grad`` is rebound to its place in the buffer, and layers
write their gradients straight into the message. Otherwise (bf16 on the wire, fp32 in the layers) they are packed.

Whatever goes wrong with a gradient on one rank ends as a NaN or an infinity in the sum, which is the same on all ranks.
The update tells whether it met one: so all ranks find it in the same iteration, without a message.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dear_mpi.kernels.array import array_module
from dear_mpi.kernels.optimizers import Optimizer
from dear_mpi.kernels.pack import packer
from dear_mpi.kernels.pack_plan import PackPlan
from dear_mpi.kernels.slab import Slab
from dear_mpi.kernels.update import updater
from dear_mpi.models.layer import Parameter

__all__ = ["Bucket"]


class Bucket:
    """Parameters whose gradients travel together, with their optimiser's state.

    Args:
        index: number of the bucket, in forward order.
        layers: the numbers of its layers, ascending.
        parameters: those of its layers, in order.
        wire: the type in which gradients travel.
        chunks: the number of ranks.
        optimizer: how ``update`` changes the parameters.
        slab: where the buffer is taken from; it has its own memory if there is none.

    Raises:
        ValueError: a parameter is not contiguous (its update would go to a copy).
    """

    def __init__(
        self,
        index: int,
        layers: Sequence[int],
        parameters: Sequence[Parameter],
        *,
        wire: np.dtype[Any],
        chunks: int,
        optimizer: Optimizer,
        slab: Slab | None = None,
    ) -> None:
        for parameter in parameters:
            if not parameter.value.flags.c_contiguous:
                raise ValueError(f"parameter {parameter.name} must be contiguous")
        self.index, self.layers, self.parameters = index, tuple(layers), tuple(parameters)
        self.updates = 0
        self.pack_plan = PackPlan.of([parameter.value.shape for parameter in parameters], wire, chunks)
        values = [parameter.value for parameter in parameters]
        self.buffer = (slab or Slab.beside(values[0])).zeros(self.pack_plan.padded, wire)
        self.pack = self.packing()
        self.grads = [parameter.grad for parameter in parameters]  # where layers must write them
        self.finite = array_module(values[0]).ones(1, np.bool_)
        self.state = [optimizer.new_state(value) for value in values]
        self.apply = updater(self.buffer, self.pack_plan, values, self.state, optimizer, finite=self.finite)

    def packing(self) -> Callable[[], object]:
        """The call that packs the gradients. If they can be views into the buffer, it does nothing."""
        grads = [parameter.grad for parameter in self.parameters]
        if any(grad.dtype != self.pack_plan.dtype for grad in grads):
            return packer(grads, self.buffer, self.pack_plan)
        for parameter, view in zip(self.parameters, self.pack_plan.views(self.buffer), strict=True):
            parameter.grad = view
        return lambda: None

    def update(self) -> None:
        """Apply the optimiser with the reduced gradients in the buffer."""
        self.updates += 1
        self.apply(self.updates)

    def complaint(self) -> str | None:
        """What was wrong with the summed gradients of an update, the same on all ranks; None if nothing was."""
        if bool(self.finite[0]):
            return None
        wire, advice = self.pack_plan.dtype, "try a lower learning rate (--lr)"
        if wire.itemsize < 4:
            advice = f"a type of a wider range may carry them (--wire bf16 or fp32), or {advice}"
        what = f"gradients, summed in {wire}, are infinite or not a number"
        return f"{self}: {what} in iteration {self.updates - 1}: {advice}"

    def __str__(self) -> str:
        return f"bucket {self.index} (layers {self.layers[0]}..{self.layers[-1]}, {self.pack_plan.nbytes} bytes)"
