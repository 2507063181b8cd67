"""What a schedule is: four hooks around the layers, which start collectives, wait for them, and update.

forward   before_forward(0) layer 0 . before_forward(1) layer 1 ...
backward  ... layer 1 after_backward(1) . layer 0 after_backward(0) . end_backward()
at a point where the parameters are looked at (evaluation, checkpoint, the end):  flush()
"""

from collections.abc import Mapping
from typing import ClassVar

from dear_mpi.training.exchange import Exchange

__all__ = ["Schedule"]


class Schedule:
    """Does nothing at any hook; each schedule overrides those where it acts.

    Attributes:
        collectives: those that it starts, so that their plans can be made before training.
    """

    collectives: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def bound(ff: float, bp: float, network: Mapping[str, float]) -> float:
        """The least time of an iteration, perfectly pipelined.

        Args:
            ff, bp: seconds of forward and backward compute.
            network: seconds of each collective that the schedule starts, for all buckets.
        """
        raise NotImplementedError("a schedule must say its bound")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    def before_forward(self, layer: int) -> None:
        """Layer ``layer`` is about to run: its parameters must be up to date when this returns."""

    def after_backward(self, layer: int) -> None:
        """The gradients of layer ``layer`` have been written."""

    def end_backward(self) -> None:
        """All gradients have been written."""

    def flush(self) -> None:
        """Finish what is under way: afterwards all parameters are up to date."""
