"""What is on the virtual wire: a collective of a bucket, or a portion of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, NamedTuple, TypeAlias

from dear_mpi.collectives.lowering.messages import WHOLE, Portion
from dear_mpi.training.fabric.order import Key, Turn
from dear_mpi.training.line.bucket import Bucket
from dear_mpi.training.log.log import Event


class Carried(NamedTuple):
    """What is on the wire; sums over all buckets have none."""

    collective: str
    bucket: Bucket | None

    def __str__(self) -> str:
        return self.collective if self.bucket is None else f"{self.collective} of {self.bucket}"

    @property
    def number(self) -> int:
        """Of the bucket, as in the log."""
        return 0 if self.bucket is None else self.bucket.index


Parts: TypeAlias = Sequence[tuple[Carried, float]]  # what is on the wire, and its seconds


def portion_of(bucket: Bucket, portion: Portion) -> Bucket:
    """A bucket that is as long as a portion of one, to be priced."""
    if portion == WHOLE:
        return bucket
    share = (portion.last - portion.first) / portion.of
    return replace(bucket, stop=bucket.start + ceil(bucket.count * share), nbytes=ceil(bucket.nbytes * share))


@dataclass(eq=False)
class VirtualHandle:
    """Legs under way.

    Attributes:
        submitted_s: when the schedule has started them: a float, or over ranks.
        parts: what is on the wire in a turn, one after the other, and for how many seconds.
        event: of the last part, as soon as it is known when that is on the wire.
    """

    key: Key
    what: Carried
    submitted_s: Any
    parts: Callable[[Turn], Parts]
    event: Event | None = None

    def wait(self) -> None:
        """Nothing: the fabric moves the clock."""
