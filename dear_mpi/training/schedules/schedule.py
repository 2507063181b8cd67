"""Define a schedule: hooks around the layers, to start collectives, await them and update.

forward    before_forward(0) layer 0 after_forward(0), before_forward(1) layer 1 after_forward(1), ...
backward   before_backward(1) layer 1 after_backward(1), before_backward(0) layer 0 after_backward(0), end_backward()
           if delays_weights(1): after_backward(1) comes after fabric.write_weights()

before reading parameters (evaluation, checkpoint, the end)   flush()

A schedule sees numbered buckets and layer calls, and drives a ``Fabric``, without arrays or MPI. All ranks must start
the same collectives in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from dear_mpi.training.buckets.layout import Bucket
from dear_mpi.training.fabric.fabric import Fabric, Handle, Sequenced
from dear_mpi.training.fusion import USUAL
from dear_mpi.training.routes.route import Route

CollectiveSeconds: TypeAlias = Mapping[str, float]  # of each started collective, for all buckets
Options: TypeAlias = Mapping[str, Callable[[str, str], Any]]  # parsers, called with a prefix for errors and the text


class Schedule:
    """Do nothing at any hook; schedules override those that they need.

    Attributes:
        collectives: those it starts; their plans are made before training.
        extras: further ones: ``negotiation`` or ``second all_gather``.
        fusion: its source's bucket policy, for ``--fusion own``; see ``borders`` in ``fusion/``.
        foresees: whether to call ``orders`` once layers and collectives have been timed.
        options: parsers by attribute, for names such as ``bytescheduler:credit=8``.
        order: of collectives between backward passes; None: of their starts.
    """

    collectives: ClassVar[tuple[str, ...]] = ()
    extras: ClassVar[tuple[str, ...]] = ()
    fusion: ClassVar[str] = USUAL
    foresees: ClassVar[bool] = False
    options: ClassVar[Options] = {}
    order: Sequenced | None = None

    @classmethod
    def specialised(cls, **options: Any) -> type[Schedule]:
        return type(cls.__name__, (cls,), options)

    @classmethod
    def own_route(cls) -> Route | None:
        return None

    @staticmethod
    def bound(ff: float, bp: float, network: CollectiveSeconds) -> float:
        """Return the least time of an iteration, for any distribution of these seconds over layers and buckets.

        Assumes equal iterations, and one collective at a time; excludes updates, loss and packing. Layers without
        trained parameters wait for nothing. ``ff`` and ``bp`` are seconds of forward and backward compute.
        """
        raise NotImplementedError("a schedule must say its bound")

    @classmethod
    def least(cls, ff: float, bp: float, network: CollectiveSeconds, parts: int = 1) -> float:
        """Bound a split batch: only the first forward and the last backward hide communication.

        >>> class Mine(Schedule):
        ...     bound = staticmethod(lambda ff, bp, network: ff + max(bp, network["all_reduce"]))
        >>> Mine.least(4.0, 8.0, {"all_reduce": 5.0}, parts=4)
        15.0
        """
        return (parts - 1) / parts * (ff + bp) + cls.bound(ff / parts, bp / parts, network)

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric

    def take(self, decided: Any) -> None:
        self.order = decided

    def ordered(self, nominal: Nominal) -> Sequenced | None:
        """Return an order for the expected costs; not collective."""
        return self.order

    def orders(self, nominal: Nominal) -> Sequence[Any]:
        """Return candidates for ``take``; the virtual fabric finds the fastest; not collective."""
        return [self.ordered(nominal)]

    def before_forward(self, call: int) -> None:
        """Prepare a layer's forward pass: on return its parameters must be up to date."""

    def after_forward(self, call: int) -> None:
        """Act after a layer's forward pass."""

    def before_backward(self, call: int) -> None:
        """Act before a layer's backward pass, during its exchange, if any."""

    def delays_weights(self, call: int) -> bool:
        """Decide whether a layer in two halves delays its weight gradients until ``fabric.write_weights()``."""
        return False

    def after_backward(self, call: int) -> None:
        """Act after a layer's gradients have been written."""

    def end_backward(self) -> None:
        """Act after all gradients have been written."""

    def flush(self) -> None:
        """Finish pending work: on return all parameters are up to date."""


class Late(Schedule):
    """Await collectives right before a layer needs them, then update it."""

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.under_way: dict[Bucket, Handle] = {}

    def before_forward(self, call: int) -> None:
        for bucket in self.fabric.buckets.needed_by(call):
            self.finish(bucket)

    def finish(self, bucket: Bucket) -> None:
        if (handle := self.under_way.pop(bucket, None)) is not None:
            self.fabric.wait(handle)
            self.fabric.update(bucket)

    def flush(self) -> None:
        for bucket in self.fabric.buckets:
            self.finish(bucket)


def yes_or_no(what: str, text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError(f"{what} must be yes or no, not {text!r}")
    return text == "yes"


@dataclass(frozen=True)
class Nominal:
    """Hold what a schedule knows when it orders its iteration: costs of ranks of equal speed."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    price: Callable[[str, Bucket], float]  # seconds, with updates and codes
    judged: bool = False  # all gradients are checked before use
    portions: Callable[[str, Bucket], int] = lambda collective, bucket: 1
    weights_s: Mapping[int, float] = field(default_factory=dict)
    exchange_s: Mapping[int, float] = field(default_factory=dict)
    loss_s: float = 0.0
