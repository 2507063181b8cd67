"""Translate the events of an iteration into hooks of a schedule, without MPI, derivatives or live arrays.

A gradient's path: a backward pass writes it into its bucket and calls ``gradients_ready``; the schedule's
``after_backward`` hands the bucket to the ``Fabric``, whose ``Engine`` runs the ``Plan`` of a collective.

Layer calls may run in any order, but hooks run in one order, equal on all ranks:

    forward    before a layer call begins, the hooks of all earlier ones are called.
    backward   the gradients of a layer call are handed on after all later calls' gradients.

No rank can deadlock: the dry run has shown that the schedule never waits forever in this order. Other gradients are
held back on their rank, until the backward pass ends; then they are zero (as in PyTorch's DDP: Li et al., VLDB 2020,
section 3.2.3).
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from operator import add
from typing import TYPE_CHECKING, Any

from dear_mpi.collectives.program.errors import AgreedError, CollectiveError
from dear_mpi.collectives.program.program import chunk_bounds
from dear_mpi.kernels.array import Array
from dear_mpi.models.layer import Loss
from dear_mpi.training.events import EXCHANGE, Times, times_of
from dear_mpi.training.fabric.fabric import LOSS, SUMS, Delayed
from dear_mpi.training.fabric.rules import Rules
from dear_mpi.training.routes.invariant import Leaf, fold
from dear_mpi.training.schedules import Schedule

if TYPE_CHECKING:
    from dear_mpi.training.fabric.live import LiveFabric

OTHERS = 7  # numbers before the losses of micro-batches
BASE = 1 << 20  # totals are compared in two digits: small squares are exact
NO_MARKS: Mapping[int, Any] = {}
GIVE = "if ranks have unequal parts, or some targets do not count, give total=, the same on all ranks"


class TrainingError(AgreedError):
    """Training cannot continue."""


class Trainer:
    """Drive iterations of a model; trainers with several schedules may take turns on it.

    The events of an iteration; a pass comes ``accumulate`` times, for each of the ``leaves`` (``invariant``):

        begin_iteration | begin_pass | before_forward(0), after_forward, before_forward(1) ... end_forward
                                     | begin_backward, before_backward(n), gradients_ready(n) ... | end_backward
        end_iteration

    ``forward`` and ``backward`` run our layers; ``torch/run.py`` calls the events from PyTorch's hooks instead. In the
    first iteration, and always with ``debug``, gradients are NaN before layers write them. ``meter`` sums the losses of
    all ranks.
    """

    def __init__(
        self,
        calls: Sequence[Any],
        loss: Loss,
        meter: Any,
        schedule: Schedule,
        rules: Rules,
        *,
        accumulate: int = 1,
        leaves: Sequence[Leaf] = (),
        debug: bool = False,
    ) -> None:
        self.calls, self.loss, self.meter, self.schedule = tuple(calls), loss, meter, schedule
        self.fabric, self.rules = meter.fabric, rules
        self.accumulate, self.leaves, self.debug = accumulate, leaves, debug
        self.passes = accumulate * max(1, len(leaves))
        self.done, self.first = 0, True  # iterations, including those before a checkpoint
        self.examples = 0  # of this rank, in the last iteration
        self.trouble = ""  # with this rank's gradients

    def iteration(self, x: Array, targets: Array, total: int) -> tuple[float, Times]:
        """Run one pass forward and backward, or ``passes`` of them with a part of the batch each.

        Returns the mean loss over the whole batch, and the times.

        Args:
            x, targets: this rank's part of the batch.
            total: targets that count in the whole batch: the loss averages once, so ranks may have unequal parts.

        Raises:
            TrainingError: the loss or a gradient is infinite or not a number, or ``total`` is wrong.
            ArgumentError: a layer of some rank did not write its gradients to their places.
            ValueError: this rank's targets cannot be split.
        """
        parts = self.parts(x, targets)
        self.begin_iteration()
        self.examples = len(x)
        losses = list[Array | float]()
        for some, theirs in parts:
            self.begin_pass()
            y = self.forward(some)
            self.end_forward()
            losses.append(self.loss.forward(y, theirs))
            if self.last_part:
                self.meter.start(losses, targets, total, trouble=bool(self.trouble or self.complaints))
            dy = self.loss.backward(self.fabric.loss_scale / max(1, total))
            self.begin_backward()
            self.backward(dy)
        self.end_backward()
        return self.end_iteration()

    def parts(self, x: Array, targets: Array) -> list[tuple[Array, Array]]:
        if self.passes == 1:
            return [(x, targets)]
        if x.shape[:1] != targets.shape[:1]:
            advice = "give targets an entry for each example, or take accumulate=1"
            raise ValueError(f"targets of shape {targets.shape} cannot be split like x, of shape {x.shape}: {advice}")
        if self.leaves and len(x) % self.passes:
            what = f"{len(self.leaves)} micro-batches in {self.accumulate} parts each (invariant, accumulate)"
            raise ValueError(f"this rank's {len(x)} examples cannot be split into {what}")
        spans = [slice(*chunk_bounds(len(x), self.passes, part)) for part in range(self.passes)]
        return [(x[span], targets[span]) for span in spans]

    def forward(self, x: Array) -> Array:
        for number, call in enumerate(self.calls):
            x = self.entered(number, x, back=False)
            self.begin_s = self.fabric.now()
            x = call.forward(x, inspect=self.first)
            self.after_forward()
        return x

    def backward(self, dy: Array) -> None:
        """Run the layers from last to first. A schedule may delay the second half of a backward pass:

        layer       | 3: dx | 2: dx | 3: dw | 1: dx, dw | 2: dw | 0 ...
        the schedule hears that gradients are there:   3           2, 1
        """
        for number, call in reversed([*enumerate(self.calls)]):
            dy = self.entered(number, dy, back=True)
            call.before_backward(dy, inspect=self.debug or self.first)
            late = self.last_part and call.split and self.schedule.delays_weights(number)
            self.begin_s = self.fabric.now()
            dy = call.backward(dy, late=late)
            self.ran("backward", number)
            if late:
                self.fabric.delayed.append(Delayed(number, partial(self.write_weights, number)))
            else:
                self.gradients_ready(number)

    def entered(self, number: int, given: Any, *, back: bool) -> Any:
        """Call the hook of a pass, while the layer exchanges its input, if it does; return the input."""
        call, enter = self.calls[number], self.before_backward if back else self.before_forward
        if not call.exchanging:
            enter(number)
            return given
        act = call.exchange(given, back=back)
        exchange = self.fabric.launch_act((EXCHANGE, number), act, f"exchange of layer {number}")
        enter(number)
        self.fabric.wait_for(exchange)
        return call.received

    def write_weights(self, number: int) -> None:
        """Run the delayed half of a backward pass."""
        point, self.begin_s = self.rules.point, self.fabric.now()
        self.calls[number].backward_weights()
        self.ran("weights", number)
        self.gradients_ready(number)
        self.rules.point = point

    def begin_iteration(self) -> None:
        fabric = self.fabric
        fabric.rules, self.part = self.rules, -1
        self.rules.follow(self.schedule.order)
        fabric.follow(self.rules.followed)
        fabric.log.begin(self.done, fabric.now())

    def begin_pass(self) -> None:
        self.part, self.running, self.over = self.part + 1, -1, True

    @property
    def first_part(self) -> bool:
        """Return whether forward hooks are called: ranks may have different numbers of micro-batches."""
        return self.part == 0 or not self.leaves

    @property
    def last_part(self) -> bool:
        return self.part == self.passes - 1

    def before_forward(self, call: int, began: Mapping[int, Any] = NO_MARKS) -> None:
        """Call the hooks of a layer call that begins, after missing ones of earlier calls, which ``began`` at marks."""
        while self.running < call:
            self.after_forward(began.get(self.running + 1))
            self.running, self.over = self.running + 1, False
            if self.first_part:
                self.hook("before_forward", self.running)
            self.rules.before_layer(self.running)
            self.begin_s = began.get(self.running) or self.fabric.now()

    def after_forward(self, end: Any = None) -> None:
        """End the open layer call, if any."""
        if not self.over:
            self.ran("forward", self.running, end)
            self.over = True
            if self.first_part:
                self.hook("after_forward", self.running)

    def end_forward(self) -> None:
        """Call the hooks of skipped layer calls."""
        self.before_forward(len(self.calls) - 1)
        self.after_forward()

    def begin_backward(self) -> None:
        self.running, self.next, self.written = len(self.calls), len(self.calls) - 1, set[int]()

    def before_backward(self, call: int) -> None:
        while self.running > max(call, 0):
            self.running -= 1
            if self.last_part:
                self.hook("before_backward", self.running)
        self.begin_s = self.fabric.now()

    def gradients_ready(self, call: int) -> None:
        """Hand on ready gradients, up to the first call that lacks them, to the schedule in the last part."""
        self.calls[call].check_written()
        self.written.add(call)
        while self.next in self.written:
            ready, self.next = self.next, self.next - 1
            self.before_backward(ready)  # if it ran before a later layer call
            leaf, part = divmod(self.part, self.accumulate)
            self.calls[ready].after_backward(last=part == self.accumulate - 1)
            if self.leaves and part == self.accumulate - 1:
                self.calls[ready].fold(self.leaves[leaf])
            if self.last_part:
                self.rules.wrote(ready)
                self.hook("after_backward", ready)

    def wrote(self, call: int, end: Any = None) -> None:
        """Note that a layer call ran backward, in the model's order, perhaps up to an earlier mark."""
        self.ran("backward", call, end)
        self.gradients_ready(call)
        self.before_backward(self.next)
        self.begin_s = end or self.begin_s

    def end_backward(self) -> None:
        self.hook("end_backward")
        self.rules.end_backward([each.call for each in self.fabric.delayed])

    def end_iteration(self) -> tuple[float, Times]:
        loss = self.meter.read()
        self.fabric.log.end(self.fabric.now())
        self.check(loss)
        self.done, self.first = self.done + 1, False
        self.times = times_of(self.fabric.log.last, self.fabric.seconds)
        return loss, self.times

    def ran(self, what: str, call: int, end: Any = None) -> None:
        self.fabric.log.did(what, call, self.begin_s, end or self.fabric.now())

    def hook(self, name: str, *call: int) -> None:
        self.rules.point = name, call  # for errors
        getattr(self.schedule, name)(*call)

    def flush(self) -> None:
        self.fabric.rules = self.rules
        self.hook("flush")
        self.rules.flushed()
        for handle in self.fabric.late.values():  # other messages may travel then
            self.fabric.block(handle)

    def finish(self) -> None:
        """Flush without the other ranks. Raises CollectiveError if they must start something."""
        if not self.rules.all_started:
            what = "starts some collectives only when parameters are needed, on all ranks"
            raise CollectiveError(f"schedule {self.rules.name!r} {what}: call session.flush() on all ranks before")
        self.flush()

    def check(self, loss: float = 0.0, *, over: bool = False) -> None:
        """Raise as ``iteration`` if anything went wrong so far, on all ranks together.

        If ranks update by their own gradients, one of them may be in ``trouble``. All ask once all know: from the last
        loss, or because all look at the parameters (``over``).
        """
        found = self.fabric.complaints()[:1]  # on all ranks alike if ``common``, and else of this rank
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
        return [complaint for call in self.calls[:1] for complaint in call.complaints]

    def complain(self) -> dict[str, Any]:
        if said := [*self.complaints, *filter(None, [self.trouble] * (not self.fabric.common))]:
            raise ValueError("; ".join(list(dict.fromkeys(said))[:3]))
        return self.fabric.facts() if self.debug else {}


class LossMeter:
    """Sum losses and target counts over ranks, hidden under the backward pass. Constructing is collective.

    The losses of ``micro_batches`` (``own``: this rank's) travel one by one, and are summed along a tree.
    """

    def __init__(self, fabric: "LiveFabric", own: range | None = None, micro_batches: int = 0) -> None:
        self.fabric, self.own = fabric, own
        self.value, self.plan = fabric.sums(OTHERS + micro_batches, SUMS[LOSS])

    def start(self, losses: Sequence[Array | float], targets: Array, total: int, *, trouble: bool) -> None:
        """Start the sums over ranks: losses of all passes over ``total``, numbers of targets, ranks in trouble."""
        self.value[0] = sum(losses, 0.0)
        self.value[OTHERS:] = 0
        for number, micro_batch in enumerate(self.own or ()):
            parts = len(losses) // len(self.own or ())
            self.value[OTHERS + micro_batch] = sum(losses[number * parts : (number + 1) * parts], 0.0)
        self.value *= 1 / max(1, total)
        high, low = divmod(total, BASE)
        for place, number in enumerate((targets.size, high, high**2, low, low**2, trouble), start=1):
            self.value[place] = number
        self.handle = self.fabric.launch_act(LOSS, self.plan)

    def read(self) -> float:
        self.fabric.wait_for(self.handle)
        if self.own is not None:
            each = enumerate(self.value[OTHERS:].tolist())
            self.value[0] = fold(((range(at, at + 1), loss) for at, loss in each), add)
        return float(self.value[0])

    @property
    def trouble(self) -> bool:
        return bool(self.value[6] > 0)

    def complaint(self) -> str | None:
        """Return the error, equal on all ranks."""
        targets, high, high_squares, low, low_squares = map(round, self.value[1:6].tolist())
        size, totals = self.fabric.world.size, high * BASE + low
        if (high**2, low**2) != (size * high_squares, size * low_squares):  # only if all are equal
            return f"ranks expect different numbers of targets in the whole batch, {totals / size:g} on average: {GIVE}"
        if totals > targets * size:
            return f"total must be at most {targets}, the targets of all ranks, not {totals // size}: {GIVE}"
        if totals == 0 != self.value[0]:
            return f"total must not be 0, because the loss is not: {float(self.value[0]):g}"
        return None
