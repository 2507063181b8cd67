"""Loops over ``DistributedOptimizer`` on ranks that are threads, and the same on one process."""

import copy

import torch

import dear_mpi.torch as dear
from dear_mpi.collectives.transports.loopback import run_loopback
from tests.torch.models import batch, new

MEAN = torch.nn.CrossEntropyLoss()
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=0.01),
    "rprop": lambda parameters: torch.optim.Rprop(parameters),
}


def loss_of(module, iteration, rank, rows=4):
    x, y = map(torch.from_numpy, batch(iteration, rank, rows))
    return MEAN(module(x.to(next(module.parameters()).dtype)), y)


def wrapped(transport, module, kind="sgd", **options):
    optimizer = OPTIMIZERS[kind](module.parameters()) if isinstance(kind, str) else kind
    return dear.DistributedOptimizer(optimizer, module, comm=transport, **options)


def step(optimizer, module, iteration, rank):
    optimizer.zero_grad()
    loss_of(module, iteration, rank).backward()
    optimizer.step()


def reference(module, optimizer, ranks, iterations, *, change=lambda: None, start=0, loss=loss_of):
    """Steps of one process with the batches of all ranks."""
    for iteration in range(start, start + iterations):
        optimizer.zero_grad()
        for rank in range(ranks):
            (loss(module, iteration, rank) / ranks).backward()
        optimizer.step()
        change()


def alike(make, count, dtype=torch.float64):
    """Modules with the same values."""
    torch.manual_seed(1)
    first = (new(make) if isinstance(make, str) else make()).to(dtype)
    return [copy.deepcopy(first) for _ in range(count)]


def close(one, other, tolerance=1e-12):
    for (name, value), wanted in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(
            value, wanted, rtol=tolerance, atol=tolerance, msg=lambda text, n=name: f"{n}: {text}"
        )


def bits(module):
    return b"".join(each.detach().numpy().tobytes() for each in module.parameters())


def same(size, body):
    """Run ``body(transport)`` on threads; return its result, which must be the same on all ranks."""
    found = run_loopback(size, body)
    assert all(each == found[0] for each in found)
    return found[0]


def each_trains(models, drive, kind="sgd", **options):
    """Let each rank train its own model by ``drive(optimizer, model, transport)``; ``kind`` may make an optimizer.

    Returns the bits of the parameters, which are the same on all ranks.
    """

    def body(transport):
        own = models[transport.rank]
        with wrapped(transport, own, kind if isinstance(kind, str) else kind(own), **options) as optimizer:
            drive(optimizer, own, transport)
        return bits(own)

    return same(len(models), body)
