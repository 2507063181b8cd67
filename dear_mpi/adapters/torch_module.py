"""Train any ``torch.nn.Module``, with branches: PyTorch runs and differentiates it, and hooks report progress.

    forward   stem starts | block starts | head starts      a use begins where parameters are needed first
                0 begins      1 begins       2 begins
    backward      ... | 1 is there | 2 is there | 0 ...     in autograd's order

A **layer call** begins when a module starts and needs parameters, at least its direct ones. One watched pass,
with discarded results, finds the order and each operation's parameters: a parameter that another module takes earlier
is needed there. A parameter without influence on the output belongs to the first use: its zero gradient is certain only
when autograd ends, and the first use's gradients come last.

Parameters are views into the flat buffer. A complete gradient is copied there once, and ``tensor.grad`` is the buffer's
memory from then on; for an accumulated batch, autograd adds to it there.

If ``Between`` finds that this rank cannot continue, the rank takes part without its model. The sum of the losses tells
the others, so all ranks end with one error.
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
class TorchCall:
    """A part of a forward pass, a layer for the session: the parameters that are needed from its start on."""

    trained: list[TorchParameter]
    frozen: tuple[TorchParameter, ...] = ()  # a module's frozen parameters are all in its first use

    @property
    def parameters(self) -> list[TorchParameter]:
        return [*self.trained, *self.frozen]


class TorchModule:
    """A module, as a ``Model`` of a ``Trainer``; its hooks report the progress of passes.

    Its ``uses`` are in the order of the forward pass.

    Args:
        example: an input, equal on all ranks; it goes through the module once, without other effects.

    Raises:
        ValueError: the module cannot be trained, or does not accept the example.
    """

    sums = True

    def __init__(self, module: Any, example: Array) -> None:
        check_module(module)
        self.module = module
        self.parameters = [TorchParameter(module, name) for name, _ in module.named_parameters()]
        watch = Watch(module)
        watch.run(tensor_of(example.copy()))  # a module may change its input
        needed = {each: watch.needed.get(id(each.tensor), 0) for each in self.parameters if each.trained}
        starts = sorted(set(needed.values()))
        self.uses = [TorchCall([each for each in needed if needed[each] == start]) for start in starts]
        self.uses[0].frozen = tuple(each for each in self.parameters if not each.trained)
        self.begins = watch.begins(starts, self.uses)
        self.between = Between(module, self.parameters)
        self.ahead: Trainer | None = None  # set during a forward pass
        self.back: Trainer | None = None  # set during a backward pass

    @property
    def faults(self) -> list[str]:
        return self.between.faults

    def attach(self, stack: ExitStack) -> None:
        """Set the hooks until the stack ends. They act only during ``forward`` and ``backward``."""
        for module in {module for module, _ in self.begins}:
            # Before existing hooks, which may need parameters (weight_norm).
            stack.enter_context(module.register_forward_pre_hook(self.started, prepend=True))
        for number, use in enumerate(self.uses):
            for parameter in use.trained:
                call = partial(self.accumulated, number, parameter)
                stack.enter_context(parameter.tensor.register_post_accumulate_grad_hook(call))

    def forward(self, x: Array, trainer: Trainer) -> Any:
        """Return the output, or None if this rank cannot continue.

        Raises:
            ValueError: the output is not one tensor.
        """
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
        """Handle a gradient that autograd has completed.

        Raises:
            ValueError: it comes twice, or outside of ``backward``.
        """
        if self.back is None:
            self.faults.append(OUTSIDE)  # it was added to a gradient that was already sent
            raise ValueError(OUTSIDE)
        if tensor.grad is None:  # a function returned None: the output does not depend on it
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
    """Watches one forward pass for modules' starts, and the start after which each parameter is first needed."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module
        self.known = {id(each) for each in module.parameters()}
        self.calls = Counter[Any]()
        self.starts: list[tuple[Any, int]] = []  # of modules, each with its count of earlier starts
        self.needed: dict[int, int] = {}  # a start's number, by the identity of a parameter with influence

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.need_now(tree_leaves((args, kwargs)))
        return function(*args, **(kwargs or {}))

    def run(self, example: Any) -> None:
        """Run one pass, with gradients as in training.

        It changes copies of buffers such as running means, and restores the random number generator.
        """
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
        """Record the parameters among these values as needed from the last start on, unless an earlier one needs
        them.
        """
        for each in values:
            if id(each) in self.known:
                self.needed.setdefault(id(each), len(self.starts) - 1)

    def begins(self, starts: list[int], uses: list[TorchCall]) -> dict[tuple[Any, int], int]:
        """Map starts of modules to the uses that begin there.

        A module needs its direct parameters when it runs, even if it ran later, or not at all, in this pass.
        """
        found = {self.starts[start]: use for use, start in enumerate(starts)}
        use_of = {parameter.tensor: number for number, use in enumerate(uses) for parameter in use.trained}
        for module in self.module.modules():
            held = [use_of[each] for each in module.parameters(recurse=False) if each in use_of]
            if held:
                found[module, 1] = max(*held, found.get((module, 1), 0))
        return found


def one_tensor(module: Any, y: Any) -> Any:
    """Return a module's output. Raises a ValueError unless it is one tensor."""
    if not isinstance(y, torch.Tensor):
        advice = "wrap it in a module that returns the tensor which the loss takes"
        raise ValueError(f"module {type(module).__name__} must return one tensor, not {type(y).__name__}: {advice}")
    return y
