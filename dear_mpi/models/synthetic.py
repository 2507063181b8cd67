"""Layers that only take a given time and have gradients of a given size, for experiments.

Communication does not care what is computed, only when gradients are ready and how many bytes they have. A
synthetic layer writes gradients (a small multiple of its parameters, so that they are no zeros and any error in
their sum shows) and lets the rest of its time pass: asleep, as a host is while its GPU computes, or spinning, as a
busy host.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.lookup import lookup
from dear_mpi.models.layer import Layer, Parameter
from dear_mpi.models.paper_models import Module, shares_of

GRADIENT_SCALE = 1e-3


def spin(seconds: float) -> None:
    """Keep a core busy."""
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass


class ComputeTime:
    """Lets time pass for the layers of one model.

    Short times are saved up until a sleep is worth it, and what a sleep took too long is taken off the next one:
    the sum is right though the clock of the system is coarse.
    """

    def __init__(self, compute: str = "sleep") -> None:
        self.rest = lookup("compute", compute, {"sleep": time.sleep, "spin": spin})
        self.owed_s = 0.0

    def spend(self, seconds: float, since_s: float) -> None:
        """Let ``seconds`` pass, counted from the time ``since_s`` of ``time.perf_counter``."""
        self.owed_s += seconds - (time.perf_counter() - since_s)
        if self.owed_s > 1e-3:
            begin_s = time.perf_counter()
            self.rest(self.owed_s)
            self.owed_s -= time.perf_counter() - begin_s


@dataclass(eq=False)
class Synthetic:
    """A layer whose forward and backward take given times in seconds."""

    parameters: Sequence[Parameter]
    compute_time: ComputeTime
    forward_s: float
    backward_s: float

    def forward(self, x: Array) -> Array:
        self.compute_time.spend(self.forward_s, time.perf_counter())
        return x

    def backward(self, dy: Array) -> Array:
        begin_s = time.perf_counter()
        for parameter in self.parameters:
            scale = parameter.value.dtype.type(GRADIENT_SCALE)
            array_module(parameter.value).multiply(parameter.value, scale, out=parameter.grad)
        self.compute_time.spend(self.backward_s, begin_s)
        return dy


class NoLoss:
    """The end of a synthetic model, which computes nothing."""

    def forward(self, logits: Array, targets: Array) -> float:
        return 0.0

    def backward(self, scale: float) -> Array:
        return np.zeros(0)


def synthetic_layers(
    modules: Sequence[Module],
    *,
    forward_s: float,
    backward_s: float,
    dtype: np.dtype[Any],
    rng: np.random.Generator,
    compute: str = "sleep",
) -> list[Layer]:
    """Layers that share ``forward_s`` and ``backward_s`` seconds in proportion to their FLOPs."""
    compute_time = ComputeTime(compute)
    layers: list[Layer] = []
    for module, ahead, back in zip(modules, *shares_of(modules), strict=True):
        parameters = [
            Parameter.of(f"{module.name}.{number}", rng.random(count, np.float32).astype(dtype))
            for number, count in enumerate(module.counts)
        ]
        layers.append(Synthetic(parameters, compute_time, ahead * forward_s, back * backward_s))
    return layers
