"""Small modules of PyTorch, and what PyTorch itself makes of them."""

import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional

LOSS = nn.CrossEntropyLoss(reduction="sum")


class Residual(nn.Module):
    """Two branches and a way around them."""

    def __init__(self, width):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width))
        self.right = nn.Linear(width, width, bias=False)

    def forward(self, x):
        return x + self.left(x) * self.right(x)


class Branches(nn.Module):
    """Residual blocks, a scale that its own parent multiplies with, and a part that nobody uses."""

    def __init__(self):
        super().__init__()
        self.stem, self.unused, self.blocks = (
            nn.Linear(6, 8),
            nn.Linear(5, 5),
            nn.ModuleList([Residual(8), Residual(8)]),
        )
        self.scale, self.head = nn.Parameter(torch.full((8,), 0.5)), nn.Linear(8, 4)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x * self.scale)


class Tied(nn.Module):
    """A layer that runs twice, a weight that another layer uses transposed, and a frozen layer."""

    def __init__(self):
        super().__init__()
        self.first, self.twice, self.frozen = nn.Linear(6, 8, bias=False), nn.Linear(8, 8), nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        x = self.twice(torch.tanh(self.twice(torch.tanh(self.first(x)))))
        return self.head(functional.linear(self.frozen(x), self.first.weight.T))


class Attention(nn.Module):
    """Weights that a module's parent takes from it, without running it."""

    def __init__(self):
        super().__init__()
        self.attention, self.memory = nn.MultiheadAttention(2, 2, batch_first=True), nn.LSTM(2, 5, batch_first=True)
        self.norm, self.head = nn.BatchNorm1d(3), nn.Linear(15, 4)

    def forward(self, x):
        x = self.norm(x.reshape(-1, 3, 2))
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.memory(x)[0].flatten(1))


def sequential():
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.LayerNorm(10), nn.Linear(10, 4))


MODELS = {"sequential": sequential, "branches": Branches, "tied": Tied, "attention": Attention}


def templates():
    """One of each, with the same values in every process."""
    torch.manual_seed(0)
    return {name: build() for name, build in MODELS.items()}


TEMPLATES = templates()


def new(name, dtype=torch.float64):
    """A module of its own for each rank, where ranks are threads."""
    return copy.deepcopy(TEMPLATES[name]).to(dtype)


def batch(iteration, rank, rows=4, dtype=np.float64):
    rng = np.random.default_rng([iteration, rank])
    return rng.standard_normal((rows, 6)).astype(dtype), rng.integers(0, 4, rows)


def plain_losses(module, optimizer, iterations, ranks, rows=4):
    """PyTorch on its own, with the batches of all ranks."""
    losses = []
    for iteration in range(iterations):
        parts = [batch(iteration, rank, rows) for rank in range(ranks)]
        x, y = (torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*parts, strict=True))
        optimizer.zero_grad()
        loss = functional.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def values(module):
    """All parameters, flat."""
    return torch.cat([each.detach().flatten() for each in module.parameters()]).numpy()
