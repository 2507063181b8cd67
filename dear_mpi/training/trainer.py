"""The trainer: one iteration of any model under any schedule. It knows neither MPI nor derivatives.

The path of a gradient: ``layer.backward`` writes it into its bucket, ``schedule.after_backward`` hands the bucket to
the ``Exchange``, whose ``Engine`` runs the collective's ``Plan``; when the schedule says so the bucket updates the
parameters, at the latest in ``schedule.before_forward`` of the layer that needs them.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.kernels.array import Array, array_module
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.slab import Slab
from dear_mpi.models.layer import Layer, Loss, Parameter, check_untied
from dear_mpi.training.exchange import Exchange
from dear_mpi.training.schedules import Schedule

__all__ = ["LossMeter", "Times", "Trainer", "TrainingError"]


class TrainingError(AgreedError):
    """Training cannot go on."""


Pair: TypeAlias = tuple[Any, Any]  # marks of the compute stream


class Times(NamedTuple):
    """Where the seconds of one iteration went, on this rank; ``exposed_s``: waiting for communication."""

    iteration_s: float
    forward_s: float
    backward_s: float
    exposed_s: float


class LossMeter:
    """Sums the ranks' losses, hidden under the backward pass: started before it, read after it.

    Constructing is collective. ``slab`` is memory where the model is: a GPU's host does not wait for the loss.
    """

    def __init__(self, exchange: Exchange, slab: Slab) -> None:
        self.exchange, self.value = exchange, slab.zeros(1, DTYPES["fp64"])
        self.plan = make_plan("all_reduce", self.value, exchange.world.transport, algorithm="auto", slab=slab)
        self.plan.name = "all_reduce of the loss"

    def start(self, loss: Array | float, scale: float) -> None:
        self.value[...] = loss
        self.value *= scale
        self.handle = self.exchange.engine.start(self.plan, self.plan.name)

    def read(self) -> float:
        self.exchange.wait(self.handle)
        return float(self.value[0])

    def free(self) -> None:
        self.plan.free()


class Trainer:
    """Runs iterations of a model; trainers with several schedules may take turns on one.

    In its first iteration, and in all where ``debug``, it fills the gradients with NaN before the layers write them.

    Raises:
        ValueError: two parameters share memory.
    """

    def __init__(
        self, layers: Sequence[Layer], loss: Loss, meter: LossMeter, schedule: Schedule, *, debug: bool = False
    ) -> None:
        check_untied(layers)
        self.layers, self.loss, self.meter, self.schedule = tuple(layers), loss, meter, schedule
        self.exchange = meter.exchange
        self.compute = meter.exchange.compute
        self.debug, self.done = debug, 0
        self.complaints: list[str] = []
        self.places = places(layers, self.exchange)

    def iteration(self, x: Array, targets: Array, scale: float) -> tuple[float, Times]:
        """One pass forward and backward.

        Args:
            x, targets: this rank's part of the batch.
            scale: 1 / number of targets in the whole batch. Gradients are summed over ranks and averaged here, in
                the loss, once; so ranks may have unequal parts.

        Returns:
            The mean loss over the batch of the whole job, and where the time went.

        Raises:
            TrainingError: the loss or a summed gradient is infinite or not a number.
            ArgumentError: a layer of some rank has not written its gradients where they travel.
        """
        self.exchange.exposed_s()  # leave out the waiting between iterations
        begin = self.compute.mark()
        x, forward = self.forward(x)
        self.meter.start(self.loss.forward(x, targets), scale)
        backward = self.backward(self.loss.backward(scale))
        self.schedule.end_backward()
        loss = self.meter.read()
        end = self.compute.mark()
        self.check(loss)
        self.done += 1
        whole_s, forward_s, backward_s = map(self.seconds, ([(begin, end)], forward, backward))
        return loss, Times(whole_s, forward_s, backward_s, self.exchange.exposed_s())

    def seconds(self, pairs: Sequence[Pair]) -> float:
        """The sum of the times between marks."""
        return sum(self.compute.seconds(begin, end) for begin, end in pairs)

    def forward(self, x: Array) -> tuple[Array, list[Pair]]:
        """The model's output, and the marks around each layer."""
        pairs = []
        for number, layer in enumerate(self.layers):
            self.schedule.before_forward(number)
            begin = self.compute.mark()
            x = layer.forward(x)
            pairs.append((begin, self.compute.mark()))
        return x, pairs

    def backward(self, dy: Array) -> list[Pair]:
        """Let every layer write its gradients; the marks around each."""
        pairs = []
        for number in reversed(range(len(self.layers))):
            filled = self.fill(number, dy)
            begin = self.compute.mark()
            dy = self.layers[number].backward(dy)
            pairs.append((begin, self.compute.mark()))
            self.inspect(number, filled=filled)
            self.schedule.after_backward(number)
        return pairs

    def fill(self, number: int, dy: Array) -> bool:
        """Fill a layer's gradients with NaN, if they are to be inspected; not where NaN is what comes in."""
        wanted = self.places[number] and (self.debug or not self.done)
        if not wanted or bool(array_module(dy).isnan(dy).any()):
            return False
        for _, grad in self.places[number]:
            grad[...] = math.nan
        return True

    def inspect(self, number: int, *, filled: bool) -> None:
        """Note which gradients a layer has not written to their places: there a NaN now tells all ranks."""
        for parameter, grad in self.places[number]:
            if parameter.grad is not grad:
                grad[...] = math.nan
                what = "its grad was bound to another array (grad = g)"
            elif filled and bool(array_module(grad).isnan(grad).any()):
                what = "its gradient has NaN: the layer left part of it out, added to it (grad += g), or computed NaN"
            else:
                continue
            layer = f"layer {number} ({type(self.layers[number]).__name__})"
            self.complaints.append(f"{layer}, parameter {parameter.name}: {what}; write all of it (grad[...] = g)")

    def check(self, loss: float = 0.0) -> None:
        """See that all went well so far. What did not is seen by all ranks alike, so they raise together.

        Raises:
            TrainingError, ArgumentError: see ``iteration``.
        """
        wrong = [text for bucket in self.exchange.buckets if (text := bucket.complaint())][:1]
        if not math.isfinite(loss):
            wrong.append(f"the loss is {loss} in iteration {self.done}: try a lower learning rate (--lr)")
        if wrong:
            self.schedule.flush()
            agree(self.exchange.world.transport, f"iteration {self.done}", self.complain)
            raise TrainingError("; ".join(wrong))

    def complain(self) -> dict[str, Any]:
        if self.complaints:
            raise ValueError("; ".join(list(dict.fromkeys(self.complaints))[:3]))
        return {}


def places(layers: Sequence[Layer], exchange: Exchange) -> list[list[tuple[Parameter, Array]]]:
    """The parameters of each layer, with the arrays into which their gradients must be written."""
    rows = {bucket.index: zip(bucket.parameters, bucket.grads, strict=True) for bucket in exchange.buckets}
    buckets = [exchange.bucket_of(number) for number in range(len(layers))]
    return [
        [] if bucket is None else [next(rows[bucket.index]) for _ in layer.parameters]
        for layer, bucket in zip(layers, buckets, strict=True)
    ]
