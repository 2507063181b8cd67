"""Lancet: where the backward pass waits for the wire, layers that have run write their weights' gradients.

    dear     compute  | dx 3, dw 3 |::::::::| dx 2, dw 2 |::::::::| dx 1 ...        : compute waits
             network               | A 2    |            | A 1    |                 A: what a layer exchanges

    lancet   compute  | dx 3 | dw 3   | dx 2 | dw 2   | dx 1 ...
             network         | A 2    | RS 3 | A 1    | RS 2 ...

The gradient of a layer's input, dx, is what the next layer waits for. The gradient of its weights, dw, is not needed
before its reduce-scatter: it may be written while a mixture of experts exchanges tokens, as it does before each pass of
a layer. No byte more is sent; inputs of layers live longer.

Which dw fills which exchange is decided once, from measured times: the oldest first, as many as there is room for. A dw
for which no later exchange has room does not wait. That plan is tried on the virtual fabric beside others, among them
the order of ``dear``, and the fastest is taken. For data parallelism alone, where no layer exchanges, that is ``dear``
itself: a late dw only delays BackPipe.

Source: Jiang et al., Lancet, MLSys 2024, arXiv 2404.19429. There forward passes are cut along the batch, too, to hide
their exchanges; here they are not.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

from dear_mpi.training.fabric.costs import Nominal
from dear_mpi.training.schedules.dear import Dear
from dear_mpi.training.schedules.fsdp import Fsdp
from dear_mpi.training.schedules.schedule import Options, Schedule

# Of each use: itself if its weights are not delayed, else the use before whose pass they are written; -1 for the end.
Plan: TypeAlias = tuple[int, ...]


def base(what: str, text: str) -> str:
    if text not in BASES:
        raise ValueError(f"{what} must be {' or '.join(BASES)}, not {text!r}")
    return text


class LateWeights(Schedule):
    """Delays weights' gradients, whatever else a schedule does: to be named before it, as in ``Lancet``."""

    foresees = True
    distances: ClassVar[Sequence[int]] = (0, 1)  # by how many uses all weights may be late, in the plans that are tried
    plan: Plan | None = None  # until it is decided, all that can wait do so, until the next layer's exchange has begun

    def orders(self, nominal: Nominal) -> Sequence[Plan]:
        uses = range(len(nominal.backward_s))
        return [*(tuple(max(-1, use - far) for use in uses) for far in self.distances), fitted(nominal)]

    def take(self, decided: Plan) -> None:
        self.plan = decided

    def due(self, use: int) -> int:
        return use - 1 if self.plan is None else self.plan[use]

    def delays_weights(self, use: int) -> bool:
        return self.due(use) < use

    def before_backward(self, use: int) -> None:
        self.write_due(use)
        super().before_backward(use)

    def end_backward(self) -> None:
        self.write_due(-1)
        super().end_backward()

    def write_due(self, use: int) -> None:
        """Let layers write what is due before this use runs backward."""
        while self.fabric.delayed and self.due(self.fabric.delayed[0].use) >= use:
            self.fabric.write_weights()


class Lancet(LateWeights, Dear):
    """DeAR; in its backward pass, layers write their weights' gradients while others exchange."""

    options: ClassVar[Options] = {"base": base}

    @classmethod
    def specialised(cls, **options: Any) -> type[Schedule]:
        return BASES[options["base"]]


class LancetFsdp(LateWeights, Fsdp):
    """FSDP; layers write their weights' gradients while others wait for their second all-gather, too."""

    distances = (0, 1, 2, 4, 8, 16, 32, 64)

    def before_backward(self, use: int) -> None:
        for bucket in self.fabric.buckets.needed_by(use)[-1:]:  # under way before anything is written
            self.gather_again(bucket.index)
            self.gather_again(bucket.index - 1)
        super().before_backward(use)


BASES: dict[str, type[Schedule]] = {"dear": Lancet, "fsdp": LancetFsdp}


def fitted(nominal: Nominal) -> Plan:
    """Each exchange gets the oldest weights that wait, until it is filled: the last of several only if half of it fits.

    >>> tens = dict.fromkeys(range(4), 10.0)
    >>> fitted(Nominal([1.0] * 4, [20.0] * 4, lambda collective, bucket: 0.0, weights_s=tens, exchange_s={0: 15.0}))
    (0, 0, 0, 3)
    """
    plan, waiting = list(range(len(nominal.backward_s))), deque[int]()
    room_s = sum(nominal.exchange_s.values())  # of this exchange and later ones
    for use in reversed(plan):
        exchange_s = left_s = nominal.exchange_s.get(use, 0.0)
        while waiting and left_s and (left_s == exchange_s or nominal.weights_s[waiting[0]] <= 2 * left_s):
            plan[waiting[0]] = use
            left_s = max(0.0, left_s - nominal.weights_s[waiting.popleft()])
        room_s -= exchange_s
        if use in nominal.weights_s:
            waiting.append(use)
        while waiting and sum(nominal.weights_s[each] for each in list(waiting)[1:]) >= room_s:
            waiting.popleft()
    return tuple(plan)
