"""PyTorch's DistributedDataParallel over gloo on a synthetic model: sleeps and tensors as our synthetic layers have."""

import time

import torch
from torch import nn

from dear_mpi.models.layers.synthetic import GRADIENT_SCALE, Pace


class Slept(torch.autograd.Function):
    """Sleeps forward and backward; its gradients are a small multiple of the parameters, as those of our layers."""

    @staticmethod
    def forward(ctx, x, pace, forward_s, backward_s, *parameters):
        pace.spend(forward_s, time.perf_counter())
        ctx.pace, ctx.backward_s = pace, backward_s
        ctx.save_for_backward(*parameters)
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        begin_s = time.perf_counter()
        gradients = [parameter * GRADIENT_SCALE for parameter in ctx.saved_tensors]
        ctx.pace.spend(ctx.backward_s, begin_s)
        return dy, None, None, None, *gradients


class SleepingModule(nn.Module):
    """A module of a table."""

    def __init__(self, module, pace, forward_s, backward_s):
        super().__init__()
        self.pace, self.forward_s, self.backward_s = pace, forward_s, backward_s
        self.tensors = nn.ParameterList(nn.Parameter(torch.rand(count)) for count in module.counts)

    def forward(self, x):
        return Slept.apply(x, self.pace, self.forward_s, self.backward_s, *self.tensors)


class DdpLoop:
    """Collective: a model inside DistributedDataParallel, with SGD.

    All is at torch's defaults, but for gradients that are views of its buckets, which saves it a copy.
    """

    def __init__(self, modules, *, forward_s, backward_s):
        pace, flops = Pace("sleep"), sum(module.flops for module in modules)
        layers = [
            SleepingModule(module, pace, forward_s * module.flops / flops, backward_s * module.flops / flops)
            for module in modules
        ]
        self.model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.x = torch.zeros(1, requires_grad=True)

    def iterate(self):
        """Seconds of an iteration on this rank."""
        begin_s = time.perf_counter()
        self.model(self.x).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - begin_s
