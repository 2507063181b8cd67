"""One use of a layer, as the trainer runs it: its gradients are put in their places, and looked at.

Does a layer compute with the memory that its values were moved from, instead of ``parameter.value``? It would never see
an update. Copies of it run, forward and backward, while that memory is full of other numbers, and what they return and
write is compared: with a right layer it does not depend on these numbers. Two fillings have opposite signs, so that no
mask, such as max(h, 0), hides both. The first filling is used again at the end: a layer that draws random numbers then
differs from itself. Such a layer, or one that cannot be copied, runs forward while the memory is full of NaN.
"""

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

import numpy as np

from dear_mpi.kernels.array import Array, array_module, to_host
from dear_mpi.models.layer import Layer
from dear_mpi.training.line.arena import Arena, GradPlace

FILLINGS = 1.0, -3.0, 1.0
ALONE = Lock()  # ranks that are threads may share the memory
WRITE = "write all of it (grad[...] = g)"


@dataclass(eq=False)
class LayerUse:
    """A layer at one position of the forward pass."""

    number: int  # its position
    layer: Layer
    arena: Arena
    complaints: list[str]  # what it did wrong; all uses of a model share the list
    filled: bool = field(default=False, init=False)
    parts: int = field(default=0, init=False)  # of this batch, before the last
    kept: list[Array] = field(default_factory=list, init=False)  # the sums of their gradients
    copies: "Copies | None" = field(default=None, init=False)  # of the layer, while it is inspected

    @property
    def places(self) -> Sequence[GradPlace]:
        """Where it writes its gradients."""
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
        """Complain if what the layer makes depends on the memory that its values were moved from."""
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
            fault = self.fault(place)
            if fault is not None:
                place.grad[...] = math.nan  # so that all ranks hear of it
                self.complain(place, fault)
        if not last:
            self.keep()
            return
        if self.parts:
            for place, kept in zip(self.places, self.kept, strict=True):
                place.grad += kept
        self.parts = 0
        self.arena.add_tied(self.number)

    def fault(self, place: GradPlace) -> str | None:
        """Why a gradient has not been written to its place, if it has not."""
        parameter = place.parameter
        if not parameter.trained:
            return "it was frozen (trained = False) during the session; begin a new one for that"
        if parameter.value is not place.value:
            return "its value was bound to another array; change it in place (value[...] = v)"
        if parameter.grad is not place.grad:
            return f"its grad was bound to another array (grad = g); {WRITE}"
        if self.filled and has_nan(place.grad):
            what = "the layer left part of it out, added to it (grad += g), or computed NaN"
            return f"its gradient has NaN: {what}; {WRITE}"
        return None

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


class Copies:
    """Copies of a layer, which share its parameters.

    Args:
        left: the memory that its values were moved from; it is as before when a call returns.
    """

    def __init__(self, layer: Layer, left: Sequence[Array]) -> None:
        self.layer, self.left, self.copies = layer, left, [layer] * len(FILLINGS)
        shared = [*layer.parameters, *left]
        self.useful = False
        with suppress(Exception):  # whatever a user's layer holds that cannot be copied
            self.copies = self.each(lambda own: copy.deepcopy(own, {id(each): each for each in shared}))
            self.useful = True

    def forward(self, x: Array) -> tuple[Array, bool]:
        """Run the layer; its output, and whether that depends on what the memory is filled with."""
        stale = self.differ(lambda layer: [layer.forward(x.copy())])
        if stale or self.useful:
            return self.layer.forward(x), stale
        y = self.filled(math.nan, lambda: self.layer.forward(x))
        return y, has_nan(y) and not has_nan(x)

    def differ(self, run: Callable[[Layer], Sequence[Any]]) -> bool:
        """Whether the arrays that a call makes of each copy depend on what the memory is filled with."""
        if not self.useful:
            return False
        first, other, again = self.each(run)
        random, stale = not alike(first, again), not alike(first, other)
        self.useful = not random and not stale
        return stale and not random

    def each(self, run: Callable[[Layer], Any]) -> list[Any]:
        pairs = zip(FILLINGS, self.copies, strict=True)
        return [self.filled(filling, partial(run, layer)) for filling, layer in pairs]

    def filled(self, filling: float, run: Callable[[], Any]) -> Any:
        """What a call returns, while the memory is full of other numbers."""
        with ALONE:
            before = [array.copy() for array in self.left]
            for array, value in zip(self.left, before, strict=True):
                array[...] = filling * (1.5 - value)  # also where all values are 0, or 1
            try:
                return run()
            finally:
                for array, value in zip(self.left, before, strict=True):
                    array[...] = value


def has_nan(array: Array) -> bool:
    return bool(array_module(array).isnan(array).any())


def alike(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether arrays are equal but for rounding, which may depend on where an array begins in memory."""
    pairs = zip(some, others, strict=True)
    return not any(far(to_host(one), to_host(other)) for one, other in pairs if hasattr(one, "shape"))


def far(one: Array, other: Array) -> bool:
    """Whether they differ by more than rounding; what is not finite has no rounding, and no part in the scale."""
    if one.shape != other.shape:
        return True
    with np.errstate(all="ignore"):
        first, second = one.astype(np.float64), other.astype(np.float64)
        finite = np.isfinite(first) & np.isfinite(second)
        most = np.maximum(abs(first), abs(second)).max(initial=0.0, where=finite)
        return not np.allclose(first, second, rtol=0, atol=most * 10.0**-one.itemsize, equal_nan=True)
