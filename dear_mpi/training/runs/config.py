"""What a user may choose about a training run; the flags of the command line, with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dear_mpi.collectives.program.user_file import is_in_file
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.kernels.optimizers import OPTIMIZERS, Optimizer
from dear_mpi.reporting.units import check_seconds
from dear_mpi.training.fusion.policies import USUAL
from dear_mpi.training.learning_rate import DECAYS, Rate
from dear_mpi.training.options import Options
from dear_mpi.training.routes.find import find_route, route_name

IN_FILE = "FILE.py:NAME"  # the kind of all models of users
# What trains each model well on the data it is meant for; flags override it.
PRESETS: dict[str, dict[str, Any]] = {
    "mlp": {"optimizer": "adam", "batch": 32, "iterations": 300, "fusion": "none"},
    "cnn": {"optimizer": "adam", "batch": 32, "iterations": 300, "fusion": "layers:2"},
    "gpt": {"optimizer": "adam", "batch": 16, "iterations": 600, "fusion": "none"},
    "synthetic": {"optimizer": "sgd", "batch": 64, "iterations": 15, "fusion": USUAL},
    IN_FILE: {"optimizer": "adam", "batch": 32, "iterations": 300, "fusion": USUAL},
}
# A setting that is of no use for a kind of model is refused, so that no user believes that it had an effect.
OF_SYNTHETIC = ("forward_time", "backward_time", "compute")
OF_OTHERS = {
    "mlp": ("context", *OF_SYNTHETIC),
    "cnn": ("context", *OF_SYNTHETIC),
    "gpt": OF_SYNTHETIC,
    "synthetic": ("data", "context", "batch"),
    IN_FILE: OF_SYNTHETIC,
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """One training run. What is not explained here is as in ``Options``.

    Attributes:
        model, data: one of ours, or a file of the user; see ``runs/workload.py``.
        dtype: the type of the parameters, by name.
        optimizer: by name; ``lr`` to ``epsilon`` are its settings, of which None is its own default.
        warmup: iterations that lead up to ``lr``, from which a ``decay`` leads down until the last of ``iterations``.
        batch: examples per iteration of the whole job.
        context: characters that gpt sees at a time.
        forward_time, backward_time: seconds of a synthetic model; see ``both_passes`` where they are not given.
        compute: whether a synthetic model sleeps, or keeps a core busy.
        seed: of the first values, and of the order of the examples.
    """

    model: str = "mlp"
    data: str = "digits"
    device: str = "cpu"
    schedule: str = "dear"
    fusion: str
    algorithm: str = "ring"
    segment_bytes: int | None = None
    dtype: str = "fp32"
    wire: str | None = None
    optimizer: str
    lr: float | None = None
    momentum: float | None = None
    nesterov: bool | None = None
    weight_decay: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    epsilon: float | None = None
    decay: str = "none"
    warmup: int = 0
    batch: int
    accumulate: int = 1
    clip: float | None = None
    loss_scale: str = "none"
    update: str | None = None
    route: str | None = None
    iterations: int
    seed: int = 0
    debug: bool = False
    context: int = 64
    forward_time: float | None = None
    backward_time: float | None = None
    compute: str = "sleep"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Config:
        """The preset of the model, with what the user gave (None means: not given).

        Raises:
            ValueError: a name or the model is unknown, a number is out of range, or a setting does not apply.
        """
        given = {key: value for key, value in given.items() if value is not None}
        for name in given:
            lookup("setting", name, dict.fromkeys(field.name for field in fields(cls)))
        kind = kind_of(given.get("model", cls.model))
        preset = lookup("model", kind, PRESETS)
        for name in OF_OTHERS.get(kind, ()):
            if name in given:
                raise ValueError(f"{name} does not apply to the model {given.get('model', cls.model)!r}")
        config = cls(**preset | given)
        config.check()
        return config

    def check(self) -> None:
        """See that the device and the optimiser exist, and that numbers are in range."""
        for name in ("batch", "iterations", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.accumulate > self.batch:
            what = "for synthetic models" if kind_of(self.model) == "synthetic" else "the batch"
            raise ValueError(f"accumulate must be at most {self.batch}, {what}, not {self.accumulate}")
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, not {self.seed}")
        for name in ("forward_time", "backward_time"):
            if getattr(self, name) is not None:
                check_seconds(name, getattr(self, name))
        lookup("dtype", self.dtype, DTYPES)
        Options(**self.options()).check()

    def options(self) -> dict[str, Any]:
        """The options of a session."""
        made = {"optimizer": self.new_optimizer(), "learning_rate": self.new_rate(), "wire": self.wire_name}
        return {each.name: getattr(self, each.name) for each in fields(Options) if each.name not in made} | made

    @property
    def wire_name(self) -> str:
        """The type in which gradients travel: what was chosen, the route's, or the parameters'."""
        return self.wire or find_route(route_name(self.update, self.route)).wire or self.dtype

    @property
    def wire_type(self) -> np.dtype[Any]:
        """The type in which gradients travel.

        Raises:
            ValueError: it is unknown.
        """
        return lookup("wire", self.wire_name, DTYPES)

    def new_optimizer(self) -> Optimizer:
        """The optimiser, with what was chosen for it.

        Raises:
            ValueError: it has no such setting, or none of this value.
        """
        kind = lookup("optimizer", self.optimizer, OPTIMIZERS)
        known = {field.name for other in OPTIMIZERS.values() for field in fields(other)} & vars(self).keys()
        settings = [field.name for field in fields(kind) if field.name in known]
        chosen = {name: getattr(self, name) for name in sorted(known) if getattr(self, name) is not None}
        for name in chosen:
            if name not in settings:
                allowed = ", ".join(settings)
                raise ValueError(f"{name} is not a setting of the optimizer {self.optimizer}, which takes {allowed}")
        return kind(**chosen)

    def new_rate(self) -> Rate | None:
        """The learning rate as it changes, or None where it does not; its highest value is the optimiser's.

        A run that goes on from a checkpoint, and is asked for more iterations, goes on along a longer curve.

        Raises:
            ValueError: there is no such decay, or the warm-up is not shorter than the run.
        """
        kind = lookup("decay", self.decay, DECAYS)
        if self.decay == "none" and not self.warmup:
            return None
        return kind(self.new_optimizer().lr, self.iterations, self.warmup)


def kind_of(model: str) -> str:
    """The name in ``PRESETS`` of a model.

    >>> kind_of("mlp"), kind_of("synthetic:resnet50"), kind_of("path/to/mine.py:build")
    ('mlp', 'synthetic', 'FILE.py:NAME')
    """
    return IN_FILE if is_in_file(model) else model.partition(":")[0]
