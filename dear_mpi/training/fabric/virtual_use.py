"""What a model is on the virtual fabric: uses of layers that only take time, and a loss that is zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dear_mpi.kernels.array import Array
from dear_mpi.training.fabric.virtual import VirtualFabric

# How many times as long as usual a use takes, on all ranks or on each. Passes, forward and backward, count from 0; the
# place in one is twice the number of the use forward, and one more backward.
Noise = Callable[[int, int], Any]


def steady(number: int, place: int) -> float:
    """No noise."""
    return 1.0


@dataclass(eq=False)
class VirtualUse:
    """A use of a layer that only takes time."""

    fabric: VirtualFabric
    number: int
    forward_s: float = 0.0
    backward_s: float = 0.0
    noise: Noise = steady

    complaints: Sequence[str] = ()
    passes: int = -1

    def forward(self, x: Array, *, inspect: bool) -> Array:
        self.passes += 1
        self.fabric.spend(self.noise(self.passes, 2 * self.number) * self.forward_s)
        return x

    def before_backward(self, dy: Array, *, inspect: bool) -> None: ...

    def backward(self, dy: Array) -> Array:
        self.fabric.spend(self.noise(self.passes, 2 * self.number + 1) * self.backward_s)
        return dy

    def after_backward(self, *, last: bool) -> None: ...


class VirtualMeter:
    """Sums a loss that is zero, but may take its time: the sum has its place on the wire, after the forward pass."""

    def __init__(self, fabric: VirtualFabric, seconds: float = 0.0) -> None:
        self.fabric, self.seconds = fabric, seconds

    def start(self, loss: Array | float, targets: int, total: int) -> None:
        self.fabric.spend(self.seconds)
        self.handle = self.fabric.launch_loss()

    def complaint(self) -> None: ...

    def read(self) -> float:
        self.fabric.wait(self.handle)
        return 0.0
