"""Any ``torch.nn.Module``, with branches: PyTorch runs and differentiates it as a whole, and hooks say how far it is.

    forward   stem starts | block starts | head starts      a use begins where parameters are needed first
                0 begins      1 begins       2 begins
    backward      ... | 1 is there | 2 is there | 0 ...     in whatever order autograd comes to them

A **use** is a place of the forward pass: a start of a module, from which on parameters are needed. A module needs its
own parameters when it starts. One pass, whose results are thrown away, is watched to find the order, and which
operation takes which parameter: a parameter that another module takes earlier is needed there. A parameter that the
output does not depend on belongs to the first use. Its zero gradient is sure only when autograd has ended; in the first
use, whose gradients come last, it keeps no other gradient waiting.

Parameters are views into the line. A gradient is copied into the line when autograd has all of it, in one pass, and the
line's memory is ``tensor.grad`` from then on; further parts of a batch are added there by autograd itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dear_mpi.kernels.array import Array
from dear_mpi.models.adapters.torch_layers import TorchLayer, one_tensor
from dear_mpi.models.adapters.torch_parameter import (
    TorchParameter,
    array_of,
    check_module,
    check_trained,
    leaves_of,
    parameters_of,
    tensor_of,
)

Place = tuple[int, int]  # the identity of a module, and which of its starts in a pass


class TorchModule:
    """A module, and where it is.

    Args:
        example: an input, alike on all ranks; it goes through the module once, with no other trace.

    Attributes:
        layers: the uses, in the order of the forward pass: each a part of the module with the parameters that begin
            there.

    Raises:
        ValueError: the module cannot be trained, or does not take the example.
    """

    def __init__(self, module: Any, example: Array) -> None:
        check_module(module)
        self.module = module
        self.parameters = parameters = parameters_of(module)
        watch = Watch(module)
        watch.run(tensor_of(example.copy()))  # a module may change what it is given
        needs = {id(each): watch.need(each.tensor) if each.trained else 0 for each in parameters}
        starts = sorted({needs[id(each)] for each in parameters if each.trained})
        groups = [[each for each in parameters if needs[id(each)] == start and each.trained] for start in starts]
        groups[0] += [each for each in parameters if not each.trained]
        parts = [watch.starts[start] for start in starts]
        self.layers = [TorchLayer(part, group) for part, group in zip(parts, groups, strict=True)]
        self.uses = [[each for each in group if each.trained] for group in groups]
        self.places = watch.places(starts, self.uses)
        self.handles: list[Any] = []
        self.begun: Callable[[int], None] | None = None  # while a forward pass runs
        self.wrote: Callable[[int], None] | None = None  # while a backward pass runs

    def attach(self) -> None:
        """Set the hooks. They do nothing while neither ``forward`` nor ``backward`` runs."""
        known = {id(each): each for each in self.module.modules()}
        for number in dict.fromkeys(number for number, _ in self.places):
            # In front of hooks that are there: they may need parameters (weight_norm).
            self.handles.append(known[number].register_forward_pre_hook(self.started, prepend=True))
        for use, group in enumerate(self.uses):
            for parameter in group:
                call = partial(self.accumulated, use, parameter)
                self.handles.append(parameter.tensor.register_post_accumulate_grad_hook(call))

    def detach(self) -> None:
        """Take the hooks away."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()

    def forward(self, x: Array, begun: Callable[[int], None]) -> Array:
        """The module's output; ``begun(use)`` is called before a use begins, which waits in there for its values.

        Raises:
            ValueError: it is not one tensor, or ``requires_grad`` of a parameter has changed.
        """
        check_trained(self.parameters)
        self.begun, self.calls = begun, Counter[int]()
        try:
            with torch.enable_grad():
                self.y = one_tensor(self.module, self.module(tensor_of(x)))
        finally:
            self.begun = None
        return array_of(self.y)

    def started(self, module: Any, _: Any) -> None:
        """A module is about to run."""
        if self.begun is not None:
            self.calls[id(module)] += 1
            use = self.places.get((id(module), self.calls[id(module)]))
            if use is not None:
                self.begun(use)

    def backward(self, dy: Array, wrote: Callable[[int], None], *, fresh: bool) -> None:
        """Let autograd run; ``wrote(use)`` is called when all gradients of a use are where they travel from.

        Args:
            fresh: whether gradients are new, and not added to the gradients of earlier parts of the batch.
        """
        self.missing = [{id(each) for each in group} for group in self.uses]
        self.wrote, self.y, y = wrote, None, self.y
        for group in self.uses if fresh else ():
            for parameter in group:
                parameter.tensor.grad = None
        try:
            if y.requires_grad:
                y.backward(tensor_of(dy))
        finally:
            self.wrote = None
        for use in reversed(range(len(self.uses))):
            for parameter in self.uses[use]:
                if parameter.tensor.grad is None:
                    parameter.write(None)
                    parameter.tensor.grad = parameter.gradient
            if self.missing[use]:
                wrote(use)

    def accumulated(self, use: int, parameter: TorchParameter, tensor: Any) -> None:
        """Autograd has all of a gradient.

        Raises:
            ValueError: it had said so before.
        """
        if self.wrote is None:
            return
        if id(parameter) not in self.missing[use]:
            advice = "checkpoints must be of the kind use_reentrant=False"
            raise ValueError(f"parameter {parameter.name} has a gradient twice in one backward pass: {advice}")
        if tensor.grad is not parameter.gradient:
            parameter.write(tensor.grad)
            tensor.grad = parameter.gradient
        self.missing[use].remove(id(parameter))
        if not self.missing[use]:
            self.wrote(use)


class Watch(TorchDispatchMode):  # type: ignore[misc]
    """Sees one forward pass: which module starts when, and after which start each parameter is touched first."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module
        self.known = {id(each) for each in module.parameters()}
        self.starts: list[Any] = []
        self.touched: dict[int, int] = {}  # by the identity of the parameter: the number of a start
        self.reached: set[int] = set()  # parameters that the output depends on

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for each in tree_leaves((args, kwargs)):
            if id(each) in self.known:
                self.touched.setdefault(id(each), len(self.starts) - 1)
        return function(*args, **(kwargs or {}))

    def run(self, example: Any) -> None:
        """One pass, with gradients as in training; buffers and the generator of random numbers are as before."""
        hooks = [each.register_forward_pre_hook(self.started, prepend=True) for each in self.module.modules()]
        try:
            with torch.random.fork_rng(devices=[]), kept(self.module), torch.enable_grad(), self:
                y = self.module(example)
        finally:
            for hook in hooks:
                hook.remove()
        self.reached.update(map(id, leaves_of(one_tensor(self.module, y))))

    def started(self, module: Any, _: Any) -> None:
        self.starts.append(module)

    def need(self, tensor: Any) -> int:
        """The start after which the value of a parameter must be up to date."""
        if id(tensor) not in self.reached:
            return 0
        holders = [number for number, each in enumerate(self.starts) if holds(each, tensor)]
        found = min([self.touched.get(id(tensor), math.inf), *holders[:1]])
        return int(found) if found < math.inf else 0

    def places(self, starts: list[int], uses: list[list[TorchParameter]]) -> dict[Place, int]:
        """Which use begins at which start of which module.

        A module that holds a parameter needs it when it runs, also where it did not run, or ran later, in this pass.
        """
        calls, numbers = Counter[int](), []
        for each in self.starts:
            calls[id(each)] += 1
            numbers.append((id(each), calls[id(each)]))
        found = {numbers[start]: use for use, start in enumerate(starts)}
        for use, group in enumerate(uses):
            for module in self.module.modules():
                if any(holds(module, parameter.tensor) for parameter in group):
                    found[id(module), 1] = max(use, found.get((id(module), 1), 0))
        return found


def holds(module: Any, tensor: Any) -> bool:
    """Whether a parameter is a module's own."""
    return any(each is tensor for each in module.parameters(recurse=False))


@contextmanager
def kept(module: Any) -> Iterator[None]:
    """After the block, buffers such as running means are what they were before, be they changed or replaced."""
    owners = [(each, key, buffer) for each in module.modules() for key, buffer in each.named_buffers(recurse=False)]
    before = [(each, key, buffer, buffer.detach().clone()) for each, key, buffer in owners]
    try:
        yield
    finally:
        with torch.no_grad():
            for each, key, buffer, values in before:
                buffer.copy_(values)
                setattr(each, key, buffer)
