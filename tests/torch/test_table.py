"""The table of docs/other-frameworks.md: each row trains as on one process with the whole batch."""

import copy
import subprocess
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="DistributedOptimizer needs torch (our extra 'torch')")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.optim import lr_scheduler  # noqa: E402

from tests.launch import mpis_at_hand  # noqa: E402
from tests.torch.looping import bits, close, each_trains, reference, same, wrapped  # noqa: E402

STEPS, ROWS = 4, 3


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x):
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(x + self.norms[1](self.second(y)))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 4, 3), nn.Sequential(Residual(4), Residual(4))
        self.head = nn.Linear(4, 5)

    def forward(self, images):
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))

    @staticmethod
    def loss(model, draw):
        images, classes = draw.normal(ROWS, 3, 6, 6), draw.numbers(5, ROWS)
        return functional.cross_entropy(model(images), classes)


class Gpt(nn.Module):
    """Tied embeddings, and a result of two values."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 8), nn.Parameter(torch.zeros(6, 8))
        how = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, **how) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, targets=None):
        x, length = self.tokens(tokens) + self.places[: tokens.shape[1]], tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, dtype=x.dtype)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        logits = self.head(self.norm(x))
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    @staticmethod
    def loss(model, draw):
        tokens = draw.numbers(11, ROWS, 7)
        return model(tokens[:, :-1], targets=tokens[:, 1:])[1]


class Memory(nn.Module):
    """An LSTM that goes on with its state of the last batch."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head, self.state = nn.LSTM(4, 6, 2, batch_first=True), nn.Linear(6, 3), {}

    def forward(self, x, state):
        y, state = self.lstm(x, state)
        return self.head(y), tuple(each.detach() for each in state)

    @staticmethod
    def loss(model, draw):
        logits, model.state[draw.rank] = model(draw.normal(ROWS, 5, 4), model.state.get(draw.rank))
        return functional.cross_entropy(logits.flatten(0, 1), draw.numbers(3, ROWS * 5))


class Experts(nn.Module):
    """A mixture of experts: some have no token on some ranks, one never has any."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 5), nn.ModuleList(nn.Linear(4, 4) for _ in range(5))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        scores = self.gate(x)[:, :4].softmax(1)
        best, chosen = scores.max(1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = chosen == number
            if rows.any():
                out[rows] = best[rows, None] * expert(x[rows])
        return self.head(x + out)

    @staticmethod
    def loss(model, draw):
        return functional.cross_entropy(model(draw.normal(ROWS, 4)), draw.numbers(3, ROWS))


class Hub(nn.Module):
    """Named inputs, and a result that is an object, as of Hugging Face."""

    def __init__(self):
        super().__init__()
        self.embeddings, self.encoder, self.classifier = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask, labels=None):
        x = torch.tanh(self.encoder(self.embeddings(input_ids))) * attention_mask[..., None]
        logits = self.classifier(x.sum(1) / attention_mask.sum(1, keepdim=True))
        return SimpleNamespace(loss=functional.cross_entropy(logits, labels), logits=logits)

    @staticmethod
    def loss(model, draw):
        tokens = draw.numbers(11, ROWS, 6)
        batch = {"input_ids": tokens, "attention_mask": (tokens > 0).double(), "labels": draw.numbers(2, ROWS)}
        batch["attention_mask"][:, 0] = 1
        return model(**batch).loss


class Plain(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 9, bias=False), nn.Tanh(), nn.Linear(9, 3, bias=False))

    @staticmethod
    def loss(model, draw):
        return functional.cross_entropy(model(draw.normal(draw.rows, 6)), draw.numbers(3, draw.rows))


class Draw:
    """The batch of one rank and iteration."""

    def __init__(self, iteration, rank, rows=ROWS, dtype=torch.float64):
        self.rank, self.rows, self.dtype = rank, rows, dtype
        self.generator = torch.Generator().manual_seed(100 * iteration + rank)

    def normal(self, *shape):
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.dtype)

    def numbers(self, below, *shape):
        return torch.randint(below, shape, generator=self.generator)


def compare(size, model, make, *, rates=None, late=True, steps=STEPS, tolerance=1e-12, loss=None, **options):
    """Train on threads and on one process; the schedule of the rate is made before or after the wrapper."""
    torch.manual_seed(0)
    template = model().double()
    *models, alone = (copy.deepcopy(template) for _ in range(size + 1))
    loss = loss or (lambda module, iteration, rank: model.loss(module, Draw(iteration, rank)))
    plain = make(alone.parameters())
    rate = rates(plain) if rates else None
    reference(alone, plain, size, steps, loss=loss, change=lambda: rate and rate.step())

    def body(transport):
        own, rank = models[transport.rank], transport.rank
        inner = make(own.parameters())
        early = rates(inner) if rates and not late else None
        with wrapped(transport, own, inner, **options) as optimizer:
            rate = rates(optimizer) if rates and late else early
            for iteration in range(steps):
                optimizer.zero_grad()
                loss(own, iteration, rank).backward()
                optimizer.step()
                if rate:
                    rate.step()
        return bits(own)

    same(size, body)
    if model is ResNet and size > 1:  # the running means are those of rank 0
        models[0].load_state_dict(dict(alone.named_buffers()), strict=False)
    close(models[0], alone, tolerance)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


@pytest.mark.parametrize("options", [{}, {"update": "sharded", "fusion": "cut:1KB"}, {"schedule": "wfbp"}], ids=str)
@pytest.mark.parametrize("model", [ResNet, Gpt, Memory, Experts, Hub])
@pytest.mark.parametrize("size", [1, 3])
def test_models(size, model, options):
    compare(size, model, adamw, **options, tolerance=1e-10)


OPTIMIZERS = {
    name: getattr(torch.optim, name)
    for name in torch.optim.__all__
    if isinstance(getattr(torch.optim, name), type) and name not in ("Optimizer", "LBFGS", "SparseAdam")
}


@pytest.mark.parametrize("update", ["full", "sharded"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_optimizers(name, update):
    """On one rank with the same bits."""
    how = {"momentum": 0.9} if name == "SGD" else {}
    compare(1, Plain, lambda each: OPTIMIZERS[name](each, lr=0.01, **how), update=update, tolerance=0)
    compare(3, Plain, lambda each: OPTIMIZERS[name](each, lr=0.01, **how), update=update, tolerance=1e-9)


def test_several_groups():
    def make(parameters):
        first, second = parameters
        groups = [{"params": [first], "weight_decay": 0.1}, {"params": [second], "lr": 0.1, "betas": (0.5, 0.9)}]
        return torch.optim.AdamW(groups, lr=0.01)

    compare(3, Plain, make, rates=lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.5))


def plateau(optimizer):
    rate = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    return SimpleNamespace(step=lambda: rate.step(1.0))


SCHEDULERS = {
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 6),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=8),  # also changes betas
    "warm-up": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: step / 4),  # from 0
    "chained": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.ConstantLR(optimizer, 0.1, 2), lr_scheduler.StepLR(optimizer, 1)], [2]
    ),
    "plateau": plateau,
}


@pytest.mark.filterwarnings("ignore:.*epoch parameter in `scheduler.step:UserWarning")
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_made_before_or_after(name, late):
    compare(2, Plain, adamw, rates=SCHEDULERS[name], late=late, steps=7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scaled", [False, True])
def test_autocast(dtype, scaled):
    torch.manual_seed(0)
    template = Plain()
    *models, alone = (copy.deepcopy(template) for _ in range(3))

    def loss(module, iteration, rank):
        with torch.autocast("cpu", dtype=dtype):
            return Plain.loss(module, Draw(iteration, rank, dtype=torch.float32))

    def train(module, optimizer, ranks, synchronize=lambda: None):
        scaler = torch.amp.GradScaler("cpu", init_scale=128.0, growth_interval=2, enabled=scaled)
        for iteration in range(6):
            optimizer.zero_grad()
            for rank in ranks:
                scaler.scale(loss(module, iteration, rank) / len(ranks)).backward()
            synchronize()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(module.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()

    train(alone, torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9), range(2))

    def drive(optimizer, own, transport):
        train(own, optimizer, [transport.rank], optimizer.synchronize)

    each_trains(models, drive, lambda own: torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9))
    close(models[0], alone, 1e-4)


class Late(nn.Module):
    """A branch that is used from some iteration on, so that its optimiser's state begins in a forward pass."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = (nn.Linear(*each) for each in [(6, 9), (6, 9), (9, 3)])

    def forward(self, x, *, late):
        return self.head(self.second(x) if late else self.first(x)).float()


class Multiplied(torch.optim.SGD):
    """An optimiser whose updates are products of matrices, which autocast would round."""

    def step(self):
        for each in self.param_groups[0]["params"]:
            if each.grad is not None and each.ndim == 2:
                each.grad.add_(each.grad @ each.grad.T @ each.grad)
        super().step()


@pytest.mark.parametrize("make", [adamw, lambda parameters: Multiplied(parameters, lr=0.1)], ids=["adamw", "products"])
@pytest.mark.parametrize("options", [{}, {"update": "sharded"}, {"fusion": "none"}], ids=str)
def test_updates_are_made_outside_of_the_modes_of_a_forward_pass(make, options):
    if "update" in options and make is not adamw:
        pytest.skip("it looks at whole tensors")
    torch.manual_seed(0)
    template = Late()
    *models, alone = (copy.deepcopy(template) for _ in range(3))

    def loss(module, iteration, rank):
        draw = Draw(iteration, rank, dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return functional.cross_entropy(module(draw.normal(ROWS, 6), late=iteration >= 2), draw.numbers(3, ROWS))

    reference(alone, make(alone.parameters()), 2, 6, loss=loss)

    def drive(optimizer, own, transport):
        for iteration in range(6):
            optimizer.zero_grad()
            loss(own, iteration, transport.rank).backward()
            optimizer.step()
            if iteration == 2:
                with torch.inference_mode():
                    own(torch.ones(1, 6), late=True)

    each_trains(models, drive, lambda own: make(own.parameters()), **options)
    close(models[0], alone, 1e-6)


def test_uneven_last_batches():
    """Weighted by their rows, as one process does with the whole batch."""
    rows = [[4, 4, 4], [4, 4, 1], [4, 2, 0]]
    torch.manual_seed(0)
    template = Plain().double()
    *models, alone = (copy.deepcopy(template) for _ in range(4))

    def total(module, iteration, rank):
        draw = Draw(iteration, rank, rows[iteration][rank])
        found = functional.cross_entropy(module(draw.normal(draw.rows, 6)), draw.numbers(3, draw.rows), reduction="sum")
        return found, draw.rows

    plain = adamw(alone.parameters())
    for iteration in range(3):
        plain.zero_grad()
        for rank in range(3):
            (total(alone, iteration, rank)[0] / sum(rows[iteration])).backward()
        plain.step()

    def drive(optimizer, own, transport):
        for iteration in range(3):
            optimizer.zero_grad()
            loss, count = total(own, iteration, transport.rank)
            loss.backward()
            optimizer.step(tokens=count)

    each_trains(models, drive, lambda own: adamw(own.parameters()))
    close(models[0], alone)


WORKERS = """
import random, sys, numpy as np

def state():
    import torch
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

def main(context):
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    import dear_mpi.torch as dear
    model = torch.nn.Linear(3, 2)
    optimizer = dear.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    data = TensorDataset(torch.ones(16, 3), torch.arange(16) % 2)
    before = None
    for x, y in DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context=context):
        before = before or state()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert state() == before, "generators were touched"
    print("done", model.weight.tolist())

if __name__ == "__main__":
    main(sys.argv[1])
"""


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_loader(context, tmp_path):
    """And no generator of random numbers is touched."""
    (script := tmp_path / "train.py").write_text(WORKERS)
    mpi = mpis_at_hand()[0]
    command = [*mpi.mpirun, "-n", "2", sys.executable, "-m", "mpi4py", str(script), context]
    job = subprocess.run(command, env=mpi.environment(2), capture_output=True, text=True, timeout=300, check=False)
    assert job.returncode == 0, job.stderr
    first, second = (line for line in job.stdout.splitlines() if "done" in line)
    assert first == second
