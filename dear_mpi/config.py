"""What a user may choose about a training run; the flags of the command line, with their defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from dear_mpi.collectives.arguments import SEGMENT_BYTES
from dear_mpi.kernels.choose import choose

__all__ = ["PRESETS", "Config"]

# What trains each model well on the data it is meant for; flags override it.
PRESETS: dict[str, dict[str, Any]] = {
    "mlp": {"optimizer": "adam", "batch": 32, "iterations": 300},
    "cnn": {"optimizer": "adam", "batch": 32, "iterations": 300},
    "gpt": {"optimizer": "adam", "batch": 16, "iterations": 600},
    "synthetic": {"optimizer": "sgd", "batch": 64, "iterations": 10},
}
LEARNING_RATES = {"sgd": 0.1, "adam": 3e-3}


@dataclass(frozen=True, kw_only=True)
class Config:
    """One training run.

    ``batch`` is the number of examples per iteration of the whole job. ``forward_time`` and ``backward_time`` are
    the seconds that a synthetic model takes; backward takes twice the time of forward unless it is given.
    ``wire`` is the type in which gradients travel, that of the model unless it is given.
    """

    model: str = "mlp"
    data: str = "digits"
    schedule: str = "dear"
    fusion: str = "25MB"
    algorithm: str = "ring"
    segment_bytes: int = SEGMENT_BYTES
    dtype: str = "fp32"
    wire: str | None = None
    optimizer: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    batch: int = 64
    iterations: int = 100
    seed: int = 0
    context: int = 64
    forward_time: float = 0.1
    backward_time: float | None = None
    compute: str = "sleep"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Config:
        """The preset of the model, with what the user gave (None means: not given).

        Raises:
            ValueError: the model is unknown, or a number is out of range.
        """
        model = given.get("model") or cls.model
        preset = choose("model", model.partition(":")[0], PRESETS)
        known = {field.name for field in fields(cls)}
        chosen = preset | {key: value for key, value in given.items() if key in known and value is not None}
        lr = choose("optimizer", chosen["optimizer"], LEARNING_RATES)
        config = cls(**{"lr": lr} | chosen)
        config.check()
        return config

    def check(self) -> None:
        """Numbers are in range."""
        for name in ("batch", "iterations", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("forward_time", "backward_time", "momentum", "weight_decay", "seed"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} must be finite and not negative, not {value}")
