"""The trainer: one iteration of any model under any schedule. It knows neither MPI nor derivatives, nor what is live.

The path of a gradient: ``layer.backward`` writes it into its bucket, ``schedule.after_backward`` hands the bucket to
the ``Fabric``, whose ``Engine`` runs the collective's ``Plan``; when the schedule says so the fabric updates the
parameters, at the latest in ``schedule.before_forward`` of the layer that needs them.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.program.partition import chunk_bounds
from dear_mpi.kernels.array import Array
from dear_mpi.models.layer import Loss
from dear_mpi.training.fabric import Fabric
from dear_mpi.training.schedules import Schedule

__all__ = ["Times", "Trainer", "TrainingError"]


class TrainingError(AgreedError):
    """Training cannot go on."""


Pair: TypeAlias = tuple[Any, Any]  # marks of the compute stream


class Times(NamedTuple):
    """Where the seconds of one iteration went, on this rank; ``exposed_s``: waiting for communication."""

    iteration_s: float
    forward_s: float
    backward_s: float
    exposed_s: float


class Meter(Protocol):
    """Sums the losses of all ranks."""

    @property
    def fabric(self) -> Fabric: ...

    def start(self, loss: Array | float, scale: float, targets: int) -> None:
        """Begin the sum of ``scale`` times the losses, and that of the numbers of targets."""

    def read(self) -> float:
        """The sum; backward is over."""


class Runs(Protocol):
    """One use of a layer: ``Step`` on the live fabric, ``VirtualStep`` on the virtual one."""

    @property
    def complaints(self) -> Sequence[str]: ...

    def forward(self, x: Array, *, inspect: bool) -> Array: ...
    def before_backward(self, dy: Array, *, inspect: bool) -> None: ...
    def backward(self, dy: Array) -> Array: ...
    def after_backward(self, *, last: bool) -> None: ...


class Trainer:
    """Runs iterations of a model; trainers with several schedules may take turns on one.

    In its first iteration, and in all where ``debug``, it fills the gradients with NaN before the layers write them.
    """

    def __init__(
        self,
        steps: Sequence[Runs],
        loss: Loss,
        meter: Meter,
        schedule: Schedule,
        *,
        accumulate: int = 1,
        debug: bool = False,
    ) -> None:
        self.steps, self.loss, self.meter, self.schedule = tuple(steps), loss, meter, schedule
        self.fabric = meter.fabric
        self.accumulate, self.debug = accumulate, debug
        self.done, self.first = 0, True  # iterations, with those before a checkpoint

    def iteration(self, x: Array, targets: Array, scale: float) -> tuple[float, Times]:
        """One pass forward and backward, or ``accumulate`` of them, with a part of the batch each.

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
        fabric = self.fabric
        fabric.follow(self.schedule.order)
        fabric.exposed_s()  # leave out the waiting between iterations
        begin = fabric.now()
        forward, backward = list[Pair](), list[Pair]()
        total: Array | float = 0.0
        for part in range(self.accumulate):
            last = part == self.accumulate - 1
            span = slice(*chunk_bounds(len(x), self.accumulate, part))
            total += self.loss.forward(self.forward(x[span], forward), targets[span])
            if last:
                self.meter.start(total, scale, targets.size)
            self.backward(self.loss.backward(scale * fabric.loss_scale), backward, last=last)
        self.schedule.end_backward()
        loss = self.meter.read()
        end = fabric.now()
        self.check(loss)
        self.done, self.first = self.done + 1, False
        whole_s, forward_s, backward_s = map(self.seconds, ([(begin, end)], forward, backward))
        return loss, Times(whole_s, forward_s, backward_s, fabric.exposed_s())

    def seconds(self, pairs: Sequence[Pair]) -> float:
        """The sum of the times between marks."""
        return sum(self.fabric.seconds(begin, end) for begin, end in pairs)

    def forward(self, x: Array, pairs: list[Pair]) -> Array:
        """The model's output; adds the marks around each layer to ``pairs``."""
        for number, step in enumerate(self.steps):
            self.schedule.before_forward(number)
            begin = self.fabric.now()
            x = step.forward(x, inspect=self.first)
            pairs.append((begin, self.fabric.now()))
            self.schedule.after_forward(number)
        return x

    def backward(self, dy: Array, pairs: list[Pair], *, last: bool) -> None:
        """Let every layer write its gradients; the schedule hears of the last part only."""
        for number in reversed(range(len(self.steps))):
            step = self.steps[number]
            if last:
                self.schedule.before_backward(number)
            step.before_backward(dy, inspect=self.debug or self.first)
            begin = self.fabric.now()
            dy = step.backward(dy)
            pairs.append((begin, self.fabric.now()))
            step.after_backward(last=last)
            if last:
                self.schedule.after_backward(number)

    def check(self, loss: float = 0.0) -> None:
        """See that all went well so far. What did not is seen by all ranks alike, so they raise together.

        Raises:
            TrainingError, ArgumentError: see ``iteration``.
        """
        wrong = self.fabric.complaints()[:1]
        if not math.isfinite(loss):
            wrong.append(f"the loss is {loss} in iteration {self.done}: try a lower learning rate (--lr)")
        if wrong:
            self.schedule.flush()
            self.fabric.agree(f"iteration {self.done}", self.complain)
            raise TrainingError("; ".join(wrong))

    def complain(self) -> dict[str, Any]:
        said = [complaint for step in self.steps[:1] for complaint in step.complaints]
        if said:
            raise ValueError("; ".join(list(dict.fromkeys(said))[:3]))
        return {}
