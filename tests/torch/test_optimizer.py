"""``DistributedOptimizer`` on ranks that are threads, compared with plain PyTorch on the whole batch."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="DistributedOptimizer needs torch (our extra 'torch')")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from dear_mpi.collectives.transports.loopback import run_loopback  # noqa: E402
from dear_mpi.training.schedules import SCHEDULES  # noqa: E402
from tests.torch.looping import OPTIMIZERS, alike, bits, close, each_trains, loss_of, reference, same, step, wrapped  # noqa: E402
from tests.torch.models import MODELS, Branches  # noqa: E402

STEPS = 4


def trained(models, kind="sgd", *, steps=STEPS, **options):
    """Train a model on each rank; return the bits of the parameters, which are the same on all ranks."""

    def drive(optimizer, own, transport):
        for iteration in range(steps):
            step(optimizer, own, iteration, transport.rank)

    return each_trains(models, drive, kind, **options)


def take_steps(plain):
    """How a rank's module is trained; the optimizer's state is compared with the one of plain PyTorch."""

    def drive(optimizer, own, transport):
        for iteration in range(STEPS):
            step(optimizer, own, iteration, transport.rank)
        state = optimizer.state_dict()
        if transport.rank == 0:
            compare(state, plain.state_dict())

    return drive


CASES = [
    {},
    {"schedule": "wfbp", "fusion": "cut:1KB"},
    {"schedule": "dear-eager", "fusion": "cut:1KB"},
    {"update": "sharded"},
    {"update": "sharded", "fusion": "none"},
]


@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize("model", ["branches", "tied"])
@pytest.mark.parametrize(("size", "kind"), [(1, "adamw"), (2, "adafactor"), (3, "sgd"), (5, "rprop"), (4, "adamw")])
def test_parameters_and_state_are_those_of_one_process(size, kind, model, options):
    *models, alone = alike(model, size + 1)
    plain = OPTIMIZERS[kind](alone.parameters())
    reference(alone, plain, size, STEPS)
    each_trains(models, take_steps(plain), kind, **options)
    close(models[0], alone)


def compare(state, wanted):
    assert state["param_groups"] == wanted["param_groups"]
    assert state["state"].keys() == wanted["state"].keys()
    for number, own in wanted["state"].items():
        assert state["state"][number].keys() == own.keys()
        for name, value in own.items():
            value = value.to_dense() if isinstance(value, torch.Tensor) and value.is_sparse else value
            torch.testing.assert_close(state["state"][number][name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_schedule_gives_the_same_bits(name, ranks):
    """At equal algorithm, also with buckets cut anywhere."""
    cases = [(each, "none") for each in (SCHEDULES if ranks == 2 else ("sequential", "dear"))]
    cases += [("dear", "cut:128B"), ("sequential", "25MB")]
    found = {
        trained(alike(name, ranks), "adamw", schedule=schedule, fusion=fusion, algorithm="ordered")
        for schedule, fusion in cases
    }
    assert len(found) == 1


@pytest.mark.parametrize("options", [
    {"wire": "fp32"},
    {"wire": "fp32", "clip": 0.5, "update": "sharded"},
    {"wire": "int8:error=no"},
    {"weights": (3, 1)},
    {"fusion": "bo:1KB..4KB", "schedule": "dear"},
], ids=str)  # fmt: skip
def test_the_options_of_a_session_work(options):
    """Also with buckets that are cut anew, which their optimisers' states survive."""
    narrow = options.get("wire", "fp64") != "fp64"
    dtype = torch.float32 if "int8" in options.get("wire", "") else torch.float64
    *models, alone = alike("branches", 3, dtype)
    reference(alone, OPTIMIZERS["adamw"](alone.parameters()), 2, 24 if "fusion" in options else STEPS)
    if "clip" in options:
        (alone,) = alike("branches", 1)
        plain = OPTIMIZERS["adamw"](alone.parameters())
        plain.register_step_pre_hook(lambda *_: bool(nn.utils.clip_grad_norm_(alone.parameters(), 0.5)) and None)
        reference(alone, plain, 2, STEPS)
    trained(models, "adamw", steps=24 if "fusion" in options else STEPS, **options)
    close(models[0], alone, 5e-2 if "int8" in options.get("wire", "") else 1e-4 if narrow else 1e-9)


def test_layer_calls_are_in_the_order_of_the_first_pass():
    """What never starts belongs to its parent."""

    def order(module):
        def body(transport):
            with wrapped(transport, module) as optimizer:
                step(optimizer, module, 0, 0)
                return [[each.name for each in call.parameters] for call in optimizer.run.calls]

        ((found),) = run_loopback(1, body)
        return found

    (module,) = alike("branches", 1)
    found = order(module)
    assert found[0] == ["scale", "unused.weight", "unused.bias"]
    assert found[1] == ["stem.weight", "stem.bias"]
    assert found[2] == ["blocks.0.left.0.weight", "blocks.0.left.0.bias"]
    assert found[-1] == ["head.weight", "head.bias"]
    (module,) = alike("attention", 1)
    attention = ["attention.in_proj_weight", "attention.in_proj_bias", "attention.out_proj.weight"]
    assert order(module)[1] == [*attention, "attention.out_proj.bias"]


class Choosy(nn.Module):
    """Takes one way or another, by the data: ranks and iterations differ. A linear layer is taken by its parent."""

    def __init__(self):
        super().__init__()
        self.stem, self.odd, self.even, self.head = (nn.Linear(*each) for each in [(6, 8), (8, 8), (8, 8), (8, 4)])
        self.taken = nn.Linear(8, 8)

    def forward(self, x):
        x = self.stem(x)
        for way in [self.odd, self.even] if x.sum() > 0 else [self.even]:
            x = torch.tanh(way(x))
        return self.head(functional.linear(x, self.taken.weight))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ranks_may_take_different_ways(schedule):
    *models, alone = alike(Choosy, 4)
    reference(alone, OPTIMIZERS["sgd"](alone.parameters()), 3, 8)
    trained(models, schedule=schedule, fusion="none", steps=8)
    close(models[0], alone, 1e-10)


class Constant(torch.autograd.Function):
    """A linear layer that returns no gradient for its weight."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(weight)
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx, dy):
        return dy @ ctx.saved_tensors[0], None, dy.sum(0)


class Partly(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.fixed, self.head = (nn.Linear(*each) for each in [(6, 8), (8, 8), (8, 4)])

    def forward(self, x):
        return self.head(Constant.apply(self.stem(x), self.fixed.weight, self.fixed.bias))


class Checkpointed(Branches):
    """Recomputes blocks in the backward pass, in passes of their own if they are reentrant."""

    reentrant = False

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x * self.scale)


class Reentrant(Checkpointed):
    reentrant = True


class Looked(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4, sparse=True), nn.Linear(24, 4)

    def forward(self, x):
        return self.head(self.table((x.abs() * 4).long().clamp(max=8)).flatten(1))


def last():
    """Convolutions in channels_last."""
    model = nn.Sequential(
        nn.Unflatten(1, (2, 3, 1)), nn.Conv2d(2, 5, (2, 1)), nn.Tanh(), nn.Flatten(), nn.Linear(10, 4)
    )
    return model.to(memory_format=torch.channels_last)


@pytest.mark.parametrize(("make", "kind"), [
    (Partly, "sgd"),
    (Checkpointed, "adamw"),
    (Reentrant, "adamw"),
    (Looked, "sgd"),
    (last, "adamw"),
    (last, "adafactor"),
])  # fmt: skip
@pytest.mark.parametrize("options", [{}, {"update": "sharded", "fusion": "none"}, {"fusion": "cut:128B"}], ids=str)
def test_modules_of_all_kinds(make, kind, options):
    *models, alone = alike(make, 3)
    plain = OPTIMIZERS[kind](alone.parameters())
    if make is Looked:
        plain.param_groups[0]["weight_decay"] = 0.0  # refused by PyTorch for sparse gradients
    reference(alone, plain, 2, STEPS)

    def make(own):
        optimizer = OPTIMIZERS[kind](own.parameters())
        optimizer.param_groups[0]["weight_decay"] = plain.param_groups[0]["weight_decay"]
        return optimizer

    each_trains(models, take_steps(plain), make, **options)
    for own in models:
        assert [each.stride() for each in own.parameters()] == [each.stride() for each in alone.parameters()]
    close(models[0], alone, 1e-10)


@pytest.mark.filterwarnings("ignore")  # PyTorch has a newer weight_norm
def test_hooks_that_were_there_before_see_new_values():
    """A weight was computed by the old weight_norm before the last update was there."""
    (first,) = alike(lambda: nn.Linear(6, 4), 1)
    found = set()
    for schedule in ("wfbp", "dear"):
        models = [torch.nn.utils.weight_norm(copy.deepcopy(first)) for _ in range(2)]
        found.add(trained(models, schedule=schedule, algorithm="ordered"))
    assert len(found) == 1


class Half(nn.Module):
    """A layer in a narrow type, and one that may be in another."""

    def __init__(self, first, last):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8, dtype=first), nn.Linear(8, 4, dtype=last)

    def forward(self, x):
        return self.last(self.first(x).to(self.last.weight.dtype)).float()


@pytest.mark.parametrize(
    ("first", "second"),
    [(torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16), (torch.bfloat16, torch.float32)],
)
@pytest.mark.parametrize("how", ["plain", "synchronize", "sharded"])
def test_narrow_and_mixed_types_are_trained(first, second, how):
    models = []
    for _ in range(3):
        torch.manual_seed(0)
        models.append(Half(first, second))
    *models, alone = models
    reference(alone, OPTIMIZERS["sgd"](alone.parameters()), 2, 8)

    def body(transport):
        own = models[transport.rank]
        with wrapped(transport, own, **({"update": how} if how == "sharded" else {})) as optimizer:
            for iteration in range(8):
                optimizer.zero_grad()
                loss_of(own, iteration, transport.rank).backward()
                if how == "synchronize":
                    optimizer.synchronize()
                optimizer.step()
        return b"".join(each.detach().view(torch.uint8).numpy().tobytes() for each in own.parameters())

    same(2, body)
    close(models[0], alone, 5e-2)


def weighted(module, iteration, rank):
    """A sum over unequal parts of a batch."""
    return loss_of(module, iteration, rank, rows=1 + 2 * rank) * (1 + 2 * rank)


@pytest.mark.parametrize(("size", "schedule"), [(1, "dear"), (3, "dear"), (3, "wfbp"), (2, "sequential")])
@pytest.mark.parametrize(
    "how", ["accumulate", "no_sync", "synchronize", "clip", "clipped", "scaler", "skipped", "tokens", "tokens clipped"]
)
def test_ways_to_step(size, schedule, how):
    *models, alone = alike("branches", size + 1)
    plain, clip = OPTIMIZERS["adamw"](alone.parameters()), nn.utils.clip_grad_norm_
    for iteration in range(3):
        plain.zero_grad()
        for part in range(1 + (how in ("accumulate", "no_sync"))):
            for rank in range(size):
                if "tokens" in how:
                    (weighted(alone, iteration, rank) / size**2).backward()
                else:
                    (loss_of(alone, iteration + 10 * part, rank) / size).backward()
        if "clip" in how:
            clip(alone.parameters(), 0.05)
        if not (how == "skipped" and iteration == 1):
            plain.step()

    def loop(optimizer, own, transport):
        rank = transport.rank
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=how in ("scaler", "skipped"))
        for iteration in range(3):
            optimizer.zero_grad()
            if how == "accumulate":
                loss_of(own, iteration, rank).backward()
            if how == "no_sync":
                with optimizer.no_sync():
                    loss_of(own, iteration, rank).backward()
            more = 10 * (how in ("accumulate", "no_sync"))
            loss = weighted(own, iteration, rank) if "tokens" in how else loss_of(own, iteration + more, rank)
            bad = how == "skipped" and iteration == 1 and rank == size - 1
            scaler.scale(loss * float("inf") if bad else loss).backward()
            if how in ("synchronize", "clipped", "scaler", "skipped"):
                optimizer.synchronize()
            if how == "clipped":
                clip(own.parameters(), 0.05)
            if "tokens" in how:
                optimizer.step(tokens=1 + 2 * rank)
            else:
                scaler.step(optimizer)
                scaler.update()

    options = {"accumulate": 2} if how == "accumulate" else {"clip": 0.05} if how in ("clip", "tokens clipped") else {}

    each_trains(models, loop, "adamw", schedule=schedule, **options)
    close(models[0], alone)


@pytest.mark.parametrize("how", ["step", "synchronize", "after forward", "stale"])
@pytest.mark.parametrize(
    "options",
    [{}, {"update": "sharded", "fusion": "none"}, {"clip": 0.05}, {"schedule": "wfbp"}, {"accumulate": 2}],
    ids=str,
)
def test_an_empty_batch_needs_no_backward_pass(options, how):
    size, iterations = 3, range(4)
    if how == "synchronize" and "update" in options:
        return
    *models, alone = alike("branches", size + 1)
    plain, passes = OPTIMIZERS["adamw"](alone.parameters()), range(options.get("accumulate", 1))
    for iteration in iterations:  # rank 0 has none at first
        plain.zero_grad()
        ranks = [rank for rank in range(size) if rank != iteration % size]
        for rank in ranks * len(passes):
            (weighted(alone, iteration, rank) / sum(1 + 2 * each for each in ranks)).backward()
        if "clip" in options:
            nn.utils.clip_grad_norm_(alone.parameters(), options["clip"])
        plain.step()

    def loop(optimizer, own, transport):
        for iteration in iterations:
            empty = transport.rank == iteration % size
            if how != "stale" or not empty:
                optimizer.zero_grad()
            if how == "after forward" or not empty:
                losses = [weighted(own, iteration, transport.rank) for _ in passes]
            for loss in losses if not empty else ():
                loss.backward()
            tokens = torch.tensor(0) if empty else 1 + 2 * transport.rank
            if how == "synchronize":
                optimizer.synchronize(tokens=tokens)
                optimizer.step()
            else:
                optimizer.step(tokens=tokens)

    each_trains(models, loop, "adamw", **options)
    close(models[0], alone)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("options", [{}, {"update": "sharded", "fusion": "none"}, {"clip": 0.05}], ids=str)
def test_the_last_step_of_an_epoch_may_have_fewer_passes(size, options):
    *models, alone = alike("branches", size + 1)
    passes, plain = [1, 3, 3, 2, 3, 1], OPTIMIZERS["adamw"](alone.parameters())

    def train(module, optimizer, ranks, clip=None):
        for iteration, count in enumerate(passes):
            for part in range(count):
                for rank in ranks:
                    (loss_of(module, 10 * iteration + part, rank) / len(ranks)).backward()
            if clip:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()

    train(alone, plain, range(size), options.get("clip"))

    each_trains(models, lambda opt, own, each: train(own, opt, [each.rank]), "adamw", accumulate=3, **options)
    close(models[0], alone, 1e-9)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)
        self.register_buffer("odd", torch.zeros(3, dtype=torch.bool))
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        self.mean = 0.5 * self.mean + x.detach().mean(0)  # another tensor in each pass
        return self.last(self.norm(self.first(x)))


@pytest.mark.parametrize("broadcast", [True, False])
def test_buffers_are_those_of_rank_0(broadcast):
    models = alike(Normed, 3)

    def body(transport):
        own = models[transport.rank]
        with wrapped(transport, own, broadcast_buffers=broadcast) as optimizer:
            for iteration in range(3):
                step(optimizer, own, iteration, transport.rank)
            found = [each.clone().numpy().tobytes() for each in own.buffers()]
            assert own.norm.num_batches_tracked == 3
        return found

    found = run_loopback(3, body)
    assert (found[0] == found[1] == found[2]) == broadcast


def test_it_starts_from_rank_0():
    models = [Normed().double() for _ in range(3)]

    def body(transport):
        own = models[transport.rank]
        own.mean += transport.rank
        with wrapped(transport, own):
            return [each.clone().numpy().tobytes() for each in own.state_dict().values()]

    assert same(3, body)


@pytest.mark.parametrize("options", [{}, {"update": "sharded"}, {"fusion": "cut:128B"}], ids=str)
@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_a_checkpoint_goes_to_plain_pytorch_and_back_with_the_same_bits(kind, options):
    """All ranks have the same batch, so that averages are exact."""
    *models, alone = alike("branches", 3)
    kept = []

    def body(transport):
        own = models[transport.rank]
        with wrapped(transport, own, kind, **options) as optimizer:
            for iteration in range(2):
                step(optimizer, own, iteration, 0)
            state = copy.deepcopy({"model": own.state_dict(), "optimizer": optimizer.state_dict()})
            if transport.rank == 0:
                kept.append(copy.deepcopy(state))
            for iteration in (5, 6):
                step(optimizer, own, iteration, 0)
            through = bits(own)
            own.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            for iteration in (5, 6):
                step(optimizer, own, iteration, 0)
            assert bits(own) == through
        return through

    through = same(2, body)
    plain = OPTIMIZERS[kind](alone.parameters())
    alone.load_state_dict(kept[0]["model"])
    plain.load_state_dict(kept[0]["optimizer"])
    state = copy.deepcopy(kept[0])
    for iteration in (5, 6):
        step(plain, alone, iteration, 0)
    assert bits(alone) == through
    for each in models:  # and a new one begins where plain PyTorch was
        each.load_state_dict(state["model"])

    def make(own):
        optimizer = OPTIMIZERS[kind](own.parameters())
        optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        return optimizer

    def again(optimizer, own, _):
        for iteration in (5, 6):
            step(optimizer, own, iteration, 0)

    assert each_trains(models, again, make, **options) == through
