"""Run one layer call for the trainer: place its gradients and check them.

The check finds layers that compute with the memory that their values were moved from, and so would miss updates. Copies
of the layer run while that memory holds other numbers. Two fillings of opposite signs defeat masks such as max(h, 0); a
repeated one detects random layers. These, and layers that cannot be copied, run forward while the memory is NaN.
"""

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, cast

import numpy as np

from dear_mpi.kernels.array import Array, array_module, to_host
from dear_mpi.models.layer import ExchangingLayer, Layer, SplitLayer, is_exchanging, is_split
from dear_mpi.training.buckets.arena import Arena, GradPlace
from dear_mpi.training.buckets.layout import trained
from dear_mpi.training.routes.invariant import Leaf

FILLINGS = 1.0, -3.0, 1.0
ALONE = Lock()  # ranks that are threads may share the memory


class Copies:
    """Copy a layer, except its parameters and the memory that it must not use (``left``)."""

    def __init__(self, layer: Layer, left: Sequence[Array]) -> None:
        self.layer, self.left, self.copies = layer, left, [layer] * len(FILLINGS)
        shared = {id(each): each for each in (*layer.parameters, *left)}
        self.useful = False
        with suppress(Exception):  # a user's layer may hold anything
            self.copies = self.each(lambda own: copy.deepcopy(own, dict(shared)))
            self.useful = True

    def forward(self, x: Array) -> tuple[Array, bool]:
        """Return the layer's output, and whether it depends on the memory."""
        stale = self.differ(lambda layer: [layer.forward(x.copy())])
        if stale or self.useful:
            return self.layer.forward(x), stale
        y = self.filled(math.nan, self.layer.forward, x)
        return y, has_nan(y) and not has_nan(x)

    def differ(self, run: Callable[[Layer], Sequence[Any]]) -> bool:
        """Return whether the arrays that ``run`` makes of each copy depend on the memory."""
        if not self.useful:
            return False
        first, other, again = self.each(run)
        random, stale = not nearly_equal(first, again), not nearly_equal(first, other)
        self.useful = not random and not stale
        return stale and not random

    def each(self, run: Callable[[Layer], Any]) -> list[Any]:
        return [self.filled(filling, run, layer) for filling, layer in zip(FILLINGS, self.copies, strict=True)]

    def filled(self, filling: float, run: Callable[[Any], Any], given: Any) -> Any:
        """Return ``run(given)`` while the memory has other numbers."""
        with ALONE:
            before = [array.copy() for array in self.left]
            for array, value in zip(self.left, before, strict=True):
                array[...] = filling * (1.5 - value)  # differs even if all values are 0, or 1
            try:
                return run(given)
            finally:
                for array, value in zip(self.left, before, strict=True):
                    array[...] = value


def has_nan(array: Array) -> bool:
    return bool(array_module(array).isnan(array).any())


def nearly_equal(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return whether arrays are equal except for rounding, which depends on alignment in memory."""
    for each, its in zip(some, others, strict=True):
        if not hasattr(each, "shape"):
            continue
        if each.shape != its.shape:
            return False
        with np.errstate(all="ignore"):
            one, other = (to_host(array).astype(np.float64) for array in (each, its))
            finite = np.isfinite(one) & np.isfinite(other)
            most = np.maximum(abs(one), abs(other)).max(initial=0.0, where=finite)
            if not np.allclose(one, other, rtol=0, atol=most * 10.0**-each.itemsize, equal_nan=True):
                return False
    return True


WRITE = "write all of it (grad[...] = g)"


@dataclass(eq=False)
class LayerCall:
    """Hold a layer at one position of the forward pass."""

    number: int
    layer: Layer
    arena: Arena
    complaints: list[str]  # its faults; all layer calls of a model share the list

    def __post_init__(self) -> None:
        self.places: Sequence[GradPlace] = self.arena.places[self.number]  # of its gradients
        self.split = is_split(self.layer) and bool(self.places)
        self.exchanging = is_exchanging(self.layer)
        self.received: Any = None  # by the last exchange
        self.filled = False  # whether gradients were NaN before
        self.parts, self.kept = 0, list[Array]()  # of this batch, before the last; the sums of their gradients
        self.partial: list[list[Array]] = []  # sums of gradients of complete subtrees, see ``fold``
        self.copies: Copies | None = None  # during inspection

    def forward(self, x: Array, *, inspect: bool) -> Array:
        """Run the layer; with ``inspect``, check that it computes with ``parameter.value``."""
        if [each for each in self.layer.parameters if each.trained] != [place.parameter for place in self.places]:
            advice = "since the session began; begin a new session for that"
            self.complaints.append(f"{self.name}: its trained parameters were replaced, added or removed {advice}")
        left = [place.left for place in self.places if place.left is not None] if inspect else []
        if not left:
            return self.layer.forward(x)
        self.copies = Copies(self.layer, left)
        y, stale = self.copies.forward(x)
        self.look(stale=stale)
        return y

    def exchange(self, given: Array, *, back: bool) -> Callable[[], None]:
        """Return the engine's act that sets ``received``."""
        layer = cast(ExchangingLayer, self.layer)
        method = layer.exchange_backward if back else layer.exchange_forward

        def act() -> None:
            self.received = method(given)

        return act

    def backward(self, dy: Array, *, late: bool = False) -> Array:
        """Let the layer write its gradients (of weights later, if ``late``); return its input's gradient."""
        if self.copies is not None:
            before = [place.grad.copy() for place in self.places]

            def run(layer: Layer) -> list[Array]:
                found = [backward_of(layer, dy.copy(), late=late)]
                if late:
                    cast(SplitLayer, layer).backward_weights()
                found += [place.parameter.grad.copy() for place in self.places]
                for place, grad in zip(self.places, before, strict=True):
                    place.parameter.grad = place.grad
                    place.grad[...] = grad
                return found

            self.look(stale=self.copies.differ(run))  # ends the inspection that ``forward`` began
            self.copies = None
            for place in self.places:
                place.left = None
        return backward_of(self.layer, dy, late=late)

    def backward_weights(self) -> None:
        self.bind()
        cast(SplitLayer, self.layer).backward_weights()

    def look(self, *, stale: bool) -> None:
        """Complain if results depend on the memory that values were moved from."""
        for place in self.places if stale else ():
            if place.left is not None:
                self.complain(place, "the layer computes with an array of its own; read parameter.value each time")

    def bind(self) -> None:
        for place in self.places:
            place.parameter.grad = place.grad

    def before_backward(self, dy: Array, *, inspect: bool) -> None:
        self.bind()
        # Non-finite dy gives NaN in any case.
        self.filled = inspect and bool(self.places) and bool(array_module(dy).isfinite(dy).all())
        for place in self.places if self.filled else ():
            place.grad[...] = math.nan

    def check_written(self) -> None:
        for place in self.places:
            if fault := self.fault(place):
                place.grad[...] = math.nan  # so that all ranks learn of it
                self.complain(place, fault)

    def after_backward(self, *, last: bool) -> None:
        """Add up the gradients of parts; at the end, add tied gradients."""
        if last:
            for place, kept in zip(self.places, self.kept, strict=True) if self.parts else ():
                place.grad += kept
            self.parts = 0
            self.arena.add_tied(self.number)
            return
        self.kept = self.kept or [place.grad.copy() for place in self.places]
        for place, kept in zip(self.places, self.kept, strict=True):
            if self.parts:
                kept += place.grad
            else:
                kept[...] = place.grad
        self.parts += 1

    def fold(self, leaf: Leaf) -> None:
        """Add a micro-batch's gradients to the subtrees that it completes; tied ones count for their owner."""
        layout, owned = self.arena.layout, dict[int, Array]()
        for place, tensor in zip(self.places, layout.calls[self.number], strict=True):
            if layout.first_calls[tensor] == self.number:
                owned.setdefault(tensor, place.grad)
        for sums in reversed(self.partial[leaf.kept - leaf.merges : leaf.kept]):
            for total, grad in zip(sums, owned.values(), strict=True):
                grad += total
        at = leaf.kept - leaf.merges
        if leaf.goes == "kept" and at == len(self.partial):
            self.partial.append([grad.copy() for grad in owned.values()])
        elif leaf.goes == "kept":
            for total, grad in zip(self.partial[at], owned.values(), strict=True):
                total[...] = grad
        elif leaf.goes in self.arena.buffers:
            for tensor, grad in owned.items():
                self.arena.view(self.arena.buffers[leaf.goes], tensor)[...] = grad

    def fault(self, place: GradPlace) -> str:
        """Return why a gradient was not written to its place, or ""."""
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
        return ""

    @property
    def name(self) -> str:
        return f"layer {self.number} ({type(self.layer).__name__})"

    def complain(self, place: GradPlace, what: str) -> None:
        self.complaints.append(f"{self.name}, parameter {place.parameter.name}: {what}")


def backward_of(layer: Layer, dy: Array, *, late: bool) -> Array:
    return cast(SplitLayer, layer).backward_input(dy) if late else layer.backward(dy)


def split_calls(layers: Sequence[Layer]) -> list[int]:
    """Return the layers whose trained gradients come in two halves. Raises ValueError."""
    found = []
    for number, layer in enumerate(layers):
        try:
            divided, _ = is_split(layer), is_exchanging(layer)
        except ValueError as error:
            raise ValueError(f"layer {number}: {error}") from None
        found += [number] * (divided and bool(trained(layer)))
    return found
