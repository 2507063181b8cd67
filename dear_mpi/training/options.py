"""Declare the options of training, each one once; ``choice.py`` checks that schedules and routes fit them.

Exchange                        how gradients are sent, for training and for simulation
    Training                    the other options of training
        Options                 with an optimiser: the keyword arguments of Session
        Config  runs/config.py  with a model, data and an optimiser by name: the flags of train and compare
    Settings    dear_mpi/simulate/settings.py: the flags of simulate
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any

from dear_mpi.collectives.algorithms.registry import ALGORITHMS
from dear_mpi.collectives.program.user_file import WithExtras, load_extra, source_text
from dear_mpi.kernels.optimizers import OPTIMIZERS, SGD, Optimizer
from dear_mpi.reporting.declared import Declared, option, options_of, parsed
from dear_mpi.reporting.units import SEGMENT, check_distinct, parse_bytes
from dear_mpi.training.buckets.owners import MEASURED, check_weights, parse_weights
from dear_mpi.training.fusion import USUAL
from dear_mpi.training.routes.find import FULL, MINE, ROUTES, UPDATES, check_carries, find_code, find_route, is_code
from dear_mpi.training.routes.find import NAMES as WIRES
from dear_mpi.training.routes.invariant import check_micro_batches
from dear_mpi.training.routes.route import Route
from dear_mpi.training.schedules import NAMES as NAMES_OF_SCHEDULES
from dear_mpi.training.schedules import Schedule, find_schedule

if TYPE_CHECKING:
    from dear_mpi.training.fabric.statistic import LossScale, Statistic
    from dear_mpi.training.learning_rate import Rate

TABLES = "resnet50, densenet201, inceptionv4, bert_base, bert_large or FILE.json"
NAMES = f"{', '.join(ALGORITHMS)}, one of an extra, such as synth:FILE"
FUSION_BY_SIZE = (
    "How layers are fused into buckets. none: a bucket for each layer; layers:4: one for every 4 layers; buckets:8: 8 "
    "of similar size; 25MB: layers up to this size; tensors: one for each tensor; cut:4MB: exactly this size, also "
    "inside a tensor"
)
FUSION_AS_GIVEN = (
    "ddp, horovod, mgwfbp: as the source of that schedule does; ddp:4MB: with this bucket_cap_mb; own: as the "
    "source of each schedule does; at:N,N: at these elements; FILE.py:FUNCTION: by your function"
)
TUNED = "bo: sizes are tried during training (also bo:1MB..64MB); auto: the best size is predicted"
FUSION = f"{FUSION_BY_SIZE}; {TUNED}; {FUSION_AS_GIVEN}."


def published_optimizer(name: str) -> type[Optimizer]:
    found = load_extra("optimizers", name)
    if not (isinstance(found, type) and issubclass(found, Optimizer)):
        raise ValueError(f"optimizer {name!r} must be a class derived from Optimizer, not {found!r:.60}")
    return found


ALL_OPTIMIZERS: Mapping[str, type[Optimizer]] = WithExtras(OPTIMIZERS, "optimizers", published_optimizer)


@dataclass(frozen=True, kw_only=True)
class Exchange(Declared):
    """Choose how an iteration sends gradients."""

    wire: str | None = option(
        f"Wire format of gradients: {', '.join(WIRES)}, or one of an extra, such as int4, topk:1% or powersgd:4. Lost "
        "parts are sent later, unless :error=no follows. With :between (int4:between) only sums of hosts are "
        "compressed, between hosts.",
        None,
        shown="the type of the parameters",
    )
    clip: float | None = option(
        "Largest norm of all gradients together; above it, all are scaled by CLIP / norm (torch: norm + 1e-6).",
        None,
        shown="no limit",
    )
    loss_scale: str = option(
        "none, or dynamic: gradients are scaled up while they travel, and an iteration that overflows is skipped.",
        "none",
        allowed=dict.fromkeys(("none", "dynamic")),
    )
    update: str | None = option(
        "full: each rank updates all parameters. sharded: each rank updates one part of the parameters, and keeps the "
        "optimiser's state for that part only. auto: sharded where that gives the same bits, else full.",
        None,
        shown="full",
        allowed=dict.fromkeys(UPDATES),
    )
    route: str | None = option(
        f"What gradients go through: {', '.join(ROUTES)}, or FILE.py:NAME. In place of --update.",
        None,
        shown="as --update says",
        may_be_file=True,
    )

    weights: Sequence[float] | str | None = option(
        "How fast each rank is: it has a share of the batch and of the flat buffer in proportion. 3,1,1: a number for "
        f"each rank; {MEASURED}: as the first iterations show.",
        None,
        shown="all alike",
        typed=str,
        parse=partial(parsed, "--weights", parse_weights),
    )
    segment_bytes: int | None = option(
        "Size of the largest message, e.g. 256KiB.",
        None,
        shown=SEGMENT,
        flag="--segment",
        typed=str,
        parse=partial(parsed, "--segment", parse_bytes),
    )

    invariant: int | None = option(
        "Cut each batch into this many micro-batches, a power of two, and sum them along one tree: the parameters and "
        "losses have the same bits on any number of ranks.",
        None,
        shown="no",
    )

    def check(self) -> None:
        super().check()
        check_micro_batches(self.invariant)
        if self.invariant is not None and self.weights is not None:
            raise ValueError(f"weights must be left out with invariant, which shares out batches, not {self.weights!r}")
        if self.update is not None and self.route is not None:
            both = "update and route both say what buckets go through"
            raise ValueError(f"{both}: leave out update {self.update!r}, and the route {self.route!r} holds")
        if self.wire is not None and is_code(self.wire):
            find_code(self.wire)
        check_weights(self.weights)
        number = isinstance(self.clip, Real) and not isinstance(self.clip, bool)
        if self.clip is not None and (not number or not 0 < self.clip < math.inf):
            raise ValueError(f"clip must be a norm above zero, not {self.clip!r}")

    @property
    def judged(self) -> bool:
        """Tell whether all gradients are checked before any is used."""
        return self.clip is not None or self.loss_scale != "none"

    @property
    def route_name(self) -> str:
        return self.route if self.route is not None else self.update or FULL.name

    def find_route(self, *, halves: bool = False) -> Route:
        """Return the chosen route; ``halves``: see ``routes/find.py``. Raises ValueError."""
        return find_route(self.route_name, wire=self.wire, halves=halves)

    def flat_type(self, route: Route, dtype: str) -> str:
        """Return the type of gradients in the flat buffer. Raises ValueError."""
        wire = self.wire or route.wire or dtype
        if not is_code(wire):
            return wire
        check_carries(wire, dtype)
        return dtype  # compression starts from the parameters' type


@dataclass(frozen=True, kw_only=True)
class Training(Exchange):
    """Choose the other options of training."""

    schedule: str = option(
        f"Schedule, which decides when gradients travel: {', '.join(NAMES_OF_SCHEDULES)}, one of an extra, such as "
        "lancet, or FILE.py:NAME.",
        "dear",
        may_be_file=True,
    )
    fusion: str = option(FUSION, USUAL, may_be_file=True)
    algorithm: str = option(
        f"Collective algorithm: {NAMES}, FILE.py:FUNCTION, native (the MPI library's own), auto (by message size), or "
        "auto:FILE (by message size, from the FILE of bench --tune).",
        "auto",
        may_be_file=True,
    )
    accumulate: int = option(
        "Number of parts that each batch is split into. Gradients of all parts add up, and then travel.",
        1,
        least=1,
    )
    device: str = option(
        "Where the model is: cpu, or cuda (each rank takes the next GPU of its host).",
        "cpu",
        allowed=dict.fromkeys(("cpu", "cuda")),
    )
    debug: bool = option(
        "Check in every iteration that ranks start the same collectives and that layers write their gradients.",
        False,
    )

    def find_route(self, *, halves: bool = False) -> Route:
        return find_schedule(self.schedule).own_route() or super().find_route(halves=halves)


@dataclass(frozen=True, kw_only=True)
class Options(Training):
    """Hold the options of a session.

    Attributes:
        optimizer: updates the parameters, for example ``Adam(lr=0.001)``; default ``SGD()``.
        learning_rate: maps the update's number, from 0, to the learning rate, for example ``Cosine``; default: the
            optimiser's. Ranks compare its first 1000 values. A skipped iteration has no update.
        statistic: checks all gradients before any is used, in addition to ``clip`` and ``loss_scale``.
        elastic: survivors of a death continue, see ``elastic.py``.
    """

    optimizer: Optimizer = field(default_factory=SGD)
    learning_rate: Rate | None = None
    statistic: Statistic | None = None
    elastic: bool = False

    @classmethod
    def of(cls, given: dict[str, Any]) -> Options:
        cls.check_names("option", given)
        options = cls(**given)
        options.check()
        return options

    def check(self) -> None:
        super().check()
        if not isinstance(self.optimizer, Optimizer):
            kind = f"{type(self.optimizer).__module__}.{type(self.optimizer).__qualname__}"
            raise ValueError(f"optimizer must be an Optimizer, such as Adam(lr=0.001), not a {kind}")
        if self.statistic is None:
            return
        from dear_mpi.training.fabric.statistic import Statistic

        if not isinstance(self.statistic, Statistic):
            raise ValueError(f"statistic must be a Statistic of dear_mpi.training, not {self.statistic!r:.99}")

    @property
    def judged(self) -> bool:
        return super().judged or self.statistic is not None

    def statistics(self, loss_scale: LossScale | None) -> list[Statistic]:
        from dear_mpi.training.fabric.statistic import Norm

        norm = [Norm(self.clip, loss_scale)] if super().judged else []
        return [*norm, *([] if self.statistic is None else [self.statistic])]

    def facts(self) -> dict[str, Any]:
        found = {name: value for name, value in vars(self).items() if name != "update"} | {
            "optimizer": str(self.optimizer),
            "route": source_text(self.route_name, "route", MINE),
            "statistic": None if self.statistic is None else type(self.statistic).__qualname__,
        }
        if self.learning_rate is not None:
            from dear_mpi.training.learning_rate import rates_of

            found["learning_rate"] = rates_of(self.learning_rate)
        return found

    @property
    def plans(self) -> dict[str, Any]:
        return {"algorithm": self.algorithm, "segment_bytes": self.segment_bytes, "debug": self.debug}


Wire = str | None  # None: the type of the parameters
SEVERAL = f"{options_of(Exchange)['wire'].help} Several with commas, e.g. fp32,int8,blocks:10%."


def check_wires(wires: Sequence[Wire]) -> None:
    for wire in wires:
        Exchange(wire=wire).check()
    named = [wire for wire in wires if wire is not None]
    check_distinct("wire", named, lambda wire: str(find_code(wire)) if is_code(wire) else wire)


def pairs(
    wires: Sequence[Wire], schedules: Mapping[str, type[Schedule]], *, implied: bool = False
) -> list[tuple[Wire, str]]:
    """Pair each wire format with each schedule, by name.

    With several wire formats, or if they are ``implied``, a schedule that defines a route appears once, with the
    parameters' type: it sends no gradients.

    >>> from dear_mpi.training.schedules import find_schedules
    >>> pairs(["fp16", "int8"], find_schedules(["dear", "local:10"]))
    [('fp16', 'dear'), (None, 'local:10'), ('int8', 'dear')]
    """
    alone = implied or len(wires) > 1
    own = [name for name, schedule in schedules.items() if alone and schedule.own_route() is not None]
    return list(dict.fromkeys((None if name in own else wire, name) for wire in wires for name in schedules))
