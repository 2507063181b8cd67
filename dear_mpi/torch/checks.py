"""Check the arguments of a ``DistributedOptimizer``."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch

from dear_mpi.collectives.transports.elastic import present
from dear_mpi.torch.sums import ANEW
from dear_mpi.torch.trial import check_options
from dear_mpi.torch.underway import Starts
from dear_mpi.torch.updates import UserUpdates, texts_of
from dear_mpi.training.options import Options
from dear_mpi.training.routes.invariant import Tree
from dear_mpi.training.schedules import find_schedule
from dear_mpi.training.session import shortened

if TYPE_CHECKING:
    from dear_mpi.torch.optimizer import DistributedOptimizer

USERS = (
    "device",
    "learning_rate",
    "loss_scale",
    "optimizer",
    "statistic",
)  # options of Session
COMPILED = "layers would no longer start one by one; compile only functions without parameters"
PARALLEL = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel, torch.jit.ScriptModule)
PROBED = 2  # steps with a check of all gradients; afterwards, of the smallest one
SYNCHRONIZE = "call optimizer.synchronize() before, which makes p.grad the average over ranks, or take clip="
NO_GRADIENTS = (
    "has no new gradients: backward() has reached no parameter since the last step(). Call it once after backward(); "
    "for an empty batch pass tokens=0, or call (0 * sum(p.sum() for p in model.parameters())).backward() before"
)


def facts_of(owner: DistributedOptimizer, **numbers: Any) -> dict[str, Any]:
    """Check the arguments, and set the owner's ``names`` and ``updates``; return what ranks compare.

    Raises:
        ValueError: the module or the optimiser cannot be trained this way, or an option is not allowed.
    """
    model, optimizer = owner.model, owner.optimizer
    if hasattr(optimizer, "synchronize"):
        raise ValueError(f"optimizer is a DistributedOptimizer already: {ANEW}")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"optimizer must be one of torch.optim, not {optimizer!r:.99}")
    for name in owner.options.keys() & set(USERS):
        raise ValueError(f"option {name!r} does not apply to your loop, which has its batches, optimizer and scaler")
    check_module(model)
    tensors = [*model.named_parameters(), *model.named_buffers()]
    devices = {str(each.device) for _, each in tensors}
    if len(devices) > 1:
        raise ValueError(f"model must be on one device, not on {' and '.join(sorted(devices))}")
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = [group["params"] for group in optimizer.param_groups]
    strange = [each for group in groups for each in group if each not in names]
    if strange:
        raise ValueError(
            f"optimizer has {len(strange)} parameters that are not the model's: make it from model.parameters()"
        )
    owner.names = {each: names[each] for group in groups for each in group if each.requires_grad}
    if not owner.names:
        raise ValueError("optimizer has no parameter that is trained (requires_grad)")
    options = numbers | owner.options
    Options.of(options)
    if not isinstance(owner.broadcast_buffers, bool):
        raise ValueError(f"broadcast_buffers must be True or False, not {owner.broadcast_buffers!r}")
    schedule = owner.options["schedule"]
    if (route := find_schedule(schedule).own_route()) is not None and route.period > 1:
        raise ValueError(
            f"schedule {schedule!r} updates during backward(), without your optimizer: take dear, for example"
        )
    if owner.elastic and present(owner.world) is None:
        raise ValueError("elastic needs ranks that may die: pass comm=world of run_world(f, elastic=True)")
    if owner.invariant:
        if numbers["accumulate"] != 1:
            raise ValueError("accumulate must be left out with invariant: it is this rank's number of micro-batches")
        if objection := Tree(owner.invariant).objection(owner.world.size):
            raise ValueError(objection)
    owner.updates = UserUpdates(optimizer)
    check_options(owner, options)
    return {
        "model": shortened(str(details_of(owner))),
        "optimizer": f"{type(optimizer).__name__}, which updates each {owner.updates.scope}",
        "number of parameters with a state": len(optimizer.state),
        **{name: str(value) for name, value in options.items()},
    }


def details_of(owner: DistributedOptimizer) -> dict[str, str]:
    """Return what ranks compare one by one if they differ: the tensors of the model, and the optimiser's groups."""
    tensors = [*owner.model.named_parameters(), *owner.model.named_buffers()]
    names = {each: name for name, each in tensors}
    texts = [f"{name} {each.dtype}{list(each.shape)}{' frozen' * (each not in owner.names)}" for name, each in tensors]
    groups = owner.optimizer.param_groups
    found = {f"tensor {number} of the model": text for number, text in enumerate([*texts, "none"])}
    found["optimizer"] = type(owner.optimizer).__name__
    found |= {f"{name} of the optimizer": text for name, text in texts_of(groups).items()}
    for number, group in enumerate(groups):
        found[f"parameters of group {number}"] = ", ".join(names[each] for each in group["params"])
    return found


def check_tokens(tokens: Any) -> float | None:
    """Return the number. Raises ValueError."""
    if tokens is None:
        return None
    if isinstance(tokens, torch.Tensor):
        tokens = tokens.item()
    if isinstance(tokens, bool) or not isinstance(tokens, Real) or not 0 <= (number := float(tokens)) < math.inf:
        raise ValueError(f"tokens must be a finite number of at least 0, not {tokens!r:.99}")
    return number


def check_module(module: Any) -> None:
    """Check that a module can be trained here. Raises a ValueError with the reason."""
    if not isinstance(module, torch.nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, not {module!r:.99}")
    for each in module.modules():
        kind = type(each).__name__
        # by module.compile(), and by torch.compile
        if getattr(each, "_compiled_call_impl", None) is not None or hasattr(each, "_orig_mod"):
            raise ValueError(f"model has a compiled {kind} in it: {COMPILED}")
        if any(isinstance(hook, Starts) and hook.owner for hook in each._forward_pre_hooks.values()):
            raise ValueError("model has a DistributedOptimizer already: close() that one before")
        if isinstance(each, PARALLEL):
            raise ValueError(f"model has a {kind} in it: give it the module inside")


def check_eager() -> None:
    """Check that no compiled function is running, and no CUDA graph being captured."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise ValueError("a CUDA graph cannot repeat messages: capture functions without parameters of the model")
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        if frame.f_code.co_name == "compile_wrapper":  # of torch._dynamo
            raise ValueError(f"torch.compile found a module of a DistributedOptimizer: {COMPILED}")


class Sent:
    """Keep gradients as ``backward()`` sent them, to find later changes."""

    def __init__(self, names: Mapping[Any, str]) -> None:
        self.names, self.probes, self.left = names, dict[Any, Any](), PROBED
        self.rows: list[tuple[Any, Any, int]] = []  # parameters, gradients and their versions when they were complete
        self.smallest = min(names, key=lambda each: each.numel() or sys.maxsize)

    def note(self, parameter: Any) -> None:
        self.rows.append((parameter, parameter.grad, getattr(parameter.grad, "_version", 0)))

    def complete(self) -> None:
        noted = {each for each, *_ in self.rows}
        for parameter in (each for each in self.names if each not in noted):
            self.note(parameter)
        # GradScaler.unscale_ and p.grad.data count no version. A loop does in its first steps what it does later.
        probed = self.names if self.left > 0 else [self.smallest]
        grads = {each: each.grad for each in probed if each.device.type == "cpu" and each.grad is not None}
        self.probes = {each: grad.clone() for each, grad in grads.items() if grad.layout is torch.strided}
        self.left -= 1

    def check(self) -> None:
        """Raise ValueError if a gradient was changed."""
        for parameter, grad, version in self.rows:
            same = parameter.grad is grad and getattr(grad, "_version", 0) == version
            if same and parameter in self.probes:
                same = torch.allclose(self.probes[parameter], grad, rtol=0.0, atol=0.0, equal_nan=True)
            if not same:
                what = f"the gradient of {self.names[parameter]} was changed after backward() had sent it"
                raise ValueError(f"{what}: {SYNCHRONIZE}")
