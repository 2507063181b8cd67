"""Declare the choices of a training run: session options, a model, its data and its optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from dear_mpi.collectives.program.user_file import is_in_file
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.kernels.optimizers import OPTIMIZERS, Optimizer
from dear_mpi.reporting.units import check_seconds
from dear_mpi.training.declared import again, option
from dear_mpi.training.fusion import USUAL
from dear_mpi.training.learning_rate import DECAYS, Rate
from dear_mpi.training.options import TABLES, Exchange, Options, Training, find_optimizer

MODEL = "Model to train: mlp, cnn, gpt, FILE.py:FUNCTION, or synthetic:TABLE, whose layers only take time: TABLE is "
IN_FILE = "FILE.py:NAME"  # stands for all user models
# Settings that train each model well on its usual data; flags override them.
PRESETS: dict[str, dict[str, Any]] = {
    "mlp": {"optimizer": "adam", "batch": 32, "iterations": 300, "fusion": "none"},
    "cnn": {"optimizer": "adam", "batch": 32, "iterations": 300, "fusion": "layers:2"},
    "gpt": {"optimizer": "adam", "batch": 16, "iterations": 600, "fusion": "none"},
    "synthetic": {"optimizer": "sgd", "batch": 64, "iterations": 15, "fusion": USUAL},
    IN_FILE: {"optimizer": "adam", "batch": 32, "iterations": 300, "fusion": USUAL},
}
# A setting without effect on a kind of model is refused, so that no user relies on it.
OF_SYNTHETIC = ("forward_time", "backward_time", "compute", "straggler")
OF_OTHERS = {
    "mlp": ("context", *OF_SYNTHETIC),
    "cnn": ("context", *OF_SYNTHETIC),
    "gpt": OF_SYNTHETIC,
    "synthetic": ("data", "context", "batch"),
    IN_FILE: OF_SYNTHETIC,
}


def setting(name: str, help: str) -> Any:
    """Declare an optimiser option; each optimiser has its default."""
    defaults = [f"{vars(kind)[name]} for {optimizer}" for optimizer, kind in OPTIMIZERS.items() if name in vars(kind)]
    return option(help, None, shown=", ".join(defaults))


@dataclass(frozen=True, kw_only=True)
class Config(Training):
    """Configure one training run: the flags of ``train`` and ``compare``. Defaults come from ``PRESETS``."""

    model: str = option(f"{MODEL}{TABLES}.", "mlp", may_be_file=True, reported=True)
    data: str = option(
        "Data to train on: digits, FILE.npz (arrays x and y), or any text file (for gpt).", "digits", may_be_file=True
    )
    fusion: str = again(Training, "fusion", shown="by model")
    algorithm: str = again(Training, "algorithm", "ring")
    dtype: str = option(
        f"Type of the parameters: fp32 or fp64; for synthetic models {', '.join(DTYPES)}.",
        "fp32",
        allowed=DTYPES,
        reported=True,
    )
    optimizer: str = option(
        f"Optimiser: {', '.join(OPTIMIZERS)}, or one that an extra publishes, such as kfac; "
        "kfac:damping=0.3 sets a constant that has no flag.",
        shown="by model",
    )
    lr: float | None = setting("lr", "Learning rate.")
    momentum: float | None = setting("momentum", "Momentum factor.")
    nesterov: bool | None = option("Use Nesterov momentum.", None, flag="--nesterov")
    weight_decay: float | None = setting(
        "weight_decay",
        "Weight decay of all parameters, including biases: an L2 penalty for sgd and adam, decoupled for the others.",
    )
    beta1: float | None = setting("beta1", "Decay rate of the running mean of gradients.")
    beta2: float | None = setting("beta2", "Decay rate of the running mean of squared gradients.")
    vector_rate: float | None = setting(
        "vector_rate", "AdamW's learning rate beside muon, of all that is no matrix, as a multiple of --lr."
    )
    epsilon: float | None = setting("epsilon", "Small number that keeps the denominator of an update above zero.")
    decay: str = option(
        f"How the learning rate falls until the last iteration: {', '.join(DECAYS)}.",
        "none",
        reported=True,
        decides=True,
    )
    warmup: int = option(
        "Number of iterations over which the learning rate rises to --lr.", 0, reported=True, decides=True
    )
    batch: int = option(
        "Number of examples in an iteration, over all ranks together.", shown="by model", least=1, reported=True
    )
    iterations: int = option("Number of iterations.", shown="by model", least=1, most=10**9)
    seed: int = option("Seed of the initial parameters and of the order of the data.", 0, least=0, reported=True)
    context: int = option("Number of bytes of text that gpt sees at once.", 64, least=1, decides=True)
    forward_time: float | None = option(
        "Seconds that the forward pass of a synthetic model takes.", None, shown="0.1, or that of a profile"
    )
    backward_time: float | None = option(
        "Seconds that the backward pass of a synthetic model takes.",
        None,
        shown="twice the forward time, or in the ratio of a profile",
    )
    straggler: str | None = option(
        "A slow rank of a synthetic model, and how many times as long it computes, e.g. 0:3.", None, shown="none"
    )
    compute: str = option(
        "How a synthetic model spends its time: sleep (leaves its core free), or spin (keeps it busy).", "sleep"
    )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Config:
        """Merge the model's preset with the user's choices (None: not given).

        Raises ValueError if a name or the model is unknown, a number is out of range, or a setting does not apply.
        """
        given = {key: value for key, value in given.items() if value is not None}
        cls.check_names("setting", given)
        model = given.get("model", cls.model)
        preset = lookup("model", kind_of(model), PRESETS)
        for name in OF_OTHERS[kind_of(model)]:
            if name in given:
                raise ValueError(f"{name} does not apply to the model {model!r}")
        config = cls(**preset | given)
        config.check()
        return config

    def check(self) -> None:
        super().check()
        if self.accumulate > self.batch:
            what = "for synthetic models" if kind_of(self.model) == "synthetic" else "the batch"
            raise ValueError(f"accumulate must be at most {self.batch}, {what}, not {self.accumulate}")
        for name in ("forward_time", "backward_time"):
            if getattr(self, name) is not None:
                check_seconds(name, getattr(self, name))
        Options(**self.options()).check()

    def options(self) -> dict[str, Any]:
        made = {"optimizer": self.new_optimizer(), "learning_rate": self.new_rate(), "wire": self.wire_name}
        return {each.name: getattr(self, each.name) for each in fields(Training)} | made

    @property
    def wire_name(self) -> str:
        """Return the wire format of gradients: the chosen one, the route's, or the parameters' type."""
        return self.wire or Exchange.find_route(self).wire or self.dtype

    def new_optimizer(self) -> Optimizer:
        """Make the optimiser with the chosen settings. Raises ValueError if it lacks a setting or refuses its value."""
        known = {field.name for kind in OPTIMIZERS.values() for field in fields(kind)}
        return find_optimizer(
            self.optimizer, {name: getattr(self, name) for name in sorted(known) if getattr(self, name) is not None}
        )

    def new_rate(self) -> Rate | None:
        """Make the learning rate schedule up to the optimiser's rate, or None if the rate is constant.

        Raises ValueError if the decay is unknown or the warm-up is not shorter than the run. A run that resumes from a
        checkpoint with more iterations follows a longer curve.
        """
        kind = lookup("decay", self.decay, DECAYS)
        if self.decay == "none" and not self.warmup:
            return None
        return kind(self.new_optimizer().lr, self.iterations, self.warmup)


def kind_of(model: str) -> str:
    """Return a model's name in ``PRESETS``.

    >>> kind_of("mlp"), kind_of("synthetic:resnet50"), kind_of("path/to/mine.py:build")
    ('mlp', 'synthetic', 'FILE.py:NAME')
    """
    return IN_FILE if is_in_file(model) else model.partition(":")[0]
