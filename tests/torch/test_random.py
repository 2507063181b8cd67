"""Random modules, optimisers, options and ranks, compared with one process in fp64; EVERY=1 takes 300 of them."""

import copy
import os
import random
from contextlib import nullcontext

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


class Case:
    """A model, an optimiser, options and batches, drawn from a seed, on so many ranks (drawn as well if 0)."""

    def __init__(self, seed, size=0):
        draw = random.Random(seed)
        self.size = size or draw.randint(1, 5)
        torch.manual_seed(seed)
        self.template = Random(draw).double()
        self.make, self.choice = draw.choice(OPTIMIZERS), draw.randrange(1 << 30)
        self.options, weighted = options_of(draw), draw.random() < 0.3
        self.parts = self.options.get("accumulate", 1)
        self.rows = [1 + draw.randrange(4) for _ in range(self.size)] if weighted else [3] * self.size
        self.weighted = weighted

    def begin(self):
        """A module, its optimiser, and a scheduler."""
        module, draw = copy.deepcopy(self.template), random.Random(self.choice)
        return module, self.make(groups_of(module, draw), draw)

    def loss(self, module, iteration, part, rank):
        x, y = batch(iteration, part, rank, self.rows[rank])
        return functional.cross_entropy(module(x), y, reduction="sum" if self.weighted else "mean")

    def train(self, module, optimizer, ranks, *, divisor=1, clip=None, **step):
        """Steps with the losses of these ranks, over a divisor."""
        rate = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        for iteration in range(STEPS):
            optimizer.zero_grad()
            for part in range(self.parts):
                last = part == self.parts - 1
                with nullcontext() if last or not hasattr(module, "no_sync") else module.no_sync():
                    for rank in ranks:
                        (self.loss(module, iteration, part, rank) / divisor).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimizer.step(**step)
            rate.step()

    def ours(self, comm, rank):
        """Collective: the module after steps of a DistributedOptimizer."""
        module, optimizer = self.begin()
        with wrapped(comm, module, optimizer, **self.options) as optimizer:
            self.train(module, optimizer, [rank], **({"tokens": self.rows[rank]} if self.weighted else {}))
        return module

    def check(self, found, wanted):
        """Whether two modules are the same but for rounding in fp64."""
        for (name, one), other in zip(found.state_dict().items(), wanted.state_dict().values(), strict=True):
            error = float((one - other).abs().max() / other.abs().max().clamp(min=1e-3))
            assert error < 1e-12, (name, error, self.options)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_combinations_end_as_on_one_process(seed):
    case = Case(seed)
    alone, plain = case.begin()
    divisor = sum(case.rows) if case.weighted else case.size
    case.train(alone, plain, range(case.size), divisor=divisor, clip=case.options.get("clip"))
    models = {}

    def body(transport):
        models[transport.rank] = case.ours(transport, transport.rank)
        return bits(models[transport.rank])

    same(case.size, body)
    case.check(models[0], alone)
