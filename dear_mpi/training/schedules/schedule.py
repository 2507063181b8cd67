"""What a schedule is: four hooks around the layers, which start collectives, wait for them, and update.

forward    before_forward(0) layer 0 after_forward(0), before_forward(1) layer 1 after_forward(1), ...
backward   before_backward(1) layer 1 after_backward(1), before_backward(0) layer 0 after_backward(0), end_backward()
           if delays_weights(1): after_backward(1) comes when fabric.write_weights() has been called
where parameters are looked at (evaluation, checkpoint, the end)   flush()

A schedule sees buckets and uses of layers, by number, and drives a ``Fabric``: it knows neither arrays nor MPI. All
ranks must start the same collectives in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from dear_mpi.training.fabric import Fabric, Handle
from dear_mpi.training.fabric.costs import Nominal
from dear_mpi.training.fabric.order import Sequenced
from dear_mpi.training.fusion import USUAL
from dear_mpi.training.line.bucket import Bucket
from dear_mpi.training.routes.route import Route

CollectiveSeconds: TypeAlias = Mapping[str, float]  # of each collective that a schedule starts, for all buckets
Options: TypeAlias = Mapping[str, Callable[[str, str], Any]]  # what makes a value of a text, whose error begins so


class Schedule:
    """Does nothing at any hook; each schedule overrides those where it acts.

    Attributes:
        collectives: those that it starts, so that their plans can be made before training.
        extras: what else: ``negotiation`` or ``second all_gather``.
        fusion: where its source cuts buckets, see ``borders`` in ``fusion.py``: what ``--fusion own`` means.
        foresees: whether ``ordered`` is to be asked, when layers and collectives have been timed.
        options: what may be chosen about it, as ``bytescheduler:credit=8``, by the name of the attribute.
        order: in which the collectives of an iteration are carried out, from the first of its backward pass to the
            last before the next backward pass; None for the order in which they are started.
    """

    collectives: ClassVar[tuple[str, ...]] = ()
    extras: ClassVar[tuple[str, ...]] = ()
    fusion: ClassVar[str] = USUAL
    foresees: ClassVar[bool] = False
    options: ClassVar[Options] = {}
    order: Sequenced | None = None

    @classmethod
    def specialised(cls, **options: Any) -> type[Schedule]:
        """This schedule with other values for some of its options."""
        return type(cls.__name__, (cls,), options)

    @classmethod
    def own_route(cls) -> Route | None:
        """What buckets go through under this schedule, if it cannot be chosen."""
        return None

    @staticmethod
    def bound(ff: float, bp: float, network: CollectiveSeconds) -> float:
        """The least time of an iteration, however these seconds are spread over layers and buckets.

        It holds where iterations are alike, the network carries one collective at a time, and each takes what it takes
        alone; updates, the loss and packing come on top. Any layers may be without trained parameters: these wait for
        nothing.

        Args:
            ff, bp: seconds of forward and backward compute.
        """
        raise NotImplementedError("a schedule must say its bound")

    @classmethod
    def least(cls, ff: float, bp: float, network: CollectiveSeconds, parts: int = 1) -> float:
        """The bound for a batch that is split: only the first forward and the last backward pass hide communication.

        >>> class Mine(Schedule):
        ...     bound = staticmethod(lambda ff, bp, network: ff + max(bp, network["all_reduce"]))
        >>> Mine.least(4.0, 8.0, {"all_reduce": 5.0}, parts=4)
        15.0
        """
        return (parts - 1) / parts * (ff + bp) + cls.bound(ff / parts, bp / parts, network)

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric

    def take(self, decided: Any) -> None:
        """Go on as was decided: with one of ``orders``."""
        self.order = decided

    def ordered(self, nominal: Nominal) -> Sequenced | None:
        """An order of the iteration that suits what it is expected to take; not collective."""
        return self.order

    def orders(self, nominal: Nominal) -> Sequence[Any]:
        """What to choose from, sequences or None: the virtual fabric tries each of them after ``take``, and the fastest
        is taken; not collective."""
        return [self.ordered(nominal)]

    def before_forward(self, use: int) -> None:
        """A layer is about to run: its parameters must be up to date when this returns."""

    def after_forward(self, use: int) -> None:
        """It has run."""

    def before_backward(self, use: int) -> None:
        """It is about to run backward. What it exchanges before, if it does, is under way."""

    def delays_weights(self, use: int) -> bool:
        """Whether a layer that can is to write its weights' gradients later, when ``fabric.write_weights()`` is called;
        asked right before it runs backward."""
        return False

    def after_backward(self, use: int) -> None:
        """Its gradients have been written."""

    def end_backward(self) -> None:
        """All gradients have been written."""

    def flush(self) -> None:
        """Finish what is under way: afterwards all parameters are up to date."""


class Halved(Schedule):
    """Starts the reduce-scatter of a bucket when its last gradient is ready; when it is gathered, each says itself."""

    collectives: ClassVar[tuple[str, ...]] = ("reduce_scatter", "all_gather")

    def after_backward(self, use: int) -> None:
        for bucket in self.fabric.buckets.completed_by(use):
            self.fabric.start("reduce_scatter", bucket)


class Late(Schedule):
    """Waits for what it has under way right before a layer that needs it, and updates its parameters then."""

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(fabric)
        self.under_way: dict[Bucket, Handle] = {}  # the collectives that are to be waited for

    def before_forward(self, use: int) -> None:
        for bucket in self.fabric.buckets.needed_by(use):
            self.finish(bucket)

    def finish(self, bucket: Bucket) -> None:
        """Wait for a bucket's collective, if it is under way, and update its parameters."""
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
