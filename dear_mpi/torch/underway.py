"""Mark tensors whose update is in flight: any use completes the updates of this rank.

PyTorch passes every use of a tensor of a subclass to ``__torch_function__``: a forward pass, ``state_dict()``, a change
in place. So users see only current tensors, and without a use updates stay in flight until the next forward pass.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import torch

READS = "grad requires_grad shape dtype device is_leaf"
CALLS = "numel size dim register_post_accumulate_grad_hook"
HARMLESS = {  # these neither read nor change elements; ``zero_grad()`` and a change of class need no more
    *(torch.Tensor.grad.__set__, torch.Tensor.grad.__delete__),
    *(getattr(torch.Tensor, name).__get__ for name in READS.split()),
    *(getattr(torch.Tensor, name) for name in CALLS.split()),
}


class UnderWay:
    """A tensor whose update is in flight."""

    __slots__ = ()
    finish: ClassVar[Callable[[], None]]  # restores the tensors' class

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for each in types if function not in HARMLESS else ():
            if issubclass(each, UnderWay):
                each.finish()
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    def __deepcopy__(self, memo: Any) -> Any:
        type(self).finish()
        return copy.deepcopy(self, memo)


def under_way(kind: type, finish: Callable[[], None]) -> type:
    """Return the class of a class's tensors while their updates are in flight."""
    return type(kind.__name__, (UnderWay, kind), {"finish": staticmethod(finish)})


def places_of(module: Any) -> dict[str, tuple[int, int]]:
    """Return the identities of the module and the parameter at each name of a parameter: 0.1 ms for 70 modules."""
    return {
        f"{name}.{key}".lstrip("."): (id(each), id(parameter))
        for name, each in module.named_modules(remove_duplicate=False)
        for key, parameter in each._parameters.items()
        if parameter is not None
    }


class Starts:
    """The hook of a module that starts. In copies of the module, also saved ones, it does nothing."""

    def __init__(self, owner: Any = None, module: Any = None) -> None:
        self.owner, self.module = owner, module

    def __call__(self, module: Any, given: Any) -> None:
        if module is self.module:
            self.owner.started(module)

    def __deepcopy__(self, memo: Any) -> Starts:
        return Starts()

    def __reduce__(self) -> Any:
        return Starts, ()
