"""Random modules, optimisers, options and ranks, compared with one process in fp64; EVERY=1 takes 300 of them."""

import copy
import os
import random

import pytest

torch = pytest.importorskip("torch", reason="DistributedOptimizer needs torch (our extra 'torch')")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from tests.torch.looping import bits, same, wrapped  # noqa: E402

SEEDS = range(300 if os.environ.get("EVERY") else 20)
STEPS, WIDTH, CLASSES = 4, 6, 3


class Random(nn.Module):
    """Layers in a random graph: residual, reused, tied, frozen, skipped on some data, checkpointed, unused."""

    def __init__(self, draw):
        super().__init__()
        self.parts = nn.ModuleList(self.part(draw) for _ in range(draw.randint(1, 5)))
        self.ways = [draw.choice(["plain", "plain", "residual", "twice", "sometimes", "scaled"]) for _ in self.parts]
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.7))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.loose = nn.Linear(2, 2) if draw.random() < 0.3 else None
        linear = [each for each in self.parts if isinstance(each, nn.Linear)]
        if len(linear) > 1 and draw.random() < 0.4:
            linear[0].weight = linear[-1].weight
        if draw.random() < 0.3:
            draw.choice(list(self.parts)).requires_grad_(False)

    @staticmethod
    def part(draw):
        kinds = [
            lambda: nn.Linear(WIDTH, WIDTH, bias=draw.random() < 0.7),
            lambda: nn.LayerNorm(WIDTH),
            lambda: nn.Sequential(nn.Linear(WIDTH, 13), nn.GELU(), nn.Linear(13, WIDTH)),
            lambda: nn.GRUCell(WIDTH, WIDTH),
            lambda: nn.Sequential(
                nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(2 * WIDTH, WIDTH)
            ),
            lambda: nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GLU()),
        ]
        return draw.choice(kinds)()

    def forward(self, x):
        for part, way in zip(self.parts, self.ways, strict=True):
            if way == "sometimes" and x.sum() > 0:
                continue
            y = part(part(x)) if way == "twice" else part(x)
            x = x + y if way == "residual" else y * self.scale if way == "scaled" else torch.tanh(y)
        return self.head(x)


OPTIMIZERS = [
    lambda groups, draw: torch.optim.SGD(groups, lr=0.05, momentum=draw.choice([0, 0.9]), nesterov=False),
    lambda groups, draw: torch.optim.AdamW(groups, lr=0.01, amsgrad=draw.random() < 0.5, eps=1e-3),
    lambda groups, draw: torch.optim.Adagrad(groups, lr=0.05, eps=1e-3),
    lambda groups, draw: torch.optim.RMSprop(groups, lr=0.01, eps=1e-3, centered=draw.random() < 0.5),
    lambda groups, draw: torch.optim.Adafactor(groups, lr=0.01),
    lambda groups, draw: torch.optim.Adadelta(groups, eps=1e-3),
    lambda groups, draw: torch.optim.NAdam(groups, lr=0.01, eps=1e-3),
]


def groups_of(module, draw):
    trained = [each for each in module.parameters() if each.requires_grad]
    if draw.random() < 0.5:
        return trained
    cut = draw.randint(0, len(trained))
    return [{"params": trained[cut:]}, {"params": trained[:cut], "weight_decay": 0.05, "lr": 0.02}]


def options_of(draw):
    found = {
        "schedule": draw.choice(["dear", "dear", "dear-eager", "wfbp", "ddp", "bytescheduler", "mg-wfbp", "sequential"])
    }
    found["fusion"] = draw.choice(["none", "25MB", "cut:128B", "cut:1KB", "layers:2", "tensors", "buckets:1"])
    if found["schedule"] == "dear" and draw.random() < 0.5:
        found["update"] = "sharded"
    if draw.random() < 0.4:
        found["clip"] = draw.choice([0.05, 5.0])
    if draw.random() < 0.4:
        found["accumulate"] = draw.randint(2, 3)
    if draw.random() < 0.3:
        found["algorithm"] = draw.choice(["ring", "ordered", "bruck", "shared"])
    return found


def batch(iteration, part, rank, rows):
    generator = torch.Generator().manual_seed(iteration * 10000 + part * 100 + rank)
    x = torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64)
    return x, torch.randint(CLASSES, (rows,), generator=generator)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_combinations(seed):
    draw = random.Random(seed)
    size = draw.randint(1, 5)
    torch.manual_seed(seed)
    template = Random(draw).double()
    make, choice = draw.choice(OPTIMIZERS), draw.randrange(1 << 30)
    options, weighted = options_of(draw), draw.random() < 0.3
    parts = options.get("accumulate", 1)
    rows = [1 + draw.randrange(4) * weighted for _ in range(size)] if weighted else [3] * size
    *models, alone = (copy.deepcopy(template) for _ in range(size + 1))

    def new(module):
        own = random.Random(choice)
        return make(groups_of(module, own), own)

    def loss_of(module, iteration, part, rank):
        x, y = batch(iteration, part, rank, rows[rank])
        return functional.cross_entropy(module(x), y, reduction="sum" if weighted else "mean")

    plain = new(alone)
    rate = torch.optim.lr_scheduler.ExponentialLR(plain, 0.8)
    for iteration in range(STEPS):
        plain.zero_grad()
        for part in range(parts):
            for rank in range(size):
                (loss_of(alone, iteration, part, rank) / (sum(rows) if weighted else size)).backward()
        if "clip" in options:
            nn.utils.clip_grad_norm_(alone.parameters(), options["clip"])
        plain.step()
        rate.step()

    def body(transport):
        own = models[transport.rank]
        with wrapped(transport, own, new(own), **options) as optimizer:
            rate = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
            for iteration in range(STEPS):
                optimizer.zero_grad()
                for part in range(parts):
                    loss_of(own, iteration, part, transport.rank).backward()
                optimizer.step(**({"tokens": rows[transport.rank]} if weighted else {}))
                rate.step()
        return bits(own)

    same(size, body)
    for (name, found), wanted in zip(models[0].state_dict().items(), alone.state_dict().values(), strict=True):
        error = float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-3))
        assert error < 1e-12, (name, error, options)
