"""What a model is on the virtual fabric: uses of layers that only take time, and a loss that is zero."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dear_mpi.kernels.array import Array
from dear_mpi.training.fabric.order import LOSS
from dear_mpi.training.fabric.virtual import VirtualFabric


@dataclass(eq=False)
class VirtualUse:
    """A use of a layer that only takes time."""

    fabric: VirtualFabric
    number: int
    complaints: Sequence[str] = ()
    passes: int = -1
    received: Array = field(init=False)

    @property
    def split(self) -> bool:
        return self.number in self.fabric.costs.weights_s

    @property
    def exchanging(self) -> bool:
        return self.number in self.fabric.costs.exchange_s

    def exchange(self, given: Array, *, back: bool) -> float:
        self.received = given
        return self.fabric.costs.exchange_s[self.number]

    def forward(self, x: Array, *, inspect: bool) -> Array:
        self.passes += 1
        self.spend(self.fabric.costs.forward_s[self.number], 2 * self.number)
        return x

    def before_backward(self, dy: Array, *, inspect: bool) -> None: ...

    def backward(self, dy: Array, *, late: bool = False) -> Array:
        costs = self.fabric.costs
        left_s = costs.weights_s[self.number] if late else 0.0
        self.spend(costs.backward_s[self.number] - left_s, 2 * self.number + 1)
        return dy

    def backward_weights(self) -> None:
        self.spend(self.fabric.costs.weights_s[self.number], 2 * self.number + 1)

    def check_written(self) -> None: ...

    def after_backward(self, *, last: bool) -> None: ...

    def spend(self, seconds: float, place: int) -> None:
        self.fabric.spend(self.fabric.costs.noise(self.passes, place) * seconds)


class VirtualMeter:
    """Sums a loss that is zero, but may take its time: the sum has its place in the order, after the forward pass."""

    def __init__(self, fabric: VirtualFabric) -> None:
        self.fabric = fabric

    def start(self, loss: Array | float, targets: int, total: int) -> None:
        self.fabric.spend(self.fabric.costs.rest_s)
        self.handle = self.fabric.launch_sum(LOSS, self.fabric.costs.loss_s)

    def complaint(self) -> None: ...

    def read(self) -> float:
        self.fabric.wait_for(self.handle)
        return 0.0
