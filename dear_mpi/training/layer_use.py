"""Run one layer call for the trainer: place its gradients and check them.

The check finds layers that compute with the memory that their values were moved from, not with ``parameter.value``, and
so would miss updates. ``Copies`` of the layer run forward and backward while that memory holds other numbers; outputs
and gradients must not change. Two fillings of opposite signs defeat masks such as max(h, 0). Repeating the first
filling detects layers that draw random numbers. Such a layer, or one that cannot be copied, runs forward while the
memory is NaN.
"""

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, cast

import numpy as np

from dear_mpi.kernels.array import Array, array_module, to_host
from dear_mpi.models.layer import ExchangingLayer, Layer, SplitLayer, is_exchanging, is_split
from dear_mpi.training.line.arena import Arena, GradPlace
from dear_mpi.training.line.parameters import trained

FILLINGS = 1.0, -3.0, 1.0
ALONE = Lock()  # ranks that are threads may share the memory


class Copies:
    """Copy a layer but share its parameters; each call restores the memory that it filled (``left``)."""

    def __init__(self, layer: Layer, left: Sequence[Array]) -> None:
        self.layer, self.left, self.copies = layer, left, [layer] * len(FILLINGS)
        shared = [*layer.parameters, *left]
        self.useful = False
        with suppress(Exception):  # a user's layer may hold anything that cannot be copied
            self.copies = self.each(lambda own: copy.deepcopy(own, {id(each): each for each in shared}))
            self.useful = True

    def forward(self, x: Array) -> tuple[Array, bool]:
        """Run the layer; return its output, and whether that depends on the filling of the memory."""
        stale = self.differ(lambda layer: [layer.forward(x.copy())])
        if stale or self.useful:
            return self.layer.forward(x), stale
        y = self.filled(math.nan, lambda: self.layer.forward(x))
        return y, has_nan(y) and not has_nan(x)

    def differ(self, run: Callable[[Layer], Sequence[Any]]) -> bool:
        """Return whether the arrays that ``run`` makes of each copy depend on the filling."""
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
        """Return the result of a call while the memory is full of other numbers."""
        with ALONE:
            before = [array.copy() for array in self.left]
            for array, value in zip(self.left, before, strict=True):
                array[...] = filling * (1.5 - value)  # differs even if all values are 0, or 1
            try:
                return run()
            finally:
                for array, value in zip(self.left, before, strict=True):
                    array[...] = value


def has_nan(array: Array) -> bool:
    return bool(array_module(array).isnan(array).any())


def alike(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return whether arrays are equal except for rounding, which may depend on alignment in memory."""
    pairs = zip(some, others, strict=True)
    return not any(far(to_host(one), to_host(other)) for one, other in pairs if hasattr(one, "shape"))


def far(one: Array, other: Array) -> bool:
    """Return whether arrays differ by more than rounding; non-finite values must match and are not in the scale."""
    if one.shape != other.shape:
        return True
    with np.errstate(all="ignore"):
        first, second = one.astype(np.float64), other.astype(np.float64)
        finite = np.isfinite(first) & np.isfinite(second)
        most = np.maximum(abs(first), abs(second)).max(initial=0.0, where=finite)
        return not np.allclose(first, second, rtol=0, atol=most * 10.0**-one.itemsize, equal_nan=True)


WRITE = "write all of it (grad[...] = g)"


@dataclass(eq=False)
class LayerUse:
    """Hold a layer at one position of the forward pass."""

    number: int  # its position
    layer: Layer
    arena: Arena
    complaints: list[str]  # its faults; all layer calls of a model share the list
    filled: bool = field(default=False, init=False)
    parts: int = field(default=0, init=False)  # of this batch, before the last
    kept: list[Array] = field(default_factory=list, init=False)  # the sums of their gradients
    copies: Copies | None = field(default=None, init=False)  # of the layer, during inspection
    received: Array = field(init=False)

    def __post_init__(self) -> None:
        self.split = is_split(self.layer) and bool(self.places)
        self.exchanging = is_exchanging(self.layer)

    @property
    def places(self) -> Sequence[GradPlace]:
        """Return the places of its gradients."""
        return self.arena.places[self.number]

    def forward(self, x: Array, *, inspect: bool) -> Array:
        """Run the layer; with ``inspect``, first check that it computes with ``parameter.value``.

        Complain if its trained parameters differ from those at the start of training.
        """
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
        """Return a call that does the layer's exchange before a pass and keeps the data it ``received``."""
        layer = cast(ExchangingLayer, self.layer)
        method = layer.exchange_backward if back else layer.exchange_forward

        def act() -> None:
            self.received = method(given)

        return act

    def backward(self, dy: Array, *, late: bool = False) -> Array:
        """Let the layer write its gradients (weight gradients later if ``late``); return its input's gradient.

        This ends the inspection that ``forward`` began.
        """
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

            self.look(stale=self.copies.differ(run))
            self.copies = None
            for place in self.places:
                place.left = None
        return backward_of(self.layer, dy, late=late)

    def backward_weights(self) -> None:
        self.bind()
        cast(SplitLayer, self.layer).backward_weights()

    def look(self, *, stale: bool) -> None:
        """Complain if the layer's results depend on the memory that its values were moved from."""
        for place in self.places if stale else ():
            if place.left is not None:
                self.complain(place, "the layer computes with an array of its own; read parameter.value each time")

    def bind(self) -> None:
        """Direct the layer's gradients to the places of this call; another call may share the parameters."""
        for place in self.places:
            place.parameter.grad = place.grad

    def before_backward(self, dy: Array, *, inspect: bool) -> None:
        """Note where the layer's gradients go; fill them with NaN for an inspection."""
        self.bind()
        wanted = inspect and bool(self.places)
        self.filled = wanted and bool(array_module(dy).isfinite(dy).all())  # non-finite dy gives NaN in any case
        if self.filled:
            for place in self.places:
                place.grad[...] = math.nan

    def check_written(self) -> None:
        """Note the gradients that were not written to their places."""
        for place in self.places:
            fault = self.fault(place)
            if fault is not None:
                place.grad[...] = math.nan  # so that all ranks learn of it
                self.complain(place, fault)

    def after_backward(self, *, last: bool) -> None:
        """Keep the gradients of a part of a batch.

        After the last part, add the gradients of earlier parts, then the gradients of tied parameters, whose later
        calls have written by then.
        """
        if not last:
            self.keep()
            return
        if self.parts:
            for place, kept in zip(self.places, self.kept, strict=True):
                place.grad += kept
        self.parts = 0
        self.arena.add_tied(self.number)

    def fault(self, place: GradPlace) -> str | None:
        """Return why a gradient was not written to its place, or None."""
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

    @property
    def name(self) -> str:
        return f"layer {self.number} ({type(self.layer).__name__})"

    def complain(self, place: GradPlace, what: str) -> None:
        self.complaints.append(f"{self.name}, parameter {place.parameter.name}: {what}")


def backward_of(layer: Layer, dy: Array, *, late: bool) -> Array:
    return cast(SplitLayer, layer).backward_input(dy) if late else layer.backward(dy)


def split_uses(layers: Sequence[Layer]) -> list[int]:
    """Return the layers that may write trained gradients in a second half of their backward pass.

    Raises ValueError, which names the layer, if one lacks a method of the pair.
    """
    found = []
    for number, layer in enumerate(layers):
        try:
            divided, _ = is_split(layer), is_exchanging(layer)
        except ValueError as error:
            raise ValueError(f"layer {number}: {error}") from None
        found += [number] * (divided and bool(trained(layer)))
    return found
