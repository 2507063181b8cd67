"""Legs of a selection: some elements of a bucket travel, the same ones on all ranks, and so they add up.

    out    add what waits, take elements I: codes | reduce_scatter codes
    back   all_gather codes | update the elements I by their sums

A shared seed draws I anew for each update, so no place travels. What is not taken waits on a line of each rank's own.
The optimiser's state is updated for I alone, too: otherwise momentum would push an element again and again while its
gradients wait, and training with momentum .9 and error feedback diverges (seen).

Cost: the bytes of an all-reduce of the taken elements, and three copies of them. Source: Eghlidi and Jaggi, Sparse
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
    """Draws which elements of a bucket travel."""

    def kept(self, count: int) -> int:
        """How many of so many."""

    def places(self, count: int, draw: tuple[int, int]) -> Array:
        """Their numbers, ascending, each once; the same wherever ``draw`` is the same."""


@dataclass(frozen=True, kw_only=True)
class OfSelection(OfCodes):
    """The line has an element for each that was taken, in the type of gradients."""

    adds_up: ClassVar[bool] = True
    wire: Selection

    def line_bytes(self, count: int, *, longest: int, itemsize: int, ranks: int, shapes: tuple[Shape, ...] = ()) -> int:
        return round_up(self.wire.kept(count) * itemsize, ranks * CHUNK_BYTES)

    def places(self, bucket: BucketMemory) -> Array:
        """The elements of this update."""
        return self.wire.places(bucket.line("gradients").size, (bucket.begin, bucket.own_updates))


@dataclass(frozen=True, kw_only=True)
class Select(WithErrors, OfSelection):
    """Take elements of the gradients, with what has waited.

    Attributes:
        error: a line on which what was not taken waits; or none.
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
            codes[:1] = xp.where(xp.isfinite(waiting).all(), codes[:1], xp.nan)  # at once, not when it is drawn

        return select

    def __str__(self) -> str:
        return f"select gradients to {self.codes}{f', with {self.error}' if self.error else ''}"


@dataclass(frozen=True, kw_only=True)
class UpdateSelected(Update, OfSelection):
    """Let the optimiser make the values new whose gradients have travelled, with their state."""

    act: ClassVar[str] = "decode"

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.codes, "values", "state")

    def elements(self, whole: float, own: Any) -> Any:
        """A call costs as much for a few elements as for all of them, and is in the mean cost of an element of all."""
        return whole * (self.wire.kept(round(whole)) + CALL_COST) / (whole + CALL_COST) if whole else 0.0

    def bind(self, bucket: BucketMemory) -> Callable[[float], object]:
        kept = self.wire.kept(bucket.line("gradients").size)
        return bucket.selected(bucket.line(self.codes)[:kept], lambda: self.places(bucket))

    def __str__(self) -> str:
        return f"update what {self.codes} have"
