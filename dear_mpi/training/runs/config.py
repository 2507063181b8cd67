"""Configure a run: session options, a model, its data and its optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from dear_mpi.collectives.program.user_file import WithExtras, is_in_file
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.kernels.optimizers import OPTIMIZERS, Optimizer
from dear_mpi.models.networks import published_model
from dear_mpi.reporting.declared import again, option
from dear_mpi.reporting.units import check_seconds, named_values
from dear_mpi.training.fusion import USUAL
from dear_mpi.training.learning_rate import DECAYS, Rate
from dear_mpi.training.options import ALL_OPTIMIZERS, TABLES, Exchange, Options, Training

MODEL = (
    "Model to train: mlp, one of an extra, such as cnn or gpt, FILE.py:FUNCTION, or synthetic:TABLE, whose layers only "
    "take time: TABLE is "
)
IN_FILE = "FILE.py:NAME"  # stands for all user models
# Settings that train each model well on its usual data.
PRESETS: dict[str, dict[str, Any]] = {
    "mlp": {"optimizer": "adam", "batch": 32, "iterations": 300, "fusion": "none"},
    "synthetic": {"optimizer": "sgd", "batch": 64, "iterations": 15, "fusion": USUAL},
    IN_FILE: {"optimizer": "adam", "batch": 32, "iterations": 300, "fusion": USUAL},
}
OF_SYNTHETIC = ("forward_time", "backward_time", "straggler")
OF_EXTRA = ("cnn", "gpt")  # on our pages; the extra may be absent
SETTINGS = ("lr", "momentum", "weight_decay")  # of optimisers, with flags


@dataclass(frozen=True, kw_only=True)
class Config(Training):
    """Configure one training run: the flags of ``train`` and ``compare``. Defaults come from ``PRESETS``."""

    model: str = option(f"{MODEL}{TABLES}.", "mlp", may_be_file=True)
    data: str = option(
        "Data to train on: digits, FILE.npz (arrays x and y), or any text file.",
        "digits",
        may_be_file=True,
    )
    fusion: str = again(Training, "fusion", shown="by model")
    algorithm: str = again(Training, "algorithm", "ring")
    dtype: str = option(
        f"Type of the parameters: fp32 or fp64; for synthetic models {', '.join(DTYPES)}.",
        "fp32",
        allowed=DTYPES,
    )
    optimizer: str = option(
        f"Optimiser: {', '.join(OPTIMIZERS)}, or one of an extra, such as kfac. With further "
        "settings: sgd:nesterov=1, adam:beta1=0.8:epsilon=1e-6.",
        shown="by model",
    )
    lr: float | None = option("Learning rate.", None, shown="by optimiser")
    momentum: float | None = option("Momentum factor.", None, shown="by optimiser")
    weight_decay: float | None = option(
        "Weight decay of all parameters, including biases: an L2 penalty for sgd and adam, decoupled for the others.",
        None,
        shown="by optimiser",
    )
    decay: str = option(
        f"How the learning rate falls until the last iteration: {', '.join(DECAYS)}.",
        "none",
    )
    warmup: int = option("Number of iterations over which the learning rate rises to --lr.", 0)
    batch: int = option("Number of examples in an iteration, over all ranks together.", shown="by model", least=1)
    iterations: int = option("Number of iterations.", shown="by model", least=1, most=10**9)
    seed: int = option("Seed of the initial parameters and of the order of the data.", 0, least=0)
    context: int = option("Number of bytes of text that a model of text sees at once.", 64, least=1)
    forward_time: float | None = option(
        "Seconds that the forward pass of a synthetic model takes.", None, shown="0.1, or as in a profile"
    )
    backward_time: float | None = option(
        "Seconds that the backward pass of a synthetic model takes.",
        None,
        shown="twice the forward time, or in the ratio of a profile",
    )
    straggler: str | None = option(
        "A slow rank of a synthetic model, and how many times as long it computes, e.g. 0:3.", None, shown="none"
    )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Config:
        """Merge the model's preset with the user's choices (None: not given). Raises ValueError."""
        given = {key: value for key, value in given.items() if value is not None}
        cls.check_names("setting", given)
        model = given.get("model", cls.model)
        preset, has_context = preset_of(kind_of(model))
        useless = ("data", "batch") if kind_of(model) == "synthetic" else OF_SYNTHETIC
        for name in useless if has_context else ("context", *useless):
            if name in given:  # it would have no effect
                raise ValueError(f"{name} does not apply to the model {model!r}")
        config = cls(**preset | given)
        config.check()
        return config

    def check(self) -> None:
        super().check()
        if self.accumulate > self.batch:
            what = "for synthetic models" if kind_of(self.model) == "synthetic" else "the batch"
            raise ValueError(f"accumulate must be at most {self.batch}, {what}, not {self.accumulate}")
        micro_batch, rest = divmod(self.batch, self.invariant or 1)
        if rest:
            raise ValueError(f"batch must be a multiple of invariant, {self.invariant} micro-batches, not {self.batch}")
        if self.invariant and micro_batch % self.accumulate:
            what = f"accumulate must divide {micro_batch}, the examples of a micro-batch"
            raise ValueError(f"{what} (batch / invariant), not be {self.accumulate}")
        for name in ("forward_time", "backward_time"):
            if getattr(self, name) is not None:
                check_seconds(name, getattr(self, name))
        Options(**self.options()).check()

    def options(self) -> dict[str, Any]:
        made = {"optimizer": self.new_optimizer(), "learning_rate": self.new_rate(), "wire": self.wire_name}
        return {each.name: getattr(self, each.name) for each in fields(Training)} | made

    @property
    def wire_name(self) -> str:
        return self.wire or Exchange.find_route(self).wire or self.dtype

    def new_optimizer(self) -> Optimizer:
        """Make the optimiser. Raises ValueError."""
        name, *texts = self.optimizer.split(":")
        kind = lookup("optimizer", name, ALL_OPTIMIZERS)
        plain, named = named_values(f"optimizer {name}", texts)
        if plain:
            raise ValueError(f"optimizer {self.optimizer!r}: write settings like {name}:lr=0.1, not {plain[0]!r}")
        chosen = named | {each: value for each in SETTINGS if (value := getattr(self, each)) is not None}
        defaults: dict[str, Any] = {field.name: field.default for field in fields(kind)}
        for each, value in chosen.items():
            if each not in defaults:
                raise ValueError(f"{each} is not a setting of the optimizer {name}, which takes {', '.join(defaults)}")
            if isinstance(value, str):
                try:
                    chosen[each] = type(defaults[each])(float(value))
                except ValueError:
                    raise ValueError(f"optimizer {self.optimizer!r}: {each} must be a number, not {value!r}") from None
        return kind(**chosen)

    def new_rate(self) -> Rate | None:
        """Make the learning rate's curve up to the optimiser's rate; None if it is constant. Raises ValueError.

        A run that resumes with more iterations follows a longer curve.
        """
        kind = lookup("decay", self.decay, DECAYS)
        if self.decay == "none" and not self.warmup:
            return None
        return kind(self.new_optimizer().lr, self.iterations, self.warmup)


def preset_of(kind: str) -> tuple[dict[str, Any], bool]:
    """Return the usual settings of a model, and whether it may see windows of text. Raises ValueError."""
    if kind in PRESETS:
        return PRESETS[kind], kind == IN_FILE
    try:
        network = lookup("model", kind, WithExtras[Any](PRESETS, "models", published_model))
    except ValueError as error:
        missing = f"; {kind} is in the extra dear_mpi/contrib/models" * (kind in OF_EXTRA)
        raise ValueError(f"{error}{missing}") from error
    return PRESETS[IN_FILE] | getattr(network, "preset", {}), getattr(network, "text", False)


def kind_of(model: str) -> str:
    """Return a model's name in ``PRESETS``, or an extra's.

    >>> kind_of("mlp"), kind_of("synthetic:resnet50"), kind_of("path/to/mine.py:build")
    ('mlp', 'synthetic', 'FILE.py:NAME')
    """
    return IN_FILE if is_in_file(model) else model.partition(":")[0]
