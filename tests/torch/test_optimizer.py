"""``DistributedOptimizer`` on ranks that are threads, compared with plain PyTorch on the whole batch."""

import copy

import pytest

torch = pytest.importorskip("torch")

import dear_mpi.torch as dear  # noqa: E402
from dear_mpi.collectives.transports.loopback import run_loopback  # noqa: E402

F = torch.nn.functional
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
        torch.testing.assert_close(value, wanted, rtol=tolerance, atol=tolerance, msg=name)


def bits(model):
    return b"".join(each.detach().numpy().tobytes() for each in model.parameters())


def run(size, body):
    """Run ``body(transport)`` on threads; its results must have the same bits on all ranks."""
    found = run_loopback(size, body)
    assert all(each == found[0] for each in found)
    return found[0]


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=0.01),
    "rprop": lambda parameters: torch.optim.Rprop(parameters),
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
        state = copy.deepcopy(optimizer.state_dict())
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


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


def trained(transport, own, loss_of, loop, **options):
    optimizer = dear.DistributedOptimizer(OPTIMIZERS["adamw"](own.parameters()), own, comm=transport, **options)
    loop(
        optimizer,
        own,
        lambda step, rows=ROWS: loss_of(own, slice(step + rows * transport.rank, step + rows * (transport.rank + 1))),
    )
    optimizer.close()
    return bits(own)


def simple(optimizer, own, loss):
    for step in range(3):
        optimizer.zero_grad()
        loss(step).backward()
        optimizer.step()


def reference(model, loss_of, size, steps=3, before=lambda model: None, parts=1):
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(parts):
            for rank in range(size):
                (loss_of(model, slice(step + part + ROWS * rank, step + part + ROWS * (rank + 1))) / size).backward()
        before(model)
        optimizer.step()


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("how", ["accumulate", "no_sync", "synchronize", "clip", "clipped after", "scaler", "sums"])
def test_ways_to_step(size, how):
    *models, alone = alike(mlp, size + 1)
    clip = torch.nn.utils.clip_grad_norm_
    reference(
        alone,
        mlp_loss,
        size,
        parts=2 if how in ("accumulate", "no_sync") else 1,
        before=lambda model: clip(model.parameters(), 0.05) if "clip" in how else None,
    )

    def loop(optimizer, own, loss):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(3):
            optimizer.zero_grad()
            if how == "accumulate":
                loss(step).backward()
                loss(step + 1).backward()
                optimizer.step()
            elif how == "no_sync":
                with optimizer.no_sync():
                    loss(step).backward()
                loss(step + 1).backward()
                optimizer.step()
            elif how == "scaler":
                scaler.scale(loss(step)).backward()
                optimizer.synchronize()
                scaler.step(optimizer)
                scaler.update()
            elif how == "sums":
                (loss(step) * ROWS).backward()
                optimizer.step(tokens=ROWS)
            else:
                loss(step).backward()
                if how in ("synchronize", "clipped after"):
                    optimizer.synchronize()
                if how == "clipped after":
                    clip(own.parameters(), 0.05)
                optimizer.step()

    options = {"accumulate": 2} if how == "accumulate" else {"clip": 0.05} if how == "clip" else {}
    run(size, lambda transport: trained(transport, models[transport.rank], mlp_loss, loop, **options))
    close(models[0], alone, 1e-6 if how == "clip" else 1e-12)  # torch divides by norm + 1e-6


def test_running_means_are_those_of_rank_0():
    size = 3
    *models, alone = alike(Normed, size + 1)
    for step in range(3):
        alone(torch.linspace(-1, 1, 384).reshape(64, 6).double()[step : step + ROWS].sin())  # rank 0's part

    def body(transport):
        own = models[transport.rank]
        trained(transport, own, mlp_loss, simple)
        return own.norm.running_mean.numpy().tobytes()

    run(size, body)
    assert models[0].norm.num_batches_tracked == 3


def test_whoever_looks_between_steps_sees_new_parameters():
    size = 2
    *models, alone = alike(mlp, size + 1)
    wanted = OPTIMIZERS["adamw"](alone.parameters())
    seen = []
    for step in range(6):
        wanted.zero_grad()
        mlp_loss(alone, slice(step, step + ROWS * size)).backward()
        wanted.step()
        seen.append(copy.deepcopy(alone.state_dict()))

    def loop(optimizer, own, loss):
        def look(step):
            if step == 0:
                return own.state_dict()
            if step == 1:
                return copy.deepcopy(own).state_dict()
            if step == 2:
                with torch.no_grad():
                    own(torch.zeros(2, 6).double())
                return {name: each.clone() for name, each in own.named_parameters()}
            return {name: torch.as_tensor(each.detach().numpy().copy()) for name, each in own.named_parameters()}

        for step in range(6):
            optimizer.zero_grad()
            loss(step).backward()
            optimizer.step()
            for name, value in look(step).items() if step < 4 else ():
                torch.testing.assert_close(value, seen[step][name], rtol=1e-12, atol=1e-12)

    run(size, lambda transport: trained(transport, models[transport.rank], mlp_loss, loop))


@pytest.mark.parametrize("options", [{}, {"update": "sharded"}], ids=str)
def test_a_checkpoint_goes_to_plain_pytorch_and_back(options):
    size = 2
    *models, alone = alike(mlp, size + 1)
    kept = {}

    def first(transport):
        own = models[transport.rank]
        optimizer = dear.DistributedOptimizer(OPTIMIZERS["adamw"](own.parameters()), own, comm=transport, **options)
        for step in range(2):
            optimizer.zero_grad()
            mlp_loss(own, slice(step, step + ROWS)).backward()  # the same on all ranks
            optimizer.step()
        state = copy.deepcopy(optimizer.state_dict())
        if transport.rank == 0:
            kept.update(copy.deepcopy({"model": own.state_dict(), "optimizer": state}))
        optimizer.zero_grad()
        mlp_loss(own, slice(5, 5 + ROWS)).backward()
        optimizer.step()
        optimizer.load_state_dict(copy.deepcopy(state))
        own.load_state_dict(
            copy.deepcopy(kept["model"]) if transport.rank == 0 else {n: v.clone() for n, v in kept["model"].items()}
        )
        optimizer.zero_grad()
        mlp_loss(own, slice(7, 7 + ROWS)).backward()
        optimizer.step()
        optimizer.close()
        return bits(own)

    run(size, first)
    alone.load_state_dict(kept["model"])
    plain = OPTIMIZERS["adamw"](alone.parameters())
    plain.load_state_dict(kept["optimizer"])
    mlp_loss(alone, slice(7, 7 + ROWS)).backward()
    plain.step()
    close(models[0], alone)


def test_misuse():
    """Each message names what to do."""

    def refused(match, *, make=mlp, **options):
        def deco(change):
            models = alike(make, 2)

            def body(transport):
                own = models[transport.rank]
                with pytest.raises(Exception, match=match) as caught:
                    change(
                        transport,
                        own,
                        lambda kind="sgd", **more: dear.DistributedOptimizer(
                            OPTIMIZERS[kind](own.parameters()) if isinstance(kind, str) else kind,
                            own,
                            comm=transport,
                            **options,
                            **more,
                        ),
                    )
                return type(caught.value).__name__

            run(2, body)

        return deco

    def step(optimizer, own):
        optimizer.zero_grad()
        mlp_loss(own, slice(0, ROWS)).backward()
        optimizer.step()

    @refused("was changed after backward.* call optimizer.synchronize")
    def clipped(transport, own, make):
        optimizer = make()
        step(optimizer, own)
        mlp_loss(own, slice(0, ROWS)).backward()
        torch.nn.utils.clip_grad_norm_(own.parameters(), 0.1)
        optimizer.step()

    @refused("added, removed or replaced")
    def replaced(transport, own, make):
        optimizer = make()
        step(optimizer, own)
        own[4] = torch.nn.Linear(16, 3).double()
        step(optimizer, own)

    @refused("0.bias was frozen")
    def frozen(transport, own, make):
        optimizer = make()
        step(optimizer, own)
        own[0].bias.requires_grad_(False)
        step(optimizer, own)

    @refused("2 parameters that are not the model's")
    def other(transport, own, make):
        make(torch.optim.SGD(torch.nn.Linear(2, 2).parameters()))

    @refused("no new gradients: there was no backward")
    def twice(transport, own, make):
        optimizer = make()
        step(optimizer, own)
        optimizer.step()

    @refused("backward.. was called twice before step.*accumulate=2")
    def backward_twice(transport, own, make):
        make()
        mlp_loss(own, slice(0, ROWS)).backward()
        mlp_loss(own, slice(0, ROWS)).backward()

    @refused("backward.. was called 1 of 2 times", accumulate=2)
    def too_few(transport, own, make):
        optimizer = make()
        mlp_loss(own, slice(0, ROWS)).backward()
        optimizer.step()

    @refused("optimizer LBFGS looks at all parameters")
    def lbfgs(transport, own, make):
        make(torch.optim.LBFGS(own.parameters()))

    @refused("must be the same on all ranks")
    def different(transport, own, make):
        if transport.rank:
            own.append(torch.nn.Linear(3, 3).double())
        optimizer = make()
        step(optimizer, own)

    @refused("has a compiled one")
    def compiled(transport, own, make):
        own.compile()
        make()

    @refused("synchronize.. needs update='full'", update="sharded")
    def sharded(transport, own, make):
        optimizer = make()
        mlp_loss(own, slice(0, ROWS)).backward()
        optimizer.synchronize()

    @refused("schedule 'wfbp' updates shards while backward", update="sharded", schedule="wfbp")
    def early(transport, own, make):
        step(make(), own)

    @refused("tokens must be given to step.. on all ranks")
    def tokens(transport, own, make):
        optimizer = make()
        mlp_loss(own, slice(0, ROWS)).backward()
        optimizer.step(**({"tokens": 3} if transport.rank else {}))
