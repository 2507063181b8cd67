"""Any ``torch.nn.Module``, with branches: PyTorch runs and differentiates it as a whole, and hooks say how far it is.

    forward   stem starts | block starts | head starts      a use begins where parameters are needed first
                0 begins      1 begins       2 begins
    backward      ... | 1 is there | 2 is there | 0 ...     in whatever order autograd comes to them

A **use** begins at a start of a module in the forward pass, from which on parameters are needed. A module needs its
own parameters when it starts. One pass, whose results are thrown away, is watched to find the order, and which
operation takes which parameter: a parameter that another module takes earlier is needed there. A parameter that the
output does not depend on belongs to the first use. Its zero gradient is sure only when autograd has ended; in the first
use, whose gradients come last, it keeps no other gradient waiting.

Parameters are views into the line. A gradient is copied into the line when autograd has all of it, in one pass, and the
line's memory is ``tensor.grad`` from then on; when a batch is accumulated, autograd itself adds to it there.

If ``Between`` has found that this rank cannot go on, the rank takes part without its model, and the sum of the losses
tells the others: so all ranks end with one error.
"""

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dear_mpi.adapters.torch_between import Between
from dear_mpi.adapters.torch_tensors import TorchParameter, array_of, check_module, leaves_of, tensor_of
from dear_mpi.kernels.array import Array
from dear_mpi.training.trainer import Trainer

OUTSIDE = (
    "backward() was called outside of session.step, so other ranks would not get these gradients: call session.step(x, "
    "targets) instead, torch.autograd.grad() for gradients that train nothing, or end the session before"
)


@dataclass(eq=False)
class TorchUse:
    """A part of a forward pass, which a session takes for a layer: the parameters that are needed from its start on."""

    trained: list[TorchParameter]
    frozen: tuple[TorchParameter, ...] = ()  # all of a module are with its first use

    @property
    def parameters(self) -> list[TorchParameter]:
        return [*self.trained, *self.frozen]


class TorchModule:
    """A module, as a ``Model`` of a ``Trainer``, which hears how far its passes are.

    Its ``uses`` are in the order of the forward pass.

    Args:
        example: an input, alike on all ranks; it goes through the module once, with no other trace.

    Raises:
        ValueError: the module cannot be trained, or does not take the example.
    """

    sums = True

    def __init__(self, module: Any, example: Array) -> None:
        check_module(module)
        self.module = module
        self.parameters = [TorchParameter(module, name) for name, _ in module.named_parameters()]
        watch = Watch(module)
        watch.run(tensor_of(example.copy()))  # a module may change what it is given
        needed = {each: watch.needed.get(id(each.tensor), 0) for each in self.parameters if each.trained}
        starts = sorted(set(needed.values()))
        self.uses = [TorchUse([each for each in needed if needed[each] == start]) for start in starts]
        self.uses[0].frozen = tuple(each for each in self.parameters if not each.trained)
        self.begins = watch.begins(starts, self.uses)
        self.between = Between(module, self.parameters)
        self.ahead: Trainer | None = None  # while a forward pass runs
        self.back: Trainer | None = None  # while a backward pass runs

    @property
    def faults(self) -> list[str]:
        return self.between.faults

    def attach(self, stack: ExitStack) -> None:
        """Set the hooks, until the stack ends. They do nothing while neither ``forward`` nor ``backward`` runs."""
        for module in {module for module, _ in self.begins}:
            # In front of hooks that are there: they may need parameters (weight_norm).
            stack.enter_context(module.register_forward_pre_hook(self.started, prepend=True))
        for number, use in enumerate(self.uses):
            for parameter in use.trained:
                call = partial(self.accumulated, number, parameter)
                stack.enter_context(parameter.tensor.register_post_accumulate_grad_hook(call))

    def forward(self, x: Array, trainer: Trainer) -> Any:
        """The output or, if this rank cannot go on, None; ValueError if the output is not one tensor."""
        self.between.look()
        if self.faults:
            self.y = None
            return None
        self.ahead, self.calls = trainer, Counter[Any]()
        try:
            with torch.enable_grad():
                self.y = one_tensor(self.module, self.module(tensor_of(x)))
        finally:
            self.ahead = None
        return array_of(self.y)

    def __deepcopy__(self, memo: Any) -> "TorchModule":
        """Return itself: in a copy of the module these hooks do nothing."""
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a module cannot be pickled during a session: save its state_dict(), or end the session before")

    def started(self, module: Any, _: Any) -> None:
        if self.ahead is not None:
            self.calls[module] += 1
            use = self.begins.get((module, self.calls[module]))
            if use is not None:
                self.ahead.before_forward(use)

    def backward(self, dy: Array, trainer: Trainer) -> None:
        self.missing = [set(use.trained) for use in self.uses]
        self.back, self.y, y = trainer, None, self.y
        trainer.before_backward(len(self.uses) - 1)
        for use in self.uses if trainer.part == 0 else ():
            for parameter in use.trained:
                parameter.tensor.grad = None
        try:
            if y is not None and y.requires_grad:
                y.backward(tensor_of(dy))
        finally:
            self.back = None
        for number, use in reversed([*enumerate(self.uses)]):
            for parameter in use.trained:
                if parameter.tensor.grad is None:
                    parameter.gradient.zero_()
                    parameter.hold_gradient()
            if self.missing[number]:
                trainer.wrote(number)

    def accumulated(self, use: int, parameter: TorchParameter, tensor: Any) -> None:
        """Autograd has all of a gradient; ValueError if it comes a second time, or outside of ``backward``."""
        if self.back is None:
            self.faults.append(OUTSIDE)  # this gradient is already added to one that was sent
            raise ValueError(OUTSIDE)
        if tensor.grad is None:  # a function returned None for it: as if the output did not depend on it
            return
        if parameter not in self.missing[use]:
            advice = "checkpoints must be of the kind use_reentrant=False"
            raise ValueError(f"parameter {parameter.name} has a gradient twice in one backward pass: {advice}")
        if tensor.grad is not parameter.gradient:
            parameter.gradient.copy_(tensor.grad.to_dense())
        parameter.hold_gradient()
        self.missing[use].remove(parameter)
        if not self.missing[use]:
            self.back.wrote(use)


class Watch(TorchDispatchMode):  # type: ignore[misc]
    """Sees one forward pass: which module starts when, and after which start each parameter is needed first."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module
        self.known = {id(each) for each in module.parameters()}
        self.calls = Counter[Any]()
        self.starts: list[tuple[Any, int]] = []  # of modules, each with how often it had started then
        self.needed: dict[int, int] = {}  # a start's number, by the identity of a parameter that the output depends on

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.need_now(tree_leaves((args, kwargs)))
        return function(*args, **(kwargs or {}))

    def run(self, example: Any) -> None:
        """One pass, with gradients as in training; it changes copies of buffers such as running means, and after it
        the generator of random numbers is as before."""
        buffers = {name: buffer.detach().clone() for name, buffer in self.module.named_buffers()}
        with ExitStack() as stack:
            for each in self.module.modules():
                stack.enter_context(each.register_forward_pre_hook(self.started, prepend=True))
            with torch.random.fork_rng(devices=[]), torch.enable_grad(), self:
                y = functional_call(self.module, buffers, (example,))
        reached = {id(leaf) for leaf in leaves_of(one_tensor(self.module, y))}
        self.needed = {each: start for each, start in self.needed.items() if each in reached}

    def started(self, module: Any, _: Any) -> None:
        self.calls[module] += 1
        self.starts.append((module, self.calls[module]))
        self.need_now(module.parameters(recurse=False))

    def need_now(self, values: Iterable[Any]) -> None:
        """The parameters among these values are needed from the last start on, if not from an earlier one."""
        for each in values:
            if id(each) in self.known:
                self.needed.setdefault(id(each), len(self.starts) - 1)

    def begins(self, starts: list[int], uses: list[TorchUse]) -> dict[tuple[Any, int], int]:
        """Which use begins at which start of which module.

        A module that holds a parameter needs it when it runs, also where it did not run, or ran later, in this pass.
        """
        found = {self.starts[start]: use for use, start in enumerate(starts)}
        use_of = {parameter.tensor: number for number, use in enumerate(uses) for parameter in use.trained}
        for module in self.module.modules():
            held = [use_of[each] for each in module.parameters(recurse=False) if each in use_of]
            if held:
                found[module, 1] = max(*held, found.get((module, 1), 0))
        return found


def one_tensor(module: Any, y: Any) -> Any:
    """What a module has returned, or a ValueError."""
    if not isinstance(y, torch.Tensor):
        advice = "wrap it in a module that returns the tensor which the loss takes"
        raise ValueError(f"module {type(module).__name__} must return one tensor, not {type(y).__name__}: {advice}")
    return y
