"""A trainer that a model calls: for frameworks that run and differentiate a model as a whole.

The model says when a use is about to begin, and when its gradients are written. With branches, and where a pass depends
on the data, the order of uses may differ between ranks, and between iterations. The schedule never sees that: its hooks
are called in the order of ``Trainer``, because a use waits for its predecessors:

    forward    a use that is about to begin lets the hooks of all uses before it be called first
    backward   the gradients of a use are handed on when the gradients of all later uses have been

Why no rank can deadlock: hooks are called in the same order on all ranks, and the rehearsal has shown that the schedule
does not wait for ever in them, so all ranks start the same collectives in the same order. No rank waits for another
rank's gradient before it goes on: a gradient that is not ready is held back on its own rank. It becomes ready there,
since autograd ends by itself, and a gradient that is missing then is zero. It costs little: autograd takes what was
done last first, so gradients are ready in the reverse order of the forward pass but for branches. (PyTorch's DDP holds
buckets back in the same way: Li et al., VLDB 2020, section 3.2.3.)

``before_backward(u)`` comes after ``after_backward(u + 1)``, when autograd may have begun with u.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from dear_mpi.kernels.array import Array
from dear_mpi.training.trainer import Trainer


class HookedModel(Protocol):
    """A model that runs as a whole, such as ``TorchModule``."""

    @property
    def faults(self) -> Sequence[str]:
        """Why it cannot go on, after ``forward``: then all ranks end with this iteration."""

    def forward(self, x: Array, begun: Callable[[int], None]) -> Any:
        """Its output; before a use needs its parameters, ``begun`` is called with it or a later one; it may wait.

        If it cannot go on: None.
        """

    def backward(self, dy: Any, wrote: Callable[[int], None], *, fresh: bool) -> None:
        """Write all gradients; ``wrote(use)`` is called once for each use, when its gradients are there.

        If not ``fresh``, they are added to the gradients of the last call. Without ``dy`` any gradients will do.
        """


class HookedTrainer(Trainer):
    """Runs iterations of a model with as many uses. It inspects no gradients: the model writes each one by itself."""

    def __init__(self, model: HookedModel, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.model, self.last = model, True

    @property
    def complaints(self) -> Sequence[str]:
        return self.model.faults[:1] or super().complaints

    def forward(self, x: Array) -> Any:
        self.running = -1
        y = self.model.forward(x, self.begin)
        self.begin(len(self.uses) - 1)  # what this pass has left out
        self.end()
        return y

    def begin(self, use: int) -> None:
        """Call the hooks before a use, and all hooks of earlier uses that have not been called."""
        while self.running < use:
            if self.running >= 0:
                self.end()
            self.running += 1
            self.hook("before_forward", self.running)
            self.rules.before_layer(self.running)
            self.mark = self.fabric.now()

    def end(self) -> None:
        """The use that runs is over."""
        self.fabric.log.did("forward", self.running, self.mark, self.fabric.now())
        self.hook("after_forward", self.running)

    def backward(self, dy: Array, *, last: bool) -> None:
        fresh, self.last = self.last, last
        self.running, self.written = len(self.uses), set[int]()
        self.descend()
        self.model.backward(dy, self.wrote, fresh=fresh)

    def wrote(self, use: int) -> None:
        """The gradients of a use are there: hand on all gradients that waited for them."""
        self.written.add(use)
        while self.running in self.written:
            self.fabric.log.did("backward", self.running, self.mark, self.fabric.now())
            if self.last:
                self.uses[self.running].check_written()
                self.uses[self.running].after_backward(last=True)
                self.rules.wrote(self.running)
                self.hook("after_backward", self.running)
            self.descend()

    def descend(self) -> None:
        """Go to the use before."""
        self.running -= 1
        if self.last and self.running >= 0:
            self.hook("before_backward", self.running)
        self.mark = self.fabric.now()
