"""``DistributedOptimizer`` on ranks that are threads, compared with plain PyTorch on one process and the whole batch."""

import copy
import random
from contextlib import nullcontext

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import dear_mpi.torch as dear  # noqa: E402
from dear_mpi.collectives.transports.loopback import run_loopback  # noqa: E402

F, O = torch.nn.functional, torch.optim
ROWS = 4


class Tied(torch.nn.Module):
    """An embedding whose weights are the head's, a frozen and an unused parameter, and an output that is no tensor."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix = torch.nn.Embedding(7, 6), torch.nn.Linear(6, 6)
        self.norm, self.head = torch.nn.LayerNorm(6), torch.nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight
        self.unused = torch.nn.Linear(3, 3)
        self.norm.bias.requires_grad_(False)

    def forward(self, tokens, shift=0.0):
        logits = self.head(self.norm(F.gelu(self.mix(self.embed(tokens))) + shift))
        return {"logits": logits, "other": [shift]}


def mlp():
    return torch.nn.Sequential(
        torch.nn.Linear(6, 33), torch.nn.Tanh(), torch.nn.Linear(33, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)
    )


def tied_loss(model, rows):
    tokens = torch.arange(rows.start, rows.stop) % 7
    return F.cross_entropy(model(tokens, shift=0.1)["logits"], (tokens + 2) % 7)


def mlp_loss(model, rows):
    x = torch.linspace(-1, 1, 6 * 64).reshape(64, 6).to(next(model.parameters()).dtype)
    return F.cross_entropy(model(x[rows].sin()), torch.arange(64)[rows] % 3)


MODELS = {"mlp": (mlp, mlp_loss), "tied": (Tied, tied_loss)}


def alike(make, count):
    torch.manual_seed(1)
    first = make().double()
    return [copy.deepcopy(first) for _ in range(count)]


def close(one, other, tolerance=1e-12):
    for (name, value), wanted in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(value, wanted, rtol=tolerance, atol=tolerance, msg=lambda text: f"{name}: {text}")


def bits(model):
    return b"".join(each.detach().numpy().tobytes() for each in model.parameters())


def run(size, body):
    """Run ``body(transport)`` on threads; its results must have the same bits on all ranks."""
    found = run_loopback(size, body)
    assert all(each == found[0] for each in found)
    return found[0]


OPTIMIZERS = {
    "sgd": lambda parameters: O.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: O.AdamW(parameters, lr=0.01),
    "adafactor": lambda parameters: O.Adafactor(parameters, lr=0.01),
    "rprop": lambda parameters: O.Rprop(parameters),
}


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("mlp", {}),
        ("tied", {}),
        ("mlp", {"schedule": "wfbp", "fusion": "cut:1KB"}),
        ("mlp", {"schedule": "dear-eager", "fusion": "cut:1KB"}),
        ("mlp", {"update": "sharded"}),
        ("tied", {"update": "sharded", "fusion": "none"}),
    ],
    ids=str,
)
def test_steps_are_those_of_one_process(size, kind, model, options):
    make, loss_of = MODELS[model]
    *models, alone = alike(make, size + 1)
    wanted = OPTIMIZERS[kind](alone.parameters())
    for step in range(4):
        wanted.zero_grad()
        loss_of(alone, slice(step, step + ROWS * size)).backward()
        wanted.step()

    def body(transport):
        own = models[transport.rank]
        optimizer = dear.DistributedOptimizer(OPTIMIZERS[kind](own.parameters()), own, comm=transport, **options)
        for step in range(4):
            optimizer.zero_grad()
            begin = step + ROWS * transport.rank
            loss_of(own, slice(begin, begin + ROWS)).backward()
            optimizer.step()
        state = optimizer.state_dict()
        if transport.rank == 0:
            compare_state(state, wanted.state_dict())
        optimizer.close()
        return bits(own)

    run(size, body)
    close(models[0], alone)


def compare_state(state, wanted):
    assert state["param_groups"] == wanted["param_groups"]
    assert state["state"].keys() == wanted["state"].keys()
    for number, own in wanted["state"].items():
        assert state["state"][number].keys() == own.keys()
        for name, value in own.items():
            torch.testing.assert_close(state["state"][number][name], value, rtol=1e-9, atol=1e-12)
