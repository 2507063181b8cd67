"""Let layers write their weight gradients while the backward pass waits for the network.

    dear     compute  | dx 3, dw 3 |::::::::| dx 2, dw 2 |::::::::| dx 1 ...        : compute waits
             network               | A 2    |            | A 1    |                 A: what a layer exchanges

    lancet   compute  | dx 3 | dw 3   | dx 2 | dw 2   | dx 1 ...
             network         | A 2    | RS 3 | A 1    | RS 2 ...

The next layer waits for dx, a layer's input gradient, not for the weights' dw: a layer may write dw while a mixture of
experts exchanges tokens. Layer inputs live longer.

Measured times decide once which dw fills which exchange: the oldest first, as many as fit; others are not delayed. The
virtual fabric compares this plan with others, including ``dear``, which wins without exchanges.

Source: Jiang et al., Lancet, MLSys 2024, arXiv 2404.19429, without its split of forward passes along the batch.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from dear_mpi.training.schedules import Dear, Fsdp, Nominal, Schedule

# By layer call: the one before which its weights are written; itself if not delayed; -1: at the end.
Plan: TypeAlias = tuple[int, ...]


def base(what: str, text: str) -> str:
    if text not in BASES:
        raise ValueError(f"{what} must be {' or '.join(BASES)}, not {text!r}")
    return text


class LateWeights(Schedule):
    """Delay weight gradients on top of another schedule: inherit from it first, as in ``Lancet``."""

    foresees = True
    distances: ClassVar[Sequence[int]] = (0, 1)  # tried delays of all weights, in layer calls
    plan: Plan | None = None  # until then, all wait for the next layer's exchange to begin

    def orders(self, nominal: Nominal) -> Sequence[Plan]:
        calls = range(len(nominal.backward_s))
        return [*(tuple(max(-1, call - far) for call in calls) for far in self.distances), fitted(nominal)]

    def take(self, decided: Plan) -> None:
        self.plan = decided

    def due(self, call: int) -> int:
        return call - 1 if self.plan is None else self.plan[call]

    def delays_weights(self, call: int) -> bool:
        return self.due(call) < call

    def before_backward(self, call: int) -> None:
        self.write_due(call)
        super().before_backward(call)

    def end_backward(self) -> None:
        self.write_due(-1)
        super().end_backward()

    def write_due(self, call: int) -> None:
        """Let layers write the gradients due before this layer call runs backward."""
        while self.fabric.delayed and self.due(self.fabric.delayed[0].call) >= call:
            self.fabric.write_weights()


class Lancet(LateWeights, Dear):
    """Run DeAR, and let layers write weight gradients while others exchange."""

    options: ClassVar[Mapping[str, Callable[[str, str], Any]]] = {"base": base}

    @classmethod
    def specialised(cls, **options: Any) -> type[Schedule]:
        return BASES[options["base"]]


class LancetFsdp(LateWeights, Fsdp):
    """Run FSDP; layers write weight gradients also while others wait for their second all-gather."""

    distances = (0, 1, 2, 4, 8, 16, 32, 64)

    def before_backward(self, call: int) -> None:
        for bucket in self.fabric.buckets.needed_by(call)[-1:]:  # starts before any layer writes
            self.gather_again(bucket)
        super().before_backward(call)


BASES: dict[str, type[Schedule]] = {"dear": Lancet, "fsdp": LancetFsdp}


def fitted(nominal: Nominal) -> Plan:
    """Fill each exchange with the oldest waiting weights; the last of several only if half of it fits.

    >>> tens = dict.fromkeys(range(4), 10.0)
    >>> fitted(Nominal([1.0] * 4, [20.0] * 4, lambda collective, bucket: 0.0, weights_s=tens, exchange_s={0: 15.0}))
    (0, 0, 0, 3)
    """
    plan, waiting = list(range(len(nominal.backward_s))), deque[int]()
    room_s = sum(nominal.exchange_s.values())  # of this and later exchanges
    for call in reversed(plan):
        exchange_s = left_s = nominal.exchange_s.get(call, 0.0)
        while waiting and left_s and (left_s == exchange_s or nominal.weights_s[waiting[0]] <= 2 * left_s):
            plan[waiting[0]] = call
            left_s = max(0.0, left_s - nominal.weights_s[waiting.popleft()])
        room_s -= exchange_s
        if call in nominal.weights_s:
            waiting.append(call)
        while waiting and sum(nominal.weights_s[each] for each in list(waiting)[1:]) >= room_s:
            waiting.popleft()
    return tuple(plan)
