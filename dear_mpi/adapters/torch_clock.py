"""Moments of a script: on a CPU the host's clock; on a GPU events in its stream, which are read when all is over."""

import time
from collections.abc import Callable
from typing import Any

import torch


class HostClock:
    """Moments in seconds."""

    device = "cpu"

    def now(self) -> Any:
        return time.perf_counter()

    def reader(self) -> Callable[[Any], float]:
        """What turns moments into seconds."""
        return float


class CudaClock:
    """Moments on the GPU: when it comes to them, not when the host does. They do not make the host wait."""

    device = "cuda"

    def __init__(self) -> None:
        self.first = self.now()

    def now(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def reader(self) -> Callable[[Any], float]:
        """See ``HostClock``; it waits for the GPU once."""
        torch.cuda.synchronize()
        return lambda event: float(self.first.elapsed_time(event)) * 1e-3
