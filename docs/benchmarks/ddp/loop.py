"""PyTorch's ways to train on several ranks, on a synthetic model: sleeps and tensors as our synthetic layers have."""

import time
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from dear_mpi.models.synthetic import GRADIENT_SCALE, ComputeTime, shares_of

RATE = 0.01
UNIT_BYTES = 4 << 20  # of FSDP2: modules in a row until their parameters are as large, as a block of a network is


class Slept(torch.autograd.Function):
    """Sleeps forward and backward; its gradients are a small multiple of the parameters, as those of our layers."""

    @staticmethod
    def forward(ctx, x, compute_time, forward_s, backward_s, *parameters):
        compute_time.spend(forward_s, time.perf_counter())
        ctx.compute_time, ctx.backward_s = compute_time, backward_s
        ctx.save_for_backward(*parameters)
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        begin_s = time.perf_counter()
        gradients = [parameter * GRADIENT_SCALE for parameter in ctx.saved_tensors]
        ctx.compute_time.spend(ctx.backward_s, begin_s)
        return dy, None, None, None, *gradients


class SleepingModule(nn.Module):
    """A module of a table."""

    def __init__(self, module, compute_time, forward_s, backward_s):
        super().__init__()
        self.compute_time, self.forward_s, self.backward_s = compute_time, forward_s, backward_s
        self.tensors = nn.ParameterList(nn.Parameter(torch.rand(count)) for count in module.counts)

    def forward(self, x):
        return Slept.apply(x, self.compute_time, self.forward_s, self.backward_s, *self.tensors)


def sleeping(modules, *, forward_s, backward_s):
    """The modules of a model, which share its times as our layers do."""
    compute_time = ComputeTime()
    return [
        SleepingModule(module, compute_time, forward_s * ahead, backward_s * back)
        for module, ahead, back in zip(modules, *shares_of(modules), strict=True)
    ]


class TorchLoop:
    """A model and its optimiser."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.x = torch.zeros(1, requires_grad=True)

    def iterate(self):
        """Seconds of an iteration on this rank."""
        begin_s = time.perf_counter()
        self.model(self.x).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - begin_s


def ddp(modules, *, bucket_mb=25, group=None):
    """Collective. Gradients are views of its buckets, which saves it a copy; all else is as torch has it."""
    model = DistributedDataParallel(
        nn.Sequential(*modules), bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True, process_group=group
    )
    return TorchLoop(model, torch.optim.SGD(model.parameters(), lr=RATE))


def zero(modules):
    """Collective: each rank updates a part, and broadcasts it."""
    loop = ddp(modules)
    loop.optimizer = ZeroRedundancyOptimizer(
        loop.model.parameters(), torch.optim.SGD, parameters_as_bucket_view=True, lr=RATE
    )
    return loop


def fsdp2(modules):
    """Collective."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(*units(modules))
    for unit in model:
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return TorchLoop(model, torch.optim.SGD(model.parameters(), lr=RATE))


def units(modules):
    """Modules in a row, until their parameters are large enough."""
    unit, nbytes = [], 0
    for module in modules:
        unit.append(module)
        nbytes += sum(4 * parameter.numel() for parameter in module.parameters())
        if nbytes >= UNIT_BYTES:
            yield nn.Sequential(*unit)
            unit, nbytes = [], 0
    if unit:
        yield nn.Sequential(*unit)


def our_group(transport, algorithm):
    """Collective: a group of all ranks beside that of gloo, whose collectives are ours."""
    from dear_mpi.contrib.process_group.backend import NAME, group_of  # an extra

    make = partial(group_of, transport, {"algorithm": algorithm}, 0.0)
    dist.Backend.register_backend(NAME, make, extended_api=True, devices=["cpu"])
    return dist.new_group(backend=NAME)
