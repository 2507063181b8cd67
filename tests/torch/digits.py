"""The digits, modules that learn them, and what PyTorch's DDP over gloo makes of both."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.models.data import Batches, load_data
from tests.torch.gloo import over_gloo
from tests.torch.models import Residual, values

ITERATIONS = 24


class Block(nn.Module):
    """Two branches, and a dropout that is off."""

    def __init__(self):
        super().__init__()
        self.stem, self.block, self.head = nn.Linear(64, 48), Residual(48), nn.Linear(48, 10)
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        return self.head(self.drop(torch.relu(self.block(self.stem(x.flatten(1))))))


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))


MODELS = {"mlp": mlp, "block": Block}


def new(name):
    torch.manual_seed(0)
    return MODELS[name]()


def parts(comm):
    pytest.importorskip("sklearn", reason="the digits need scikit-learn (our extra 'data')")
    examples = load_data("digits", DTYPES["fp32"], 0).train
    batches = Batches(examples, 16 * comm.size, rank=comm.rank, size=comm.size, seed=1)
    return [batches.part(iteration) for iteration in range(ITERATIONS)]


def learned(comm, model, optimizer=None):
    """The mean losses of all ranks, by PyTorch's SGD."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses = []
    for x, y in parts(comm):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y))
        loss.backward()
        optimizer.step()
        losses.append(comm.allreduce(loss.item()) / comm.size)
    return losses


def ddp(comm, name):
    """Losses and parameters of DDP over gloo."""
    module = new(name)
    with over_gloo(comm):
        losses = learned(comm, nn.parallel.DistributedDataParallel(module))
    return losses, values(module)
