"""Define stages (legs) for a selection: all ranks send the same elements of a bucket, so they add up.

    out    add the waiting gradients, take elements I: codes | reduce_scatter codes
    back   all_gather codes | update the elements I by their sums

A shared seed redraws I for each update, so no index travels. Other gradients wait on each rank's error line. The
optimiser state is updated only for I: otherwise momentum would push an element repeatedly while its gradients wait;
training with momentum .9 and error feedback diverged.

Cost: the bytes of an all-reduce of the selected elements, and three copies of them. Source: Eghlidi and Jaggi, Sparse
Communication for Training Deep Networks, arXiv 2009.09271; Vogels et al., PowerSGD, NeurIPS 2019, appendix G.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.optimizer import CALL_COST
from dear_mpi.kernels.slab import CHUNK_BYTES, round_up
from dear_mpi.training.routes.codes import OfCodes, WithErrors
from dear_mpi.training.routes.legs import BucketMemory, Shape, Update
from dear_mpi.training.routes.memory import Memory


class Selection(Protocol):
    """Draw the elements of a bucket that travel."""

    def kept(self, count: int) -> int:
        """Return the size of a selection from ``count`` elements."""

    def places(self, count: int, draw: tuple[int, int]) -> Array:
        """Return the selected indices, ascending and unique; equal for equal ``draw``."""


@dataclass(frozen=True, kw_only=True)
class OfSelection(OfCodes):
    """Give each selected element an element of the line, in the type of gradients."""

    adds_up: ClassVar[bool] = True
    wire: Selection

    def line_bytes(self, count: int, *, longest: int, itemsize: int, ranks: int, shapes: tuple[Shape, ...] = ()) -> int:
        return round_up(self.wire.kept(count) * itemsize, ranks * CHUNK_BYTES)

    def places(self, bucket: BucketMemory) -> Array:
        return self.wire.places(bucket.line("gradients").size, (bucket.begin, bucket.own_updates))


@dataclass(frozen=True, kw_only=True)
class Select(WithErrors, OfSelection):
    """Select elements of the gradients plus the waiting ones.

    Attributes:
        error: a line on which unselected gradients wait; or None.
    """

    act: ClassVar[str] = "encode"

    def prove(self, memory: Memory) -> None:
        for rank, shard in memory.places:
            self.prove_at(memory, rank, shard)

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        gradients, codes = bucket.line("gradients"), bucket.line(self.codes)
        waiting = gradients if self.error is None else bucket.line(self.error)
        xp: Any = array_module(codes)
        kept = self.wire.kept(gradients.size)
        codes[kept:] = 0

        def select(factor: float) -> None:
            if waiting is not gradients:
                waiting[...] += gradients
            places = self.places(bucket)
            codes[:kept] = waiting[places]
            waiting[places] = 0
            codes[:1] = xp.where(xp.isfinite(waiting).all(), codes[:1], xp.nan)  # now, not when it is drawn

        return select

    def __str__(self) -> str:
        return f"select gradients to {self.codes}{f', with {self.error}' if self.error else ''}"


@dataclass(frozen=True, kw_only=True)
class UpdateSelected(Update, OfSelection):
    """Update the selected values and their optimiser state."""

    act: ClassVar[str] = "decode"

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.codes, "values", "state")

    def elements(self, whole: float, own: Any) -> Any:
        """Count a call's full cost: the mean cost per element spreads it over all elements."""
        return whole * (self.wire.kept(round(whole)) + CALL_COST) / (whole + CALL_COST) if whole else 0.0

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        kept = self.wire.kept(bucket.line("gradients").size)
        return bucket.selected(bucket.line(self.codes)[:kept], lambda: self.places(bucket))

    def __str__(self) -> str:
        return f"update what {self.codes} have"
