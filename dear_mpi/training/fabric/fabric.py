"""The protocol between schedules and what carries their collectives out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dear_mpi.training.fabric.order import Key
from dear_mpi.training.line.bucket import Bucket, Cut
from dear_mpi.training.log.log import Log


class Handle(Protocol):
    """A collective under way."""

    def wait(self) -> None:
        """Block until it is over. Schedules wait through their fabric, which takes the time."""


class Fabric(Protocol):
    """Starts and awaits collectives of buckets, and updates their parameters.

    Attributes:
        buckets: in the order of the line.
        rules: the book of the schedule that runs now.
        log: of what is done, and when.
    """

    buckets: Cut
    rules: Any  # Rules, or NoRules
    log: Log

    @property
    def loss_scale(self) -> float:
        """What gradients are to be multiplied by before they travel."""

    def follow(self, order: Sequence[Key] | None) -> None:
        """Let the collectives of each iteration go onto the wire in this order; None for first in, first out."""

    def start(self, collective: str, bucket: Bucket) -> Handle:
        """Begin a collective. If it reduces, the gradients of the bucket must be there."""

    def negotiate(self, bucket: Bucket) -> None:
        """Let the wire carry what ranks exchange to see that a bucket is ready on all of them: a byte for each tensor.
        Only what is started next waits for it."""

    def gather_again(self, bucket: Bucket) -> Handle:
        """Begin another all-gather of values that all ranks have, as if they had given them away."""

    def wait(self, handle: Any) -> None:
        """Wait for it; the log has the time as exposed communication."""

    def update(self, bucket: Bucket) -> None:
        """Make the parameters of a bucket new, by gradients that were reduced; with sharded updates, by the values that
        were gathered."""

    def now(self) -> Any:
        """A mark of the time."""

    def seconds(self, begin: Any, end: Any) -> float:
        """From one mark to another."""

    def complaints(self) -> list[str]:
        """What was wrong with summed gradients, the same on all ranks."""

    def agree(self, what: str, facts: Callable[[], Mapping[str, Any]]) -> None:
        """Raise on all ranks what any of them raises in ``facts``."""
