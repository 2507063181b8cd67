"""One use of a layer, as the trainer runs it: its gradients are put in their places, and looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from dear_mpi.kernels.array import Array, array_module
from dear_mpi.models.layer import Layer
from dear_mpi.training.line.arena import Arena, GradPlace
from dear_mpi.training.line.stale import Copies

WRITE = "write all of it (grad[...] = g)"


@dataclass(eq=False)
class LayerUse:
    """A layer at one position of the forward pass.

    Attributes:
        number: its position.
        places: where it writes its gradients.
        complaints: what it did wrong; all uses of a model share the list.
    """

    number: int
    layer: Layer
    arena: Arena
    complaints: list[str]
    filled: bool = field(default=False, init=False)
    parts: int = field(default=0, init=False)  # of this batch, before the last
    kept: list[Array] = field(default_factory=list, init=False)  # the sums of their gradients
    copies: Copies | None = field(default=None, init=False)  # of the layer, while it is inspected

    @property
    def places(self) -> Sequence[GradPlace]:
        return self.arena.places[self.number]

    def forward(self, x: Array, *, inspect: bool) -> Array:
        """Run the layer; if it is to be inspected, see first that it computes with ``parameter.value``."""
        left = [place.left for place in self.places if place.left is not None] if inspect else []
        if not left:
            return self.layer.forward(x)
        self.copies = Copies(self.layer, left)
        y, stale = self.copies.forward(x)
        self.look(stale=stale)
        return y

    def backward(self, dy: Array) -> Array:
        """Let the layer write its gradients; return its input's gradient. The inspection of ``forward`` ends here."""
        if self.copies is not None:
            before = [place.grad.copy() for place in self.places]

            def run(layer: Layer) -> list[Array]:
                found = [layer.backward(dy.copy()), *(place.parameter.grad.copy() for place in self.places)]
                for place, grad in zip(self.places, before, strict=True):
                    place.parameter.grad = place.grad
                    place.grad[...] = grad
                return found

            self.look(stale=self.copies.differ(run))
            self.copies = None
            for place in self.places:
                place.left = None
        return self.layer.backward(dy)

    def look(self, *, stale: bool) -> None:
        """Complain if the layer is stale: what it makes depends on the memory that its values were moved from."""
        for place in self.places if stale else ():
            if place.left is not None:
                self.complain(place, "the layer computes with an array of its own; read parameter.value each time")

    def before_backward(self, dy: Array, *, inspect: bool) -> None:
        """Let the layer's gradients go where this use has its own; fill them with NaN if they are to be inspected."""
        for place in self.places:
            place.parameter.grad = place.grad
        wanted = inspect and bool(self.places)
        self.filled = wanted and bool(array_module(dy).isfinite(dy).all())  # if dy is not finite, NaN comes from it
        if self.filled:
            for place in self.places:
                place.grad[...] = math.nan

    def after_backward(self, *, last: bool) -> None:
        """Note which gradients have not been written to their places.

        After the last part of a batch, add the gradients of the earlier parts, then the gradients of tied parameters.
        """
        for place in self.places:
            if not place.parameter.trained:
                place.grad[...] = math.nan
                self.complain(place, "it was frozen (trained = False) during the session; begin a new one for that")
            elif place.parameter.value is not place.value:
                place.grad[...] = math.nan
                self.complain(place, "its value was bound to another array; change it in place (value[...] = v)")
            elif place.parameter.grad is not place.grad:
                place.grad[...] = math.nan  # so that all ranks hear of it
                self.complain(place, f"its grad was bound to another array (grad = g); {WRITE}")
            elif self.filled and bool(array_module(place.grad).isnan(place.grad).any()):
                what = "the layer left part of it out, added to it (grad += g), or computed NaN"
                self.complain(place, f"its gradient has NaN: {what}; {WRITE}")
        if not last:
            self.keep()
            return
        if self.parts:
            for place, kept in zip(self.places, self.kept, strict=True):
                place.grad += kept
        self.parts = 0
        self.arena.add_tied(self.number)

    def keep(self) -> None:
        """Add the gradients of a part of a batch to the sum over the earlier parts."""
        if not self.kept:
            self.kept = [array_module(place.grad).empty_like(place.grad) for place in self.places]
        for place, kept in zip(self.places, self.kept, strict=True):
            if self.parts:
                kept += place.grad
            else:
                kept[...] = place.grad
        self.parts += 1

    def complain(self, place: GradPlace, what: str) -> None:
        layer = f"layer {self.number} ({type(self.layer).__name__})"
        self.complaints.append(f"{layer}, parameter {place.parameter.name}: {what}")


def layer_uses(uses: Sequence[Layer], arena: Arena) -> list[LayerUse]:
    """The uses of a model, whose complaints are in one list."""
    complaints: list[str] = []
    return [LayerUse(number, layer, arena, complaints) for number, layer in enumerate(uses)]
