"""How a session trains, whatever it trains: the keyword arguments of ``Session``."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from dear_mpi.collectives.program.user_file import source_text
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.kernels.optimizers import SGD, Optimizer
from dear_mpi.ranks.streams import STREAMS
from dear_mpi.training.fabric.loss_scale import is_judged
from dear_mpi.training.fusion.policies import USUAL
from dear_mpi.training.learning_rate import Rate, rates_of
from dear_mpi.training.routes.find import MINE, route_name


@dataclass(frozen=True, kw_only=True)
class Options:
    """The choices of a training run that do not depend on the model.

    Attributes:
        schedule: a name in ``SCHEDULES``, or ``FILE.py:NAME``.
        fusion: where the line is cut into buckets: a policy of ``borders`` in ``fusion/policies.py``; ``own``, the
            schedule's policy; ``mgwfbp`` or ``horovod``, from measured times, see ``fusion/by_time.py``; or ``bo`` or
            ``auto``: it is found while the session trains, see ``tuning/``.
        algorithm, segment_bytes: of the collectives, see ``make_plan``.
        wire: the type in which gradients travel, by name; the parameters' type if it is not given.
        device: ``cpu`` or ``cuda``.
        accumulate: how many parts a batch is split into; gradients are sent after the last.
        clip: the largest norm of all gradients together; None for no limit. Longer ones are scaled by clip / norm; the
            ``clip_grad_norm_`` of torch takes clip / (norm + 1e-6).
        loss_scale: with ``dynamic``, gradients are scaled on the wire, and an iteration that overflows is skipped.
        update: ``full``, every rank updates all parameters; ``sharded``, each updates its shard of every bucket;
            ``auto``, sharded where that gives the same bits.
        route: what buckets go through, ``FILE.py:NAME``, or a name of ``update``, in place of it.
        learning_rate: a function from the number of the update, counted from 0, to the learning rate, for example
            ``Cosine``; without one it is the optimiser's rate. It must depend on that number alone: ranks compare its
            first 1000 values before training. An iteration that was skipped has no update.
        debug: whether the ranks compare which collective they start, and see that layers write all of their gradients
            (a module of PyTorch does).
    """

    schedule: str = "dear"
    fusion: str = USUAL
    optimizer: Optimizer = field(default_factory=SGD)
    algorithm: str = "auto"
    segment_bytes: int | None = None
    wire: str | None = None
    device: str = "cpu"
    accumulate: int = 1
    clip: float | None = None
    loss_scale: str = "none"
    update: str | None = None
    route: str | None = None
    learning_rate: Rate | None = None
    debug: bool = False

    @classmethod
    def of(cls, given: dict[str, Any]) -> Options:
        """The options that a user gave.

        Raises:
            ValueError: there is no such option, or it cannot have this value.
        """
        for name in given:
            lookup("option", name, dict.fromkeys(each.name for each in fields(cls)))
        options = cls(**given)
        options.check()
        return options

    def check(self) -> None:
        """See that all values are allowed.

        Raises:
            ValueError: one is not.
        """
        lookup("device", self.device, STREAMS)
        is_judged(self.clip, self.loss_scale)
        route_name(self.update, self.route)
        if self.wire is not None:
            lookup("wire", self.wire, DTYPES)
        if not isinstance(self.optimizer, Optimizer):
            kind = f"{type(self.optimizer).__module__}.{type(self.optimizer).__qualname__}"
            raise ValueError(f"optimizer must be one of dear_mpi.training, such as Adam(lr=0.001), not a {kind}")
        for name in ("schedule", "fusion", "algorithm"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be a text, not {getattr(self, name)!r}")
        if type(self.accumulate) is not int or self.accumulate < 1:
            raise ValueError(f"accumulate must be a whole number of at least 1, not {self.accumulate!r}")
        if type(self.debug) is not bool:
            raise ValueError(f"debug must be True or False, not {self.debug!r}")

    def facts(self) -> dict[str, Any]:
        """What ranks compare."""
        rates = None if self.learning_rate is None else rates_of(self.learning_rate)
        route = source_text(route_name(self.update, self.route), "route", MINE)
        chosen = {name: value for name, value in vars(self).items() if name != "update"}
        return {**chosen, "optimizer": str(self.optimizer), "learning_rate": rates, "route": route}

    @property
    def plans(self) -> dict[str, Any]:
        """The options of ``make_plan``."""
        return {"algorithm": self.algorithm, "segment_bytes": self.segment_bytes, "debug": self.debug}

    @property
    def judged(self) -> bool:
        """Whether all gradients are looked at before any of them is used."""
        return is_judged(self.clip, self.loss_scale)
