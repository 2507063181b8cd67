"""Layers that only take a given time and have gradients of a given size, for experiments.

Communication does not care what is computed, only when gradients are ready and how many bytes they have. A
synthetic layer writes gradients (a small multiple of its parameters, so that they are no zeros and any error in
their sum shows) and lets the rest of its time pass: asleep, as a host is while its GPU computes, or spinning, as a
busy host. It may exchange bytes with the other ranks before each pass, as a mixture of experts does.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.lookup import lookup
from dear_mpi.models.layer import Layer, Parameter
from dear_mpi.models.paper_models import Module, shares_of

GRADIENT_SCALE = 1e-3
EXCHANGE = "pairwise", "all_to_all"  # the algorithm and the collective


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
        self.owed_s, self.pace = 0.0, 1.0  # the pace is how many times as long as they say layers take

    def spend(self, seconds: float, since_s: float) -> None:
        """Let ``seconds`` pass, times the pace, counted from the time ``since_s`` of ``time.perf_counter``."""
        self.owed_s += self.pace * seconds - (time.perf_counter() - since_s)
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
    weights_s: float = 0.0  # of ``backward_s``, for its second half

    def forward(self, x: Array) -> Array:
        self.compute_time.spend(self.forward_s, time.perf_counter())
        return x

    def backward(self, dy: Array) -> Array:
        self.write(self.backward_s)
        return dy

    def backward_input(self, dy: Array) -> Array:
        self.compute_time.spend(self.backward_s - self.weights_s, time.perf_counter())
        return dy

    def backward_weights(self) -> None:
        self.write(self.weights_s)

    def write(self, seconds: float) -> None:
        begin_s = time.perf_counter()
        for parameter in self.parameters:
            scale = parameter.value.dtype.type(GRADIENT_SCALE)
            array_module(parameter.value).multiply(parameter.value, scale, out=parameter.grad)
        self.compute_time.spend(seconds, begin_s)


@dataclass(eq=False, kw_only=True)
class Exchanging(Synthetic):
    """A synthetic layer that calls ``exchange`` before each pass, and goes on when it returns."""

    exchange: Callable[[], object]

    def exchange_forward(self, x: Array) -> Array:
        self.exchange()
        return x

    exchange_backward = exchange_forward


class NoLoss:
    """The end of a synthetic model."""

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
    compute_time: ComputeTime | None = None,
    exchange: Callable[[int], object] = lambda nbytes: None,
) -> list[Layer]:
    """Layers that share ``forward_s`` and ``backward_s`` seconds in proportion to their FLOPs.

    Args:
        compute_time: lets their time pass; asleep, if it is not given.
        exchange: collective: sends to all ranks, and receives from them, what a module says in bytes.
    """
    compute_time = compute_time or ComputeTime()
    layers: list[Layer] = []
    for module, ahead, back in zip(modules, *shares_of(modules), strict=True):
        parameters = [
            Parameter.of(f"{module.name}.{number}", rng.random(count, np.float32).astype(dtype))
            for number, count in enumerate(module.counts)
        ]
        times = ahead * forward_s, back * backward_s, module.weights * back * backward_s
        if module.exchange_bytes:
            sends = partial(exchange, module.exchange_bytes)
            layers.append(Exchanging(parameters, compute_time, *times, exchange=sends))
        else:
            layers.append(Synthetic(parameters, compute_time, *times))
    return layers
