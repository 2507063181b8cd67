"""The trainer: one iteration of any model under any schedule. It knows neither MPI nor derivatives, nor what is live.

The path of a gradient: ``layer.backward`` writes it into its bucket, ``schedule.after_backward`` hands the bucket to
the ``Fabric``, whose ``Engine`` runs the collective's ``Plan``; when the schedule says so the fabric updates the
parameters, at the latest in ``schedule.before_forward`` of the layer that needs them.

A schedule may delay the second half of a layer's backward pass:

    layer       | 3: dx | 2: dx | 3: dw | 1: dx, dw | 2: dw | 0 ...
    the schedule hears that gradients are there:   3           2, 1

It hears of layers in the order in which they ran, so that a bucket is complete when it hears of its first layer.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from dear_mpi.collectives.program.errors import AgreedError, CollectiveError
from dear_mpi.collectives.program.partition import chunk_bounds
from dear_mpi.kernels.array import Array
from dear_mpi.models.layer import Loss
from dear_mpi.training.fabric import Fabric, Handle
from dear_mpi.training.fabric.order import Delayed, Step
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.log.log import EXCHANGE, Times, times_of
from dear_mpi.training.schedules import Schedule


class TrainingError(AgreedError):
    """Training cannot go on."""


class Meter(Protocol):
    """Sums the losses of all ranks."""

    @property
    def fabric(self) -> Fabric: ...
    @property
    def trouble(self) -> bool: ...  # whether any rank was in trouble; backward is over

    def start(self, loss: Array | float, targets: Array, total: int, *, trouble: bool) -> None:
        """Begin the sums over ranks: of the losses over ``total``, of the numbers of targets, of ranks in trouble."""

    def read(self) -> float:
        """The sum; backward is over."""

    def complaint(self) -> str | None:
        """What is wrong with the numbers of targets, the same on all ranks."""


class UseOfLayer(Protocol):
    """One use of a layer: ``LayerUse`` on the live fabric, ``VirtualUse`` on the virtual one."""

    received: Array  # by the last exchange

    @property
    def split(self) -> bool: ...  # whether its backward pass has two halves
    @property
    def exchanging(self) -> bool: ...  # whether it sends and awaits something before a pass
    @property
    def complaints(self) -> Sequence[str]: ...

    def exchange(self, given: Array, *, back: bool) -> Any:
        """The engine's act, see ``Step``, that makes ``received`` of what the pass is given."""

    def forward(self, x: Array, *, inspect: bool) -> Array: ...
    def before_backward(self, dy: Array, *, inspect: bool) -> None: ...
    def backward(self, dy: Array, *, late: bool = False) -> Array: ...
    def backward_weights(self) -> None: ...
    def check_written(self) -> None: ...
    def after_backward(self, *, last: bool) -> None: ...


class Trainer:
    """Runs iterations of a model; trainers with several schedules may take turns on one.

    In its first iteration, and in all where ``debug``, it fills the gradients with NaN before the layers write them.
    ``times`` says where the seconds of the last iteration went; the fabric's log knows more of it.
    """

    def __init__(
        self,
        uses: Sequence[UseOfLayer],
        loss: Loss,
        meter: Meter,
        schedule: Schedule,
        rules: Rules,
        *,
        accumulate: int = 1,
        debug: bool = False,
    ) -> None:
        self.uses, self.loss, self.meter, self.schedule = tuple(uses), loss, meter, schedule
        self.fabric, self.rules = meter.fabric, rules
        self.accumulate, self.debug = accumulate, debug
        self.done, self.first = 0, True  # iterations, with those before a checkpoint
        self.examples = 0  # of this rank, in the last iteration
        self.trouble = ""  # with this rank's own gradients; the others hear of it with the next loss

    def iteration(self, x: Array, targets: Array, total: int) -> tuple[float, Times]:
        """One pass forward and backward, or ``accumulate`` of them, with a part of the batch each: the mean loss over
        the batch of the whole job, and where the time went.

        Args:
            x, targets: this rank's part of the batch, see ``parts``.
            total: the number of targets that count in the whole batch. Gradients are summed over ranks and averaged
                here, in the loss, once; so ranks may have unequal parts.

        Raises:
            TrainingError: the loss or a gradient is infinite or not a number, or ``total`` is wrong.
            ArgumentError: a layer of some rank has not written its gradients where they travel.
            ValueError: this rank's targets cannot be split.
        """
        fabric, parts = self.fabric, self.parts(x, targets)
        fabric.rules = self.rules
        self.rules.follow(self.schedule.order)
        fabric.follow(self.rules.followed)
        fabric.log.begin(self.done, fabric.now())
        losses: Array | float = 0.0
        self.examples = len(x)
        for number, (some, theirs) in enumerate(parts, start=1):
            last = number == self.accumulate
            losses += self.loss.forward(self.forward(some), theirs)
            if last:
                self.meter.start(losses, targets, total, trouble=bool(self.trouble or self.complaints))
            self.backward(self.loss.backward(fabric.loss_scale / max(1, total)), last=last)
        self.hook("end_backward")
        self.rules.end_backward([each.use for each in fabric.delayed])
        loss = self.meter.read()
        fabric.log.end(fabric.now())
        self.check(loss)
        self.done, self.first = self.done + 1, False
        self.times = times_of(fabric.log.last, fabric.seconds)
        return loss, self.times

    def parts(self, x: Array, targets: Array) -> list[tuple[Array, Array]]:
        """Split a batch into ``accumulate`` parts, x and targets along their first axis, which has the examples.

        Without a split, targets may have any shape, such as (boxes, 5) or (n * context,).
        """
        if self.accumulate == 1:
            return [(x, targets)]
        if x.shape[:1] != targets.shape[:1]:
            advice = "give targets an entry for each example, or take accumulate=1"
            raise ValueError(f"targets of shape {targets.shape} cannot be split like x, of shape {x.shape}: {advice}")
        spans = [slice(*chunk_bounds(len(x), self.accumulate, part)) for part in range(self.accumulate)]
        return [(x[span], targets[span]) for span in spans]

    def forward(self, x: Array) -> Array:
        for number, step in enumerate(self.uses):
            exchange = self.start_exchange(number, x, back=False) if step.exchanging else None
            self.hook("before_forward", number)
            self.rules.before_layer(number)
            x = x if exchange is None else self.received(number, exchange)
            begin = self.fabric.now()
            x = step.forward(x, inspect=self.first)
            self.fabric.log.did("forward", number, begin, self.fabric.now())
            self.hook("after_forward", number)
        return x

    def backward(self, dy: Array, *, last: bool) -> None:
        """Let every layer write its gradients; the schedule hears of the last part only, and delays nothing before."""
        self.written, self.next = set[int](), len(self.uses) - 1
        for number in reversed(range(len(self.uses))):
            step = self.uses[number]
            exchange = self.start_exchange(number, dy, back=True) if step.exchanging else None
            if last:
                self.hook("before_backward", number)
            dy = dy if exchange is None else self.received(number, exchange)
            step.before_backward(dy, inspect=self.debug or self.first)
            late = last and step.split and self.schedule.delays_weights(number)
            begin = self.fabric.now()
            dy = step.backward(dy, late=late)
            self.fabric.log.did("backward", number, begin, self.fabric.now())
            if late:
                self.fabric.delayed.append(Delayed(number, partial(self.write_weights, number)))
            else:
                self.hand_on(number, last=last)

    def start_exchange(self, number: int, given: Array, *, back: bool) -> Handle:
        act, key = self.uses[number].exchange(given, back=back), (EXCHANGE, number)
        label = f"exchange of layer {number}"
        return self.fabric.submit(key, label, lambda turn: [Step(*key, label, act)])

    def received(self, number: int, exchange: Handle) -> Array:
        """Wait for an exchange; what the layer goes on with."""
        self.fabric.wait_for(exchange)
        return self.uses[number].received

    def write_weights(self, number: int) -> None:
        """The delayed half of a backward pass; a hook of the schedule asks for it."""
        point, begin = self.rules.point, self.fabric.now()
        self.uses[number].backward_weights()
        self.fabric.log.did("weights", number, begin, self.fabric.now())
        self.hand_on(number, last=True)
        self.rules.point = point

    def hand_on(self, number: int, *, last: bool) -> None:
        """The gradients of a layer are there: hand on all that are, up to the first layer that has delayed its own."""
        self.uses[number].check_written()
        self.written.add(number)
        while self.next in self.written:
            use, self.next = self.next, self.next - 1
            self.uses[use].after_backward(last=last)
            if last:
                self.rules.wrote(use)
                self.hook("after_backward", use)

    def hook(self, name: str, *use: int) -> None:
        """Call a hook of the schedule; the book of rules knows which one runs."""
        self.rules.point = name, use
        getattr(self.schedule, name)(*use)

    def flush(self) -> None:
        self.fabric.rules = self.rules
        self.hook("flush")
        self.rules.flushed()
        for handle in self.fabric.late.values():  # used in later iterations, not now; other messages may travel then
            self.fabric.block(handle)

    def finish(self) -> None:
        """Flush without the other ranks; CollectiveError if these must start something for it."""
        if not self.rules.all_started:
            what = "starts some collectives only when parameters are needed, on all ranks"
            raise CollectiveError(f"schedule {self.rules.name!r} {what}: call session.flush() on all ranks before")
        self.flush()

    def check(self, loss: float = 0.0, *, over: bool = False) -> None:
        """Raise as ``iteration`` if not all went well so far: all ranks see that alike, so they raise together.

        If ranks update by their own gradients, only one of them may be in ``trouble``. A rank must not ask the others
        before they know that they are asked: from the last loss, or because all look at the parameters (``over``).
        """
        found = self.fabric.complaints()[:1]
        wrong = [text for text in (self.meter.complaint(),) if text] + found * self.fabric.common
        if not math.isfinite(loss):
            wrong.append(f"the loss is {loss} in iteration {self.done}: try a lower learning rate (--lr)")
        self.trouble = self.trouble or "".join(found)
        ask = not self.fabric.common and (over or bool(wrong) or self.meter.trouble)
        if ask or wrong or (self.meter.trouble and not over) or self.first or self.debug:
            self.flush()
            try:
                self.fabric.agree(f"iteration {self.done}", self.complain)
            except AgreedError as error:
                raise (TrainingError(str(error)) if ask else error) from None
        if wrong:
            raise TrainingError("; ".join(wrong))

    @property
    def complaints(self) -> Sequence[str]:  # faults of this rank's layers
        return [complaint for step in self.uses[:1] for complaint in step.complaints]

    def complain(self) -> dict[str, Any]:
        said = [*self.complaints, *[self.trouble] * (not self.fabric.common and bool(self.trouble))]
        if said:
            raise ValueError("; ".join(list(dict.fromkeys(said))[:3]))
        return self.fabric.facts() if self.debug else {}
