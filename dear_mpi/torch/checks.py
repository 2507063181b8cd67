"""Check the arguments of a ``DistributedOptimizer``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from dear_mpi.collectives.transports.elastic import present
from dear_mpi.torch.underway import Starts
from dear_mpi.torch.updates import scope_of, text_of
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


def facts_of(owner: DistributedOptimizer, **numbers: Any) -> dict[str, Any]:
    """Check the arguments, and set the owner's ``names`` of trained parameters; return what ranks compare.

    Raises:
        ValueError: the module or the optimiser cannot be trained this way, or an option is not allowed.
    """
    model, optimizer = owner.model, owner.optimizer
    if hasattr(optimizer, "synchronize"):
        raise ValueError("optimizer is a DistributedOptimizer already: pass the one that it was made from")
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
    shapes = [f"{name} {each.dtype}{list(each.shape)}{' frozen' * (each not in owner.names)}" for name, each in tensors]
    numbered = [[names[each] for each in group] for group in groups]
    return {
        "model": shortened(f"{', '.join(shapes)}; {numbered}"),
        "optimizer": f"{type(optimizer).__name__}, which updates each {scope_of(optimizer)}",
        "hyperparameters": shortened(text_of(optimizer.param_groups)),
        "number of parameters with a state": len(optimizer.state),
        **{name: str(value) for name, value in options.items()},
    }


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
