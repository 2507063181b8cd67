"""``invariant``: one SHA-256 on any number of ranks, if each micro-batch's passes are deterministic."""

import copy
from itertools import product

import pytest

torch = pytest.importorskip("torch", reason="DistributedOptimizer needs torch (our extra 'torch')")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from tests.torch.looping import OPTIMIZERS, close, each_trains  # noqa: E402
from tests.torch.test_table import Draw, Experts, Gpt  # noqa: E402

MICRO_BATCHES, STEPS, ROWS = 8, 3, 3


@pytest.fixture(autouse=True)
def deterministic():
    """What the page asks of the user."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(33, 65), nn.GELU(), nn.LayerNorm(65), nn.Linear(65, 17), nn.Linear(17, 5))

    def forward(self, x):
        return self.layers(x)

    @staticmethod
    def loss(model, draw):
        return functional.cross_entropy(model(draw.normal(ROWS, 33)), draw.numbers(5, ROWS))


def template(model):
    torch.manual_seed(0)
    return model()


def micro_batch(own, optimizer, iteration, number):
    type(own).loss(own, Draw(iteration, number, dtype=torch.float32)).backward()


def nothing(*given):
    pass


def steps(optimizer, own, *, change=nothing, run=micro_batch, zero=nn.Module.zero_grad):
    for iteration in range(STEPS):
        zero(own)
        for number in optimizer.micro_batches:
            run(own, optimizer, iteration, number)
        change(optimizer, own)
        optimizer.step()


def trained(model, ranks, kind, *, change=nothing, run=micro_batch, zero=nn.Module.zero_grad, **options):
    """Return the bits of the parameters, the same on all ranks."""
    models = [copy.deepcopy(model) for _ in range(ranks)]
    options = {"invariant": MICRO_BATCHES, "fusion": "cut:4KB"} | options

    def drive(optimizer, own, transport):
        steps(optimizer, own, change=change, run=run, zero=zero)

    return each_trains(models, drive, kind, **options)


RANKS, SCHEDULES = (1, 2, 3, 4), ("dear", "wfbp", "sequential")
CASES = {
    (Mlp, "sgd"): [*product(RANKS, SCHEDULES), (5, "dear"), (8, "dear-eager")],
    (Mlp, "adamw"): [*zip(RANKS, SCHEDULES * 2, strict=False)],
    (Gpt, "sgd"): [*zip(RANKS, SCHEDULES[::-1] * 2, strict=False)],
    (Gpt, "adamw"): [*zip(RANKS, SCHEDULES * 2, strict=False), (3, "sequential"), (2, "dear")],
}


@pytest.mark.parametrize(("case", "runs"), CASES.items(), ids=["mlp sgd", "mlp adamw", "gpt sgd", "gpt adamw"])
def test_parameters_have_one_sha256_on_any_number_of_ranks(case, runs):
    model, kind = case
    own = template(model)
    assert len({trained(own, ranks, kind, schedule=schedule) for ranks, schedule in runs}) == 1


def clipped(optimizer, own):
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(own.parameters(), 0.1)


def two_passes(own, optimizer, iteration, number):
    """Half a micro-batch each; only the first pass uses the whole model."""
    draw = Draw(iteration, number, dtype=torch.float32)
    with optimizer.no_sync():
        type(own).loss(own, draw).backward()
    own.layers[-1].bias.square().sum().backward()


HOW = {
    "sharded": {"update": "sharded"},
    "whole tensors": {"kind": "adafactor", "update": "sharded", "fusion": "none"},
    "clip": {"clip": 0.1},
    "synchronize": {"change": clipped},
    "two passes": {"run": two_passes},
    "kept gradients": {"zero": lambda own: None},
    "zeroed gradients": {"zero": lambda own: own.zero_grad(set_to_none=False)},
}


@pytest.mark.parametrize("how", HOW)
def test_options_keep_the_bits(how):
    options = {"kind": "adamw"} | HOW[how]
    own = template(Mlp)
    assert len({trained(own, ranks, **options) for ranks in (1, 2, 3)}) == 1


@pytest.mark.parametrize("model", [Gpt, Experts])
def test_averages_are_those_of_one_process(model):
    """Also with experts that no token of the last micro-batch takes."""
    alone = template(model).double()
    models = [copy.deepcopy(alone) for _ in range(3)]
    plain = OPTIMIZERS["adamw"](alone.parameters())
    for iteration in range(STEPS):
        plain.zero_grad()
        for number in range(MICRO_BATCHES):
            (model.loss(alone, Draw(iteration, number)) / MICRO_BATCHES).backward()
        plain.step()

    def run(own, optimizer, iteration, number):
        model.loss(own, Draw(iteration, number)).backward()

    each_trains(models, lambda optimizer, own, _: steps(optimizer, own, run=run), "adamw", invariant=MICRO_BATCHES)
    close(models[0], alone, 1e-10)


def test_averages_over_tokens():
    own, found = template(Mlp), set()

    def body(optimizer, own, _):
        for iteration in range(STEPS):
            optimizer.zero_grad()
            for number in optimizer.micro_batches:
                micro_batch(own, optimizer, iteration, number)
            optimizer.step(tokens=3 * len(optimizer.micro_batches))

    for ranks in (1, 3):
        models = [copy.deepcopy(own) for _ in range(ranks)]
        found.add(each_trains(models, body, "sgd", invariant=MICRO_BATCHES))
    assert len(found) == 1
