"""Modules of PyTorch, on threads; tests/mpi/test_torch.py has them beside DDP."""

import copy
import hashlib

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="adapters of PyTorch need torch (our extra 'torch')")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from dear_mpi.adapters.torch_session import TorchSession  # noqa: E402
from dear_mpi.collectives.program.errors import AgreedError  # noqa: E402
from dear_mpi.collectives.transports.loopback import run_loopback  # noqa: E402
from dear_mpi.kernels.optimizers import SGD, Adam  # noqa: E402
from dear_mpi.training import TrainingError  # noqa: E402
from dear_mpi.training.profile import read_profile  # noqa: E402
from dear_mpi.training.schedules import SCHEDULES  # noqa: E402
from tests.adapters.torch_models import LOSS, MODELS, TEMPLATES, Branches, batch, new, plain_losses, values  # noqa: E402
from tests.training_checks import on_all  # noqa: E402


def whole(module, transport, **options):
    return TorchSession(module, LOSS, transport, example=batch(0, 0)[0], **options)


def trained(session, module, *, rank, iterations=6, rows=4):
    """Losses, and a checksum of the parameters."""
    with session:
        losses = [session.step(*batch(iteration, rank, rows)) for iteration in range(iterations)]
        session.flush()
        return losses, hashlib.sha256(values(module).tobytes()).hexdigest(), values(module)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_losses_and_parameters_are_those_of_pytorch(name, ranks):
    """In fp64, so that what differs by more than rounding is seen. BatchNorm sees its own rank's part alone."""

    def body(transport):
        module = new(name)
        session = whole(module, transport, optimizer=SGD(0.1, momentum=0.9), fusion="cut:256B")
        return trained(session, module, rank=transport.rank)

    if name == "attention" and ranks > 1:
        pytest.skip("BatchNorm has other statistics for the whole batch")
    module = new(name)
    used = [each for each in module.parameters() if each.requires_grad]
    expected = plain_losses(module, torch.optim.SGD(used, 0.1, momentum=0.9), 6, ranks)
    for losses, _, found in on_all(body, ranks):
        np.testing.assert_allclose(losses, expected, rtol=1e-10)
        np.testing.assert_allclose(found, values(module), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_schedule_gives_the_same_bits(name, ranks):
    """At equal algorithm, also with buckets cut anywhere."""

    def body(transport, schedule, fusion):
        module = new(name)
        session = whole(module, transport, schedule=schedule, fusion=fusion, algorithm="ordered", optimizer=Adam(0.01))
        return trained(session, module, rank=transport.rank)[1]

    found = set()
    cases = [(schedule, "none") for schedule in (SCHEDULES if ranks == 2 else ("sequential", "dear"))]
    cases += [("dear", "cut:128B"), ("sequential", "25MB")]
    for case in cases:
        found.update(on_all(lambda transport, each=case: body(transport, *each), ranks))
    assert len(found) == 1


OPTIONS = [
    {"wire": "fp32"},
    {"clip": 0.5},
    {"accumulate": 3},
    {"update": "sharded"},
    {"update": "sharded", "wire": "fp32", "clip": 0.5, "loss_scale": "dynamic", "accumulate": 2},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["branches", "tied"])
def test_the_options_of_a_session_work(name, options):
    def body(transport, schedule):
        module = new(name)
        session = whole(module, transport, schedule=schedule, fusion="none", algorithm="ordered", **options)
        return trained(session, module, rank=transport.rank, rows=5)

    some = ("sequential", "dear", "dear-eager")
    answers = [each for schedule in some for each in on_all(lambda transport, s=schedule: body(transport, s), 2)]
    assert len({digest for _, digest, _ in answers}) == 1
    if set(options) == {"accumulate"}:  # which changes nothing but rounding
        module = new(name)
        plain_losses(module, torch.optim.SGD(module.parameters(), SGD().lr), 6, 2, rows=5)
        np.testing.assert_allclose(answers[0][2], values(module), rtol=1e-9, atol=1e-12)


def test_parameters_and_gradients_are_views_of_the_line():
    def body(transport):
        module = new("branches")
        with whole(module, transport, schedule="sequential") as session:
            session.step(*batch(0, transport.rank))
            for each in module.parameters():
                for tensor, line in ((each.data, session.group.arena.values), (each.grad, session.group.arena.grads)):
                    assert 0 <= tensor.data_ptr() - line.ctypes.data < line.nbytes
        return True

    assert on_all(body, 2) == [True, True]


def test_reductions_start_while_autograd_still_runs():
    def body(transport):
        module, events = new("branches"), []
        with whole(module, transport, schedule="wfbp", fusion="none") as session:
            session.step(*batch(0, transport.rank))
            start = session.group.fabric.start
            session.group.fabric.start = lambda *asked: (events.append("start"), start(*asked))[1]
            module.stem.weight.register_hook(lambda gradient: events.append("stem"))
            session.step(*batch(1, transport.rank))
            assert len(events) == len(session.group.buckets) + 1
        return events

    (events,) = on_all(body, 1)
    assert events.index("stem") >= 5
    assert events[-1] == "start"


def uses(module):
    def body(transport):
        with whole(module, transport) as session:
            return [[each.name for each in layer.parameters if each.trained] for layer in session.layers]

    (found,) = on_all(body, 1)
    return found


def test_uses_are_in_the_order_of_the_forward_pass():
    """What nobody uses comes first, where its zero gradient keeps nothing waiting; a parent's own when it starts."""
    found = uses(new("branches"))
    assert found[0] == ["scale", "unused.weight", "unused.bias"]
    assert found[1] == ["stem.weight", "stem.bias"]
    assert found[2:5] == [
        ["blocks.0.left.0.weight", "blocks.0.left.0.bias"],
        ["blocks.0.left.2.weight", "blocks.0.left.2.bias"],
        ["blocks.0.right.weight"],
    ]
    assert found[-1] == ["head.weight", "head.bias"]


def test_what_another_module_takes_is_needed_there():
    attention = ["attention.in_proj_weight", "attention.in_proj_bias", "attention.out_proj.weight"]
    assert uses(new("attention"))[1] == [*attention, "attention.out_proj.bias"]

    class Early(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.last = nn.Linear(6, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.last(self.stem(x) @ self.last.weight)

    assert uses(Early().double()) == [["stem.weight", "stem.bias", "last.weight"], ["last.bias"]]


class Choosy(nn.Module):
    """Takes one way or another, by the data: ranks and iterations differ, and the example has seen one of them."""

    def __init__(self):
        super().__init__()
        self.stem, self.odd, self.even, self.head = (nn.Linear(*each) for each in [(6, 8), (8, 8), (8, 8), (8, 4)])

    def forward(self, x):
        x = self.stem(x)
        ways = [self.odd, self.even] if x.sum() > 0 else [self.even]
        for way in ways:
            x = torch.tanh(way(x))
        return self.head(x)


def test_ranks_may_take_different_ways():
    torch.manual_seed(0)
    template = Choosy().double()

    def body(transport, schedule):
        module = Choosy().double()
        module.load_state_dict(template.state_dict())
        session = whole(module, transport, schedule=schedule, fusion="none", algorithm="ordered")
        return trained(session, module, rank=transport.rank, iterations=8)

    answers = [each for schedule in SCHEDULES for each in on_all(lambda transport, s=schedule: body(transport, s), 3)]
    assert len({digest for _, digest, _ in answers}) == 1
    expected = []
    optimizer = torch.optim.SGD(template.parameters(), SGD().lr)
    for iteration in range(8):  # each rank's part on its own way
        optimizer.zero_grad()
        parts = [batch(iteration, rank) for rank in range(3)]
        loss = sum(LOSS(template(torch.from_numpy(x)), torch.from_numpy(y)) for x, y in parts) / 12
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    np.testing.assert_allclose(answers[0][0], expected, rtol=1e-10)


@pytest.mark.parametrize(("sparse", "accumulate"), [(False, 1), (True, 1), (True, 2)])
def test_inputs_may_be_integers_and_gradients_sparse(sparse, accumulate):
    torch.manual_seed(0)
    template = nn.Sequential(nn.Embedding(9, 4, sparse=sparse), nn.Flatten(), nn.Linear(12, 4)).double()
    x = [np.random.default_rng(rank).integers(0, 9, (5, 4, 3)) for rank in range(2)]

    def body(transport):
        module, mine = copy.deepcopy(template), x[transport.rank]
        with TorchSession(module, LOSS, transport, example=x[0][0], accumulate=accumulate) as session:
            return [session.step(each, each[:, 0] % 4) for each in mine]

    answers = on_all(body, 2)
    optimizer, expected = torch.optim.SGD(template.parameters(), SGD().lr), []
    for each in map(torch.from_numpy, np.concatenate(x, axis=1)):
        optimizer.zero_grad()
        loss = LOSS(template(each), each[:, 0] % 4) / 8
        expected.append(loss.item())
        loss.backward()
        optimizer.step()
    for losses in answers:
        np.testing.assert_allclose(losses, expected, rtol=1e-10)


class Constant(torch.autograd.Function):
    """A linear layer that returns no gradient for its weight."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(weight)
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx, dy):
        return dy @ ctx.saved_tensors[0], None, dy.sum(0)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_function_may_return_none_for_a_gradient(accumulate):
    """Its gradient is then zero, as if nobody used the parameter."""

    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.fixed, self.head = (nn.Linear(*each) for each in [(6, 8), (8, 8), (8, 4)])

        def forward(self, x):
            return self.head(Constant.apply(self.stem(x), self.fixed.weight, self.fixed.bias))

    torch.manual_seed(0)
    template = Partly().double()

    def body(transport):
        module = copy.deepcopy(template)
        session = whole(module, transport, schedule="dear", fusion="none", accumulate=accumulate)
        losses, _, _ = trained(session, module, rank=transport.rank)
        assert torch.equal(module.fixed.weight, template.fixed.weight)
        return losses

    module = copy.deepcopy(template)
    expected = plain_losses(module, torch.optim.SGD(module.parameters(), SGD().lr), 6, 2)
    for losses in on_all(body, 2):
        np.testing.assert_allclose(losses, expected, rtol=1e-10)


def test_the_example_leaves_no_trace():
    """Neither in running means, nor in the generator of random numbers, nor in a hook."""
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).double()
    before, state = {key: each.clone() for key, each in module.state_dict().items()}, torch.get_rng_state()

    def body(transport):
        with whole(module, transport):
            assert all(bool((each == before[key]).all()) for key, each in module.state_dict().items())
            assert (torch.get_rng_state() == state).all()
        return sum(len(each._forward_pre_hooks) for each in module.modules())

    assert on_all(body, 1) == [0]
    assert not any(each._post_accumulate_grad_hooks for each in module.parameters())


def test_the_example_and_buffers_that_are_replaced_are_as_before():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(6, 4)
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, x):
            x.sub_(1)
            self.mean = 0.5 * self.mean + x.mean(0)
            return self.last(x)

    module, example = Scaled().double(), np.ones((2, 6))
    mean = module.mean

    def body(transport):
        with TorchSession(module, LOSS, transport, example=example):
            return bool((example == 1).all()) and module.mean is mean and not mean.any().item()

    assert on_all(body, 1) == [True]


@pytest.mark.filterwarnings("ignore")  # PyTorch has a newer weight_norm
def test_hooks_that_were_there_before_see_new_values():
    """A weight was computed by the old weight_norm before the last update was there."""
    start = nn.Linear(6, 4).double()

    def body(transport, schedule):
        linear = nn.Linear(6, 4).double()
        linear.load_state_dict(start.state_dict())  # all ranks draw from one generator
        module = torch.nn.utils.weight_norm(linear)
        return trained(whole(module, transport, schedule=schedule, algorithm="ordered"), module, rank=0)[:2]

    ways = [on_all(lambda transport, s=schedule: body(transport, s), 2) for schedule in ("wfbp", "dear")]
    assert ways[0] == ways[1]


def test_checkpoints_of_activations_work_unless_they_are_reentrant():
    class Checkpointed(Branches):
        reentrant = False

        def forward(self, x):
            x = self.stem(x)
            for block in [*self.blocks] * (2 if self.reentrant else 1):
                x = checkpoint(block, x, use_reentrant=self.reentrant)
            return self.head(x * self.scale)

    def body(transport):
        module = Checkpointed().double()
        module.load_state_dict(TEMPLATES["branches"].state_dict())
        return trained(whole(module, transport), module, rank=transport.rank)

    ((losses, _, _),) = on_all(body, 1)
    module = new("branches")
    np.testing.assert_allclose(losses, plain_losses(module, torch.optim.SGD(module.parameters(), SGD().lr), 6, 1))
    Checkpointed.reentrant = True
    with pytest.raises(ValueError, match="has a gradient twice in one backward pass: checkpoints must be of the kind"):
        run_loopback(1, body)


class Half(nn.Module):
    """A layer in bf16, as its input is, and one that may be in fp32."""

    def __init__(self, last):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8, dtype=torch.bfloat16), nn.Linear(8, 4, dtype=last)

    def forward(self, x):
        x = self.first(x)
        return self.last(x.to(self.last.weight.dtype)).float()


@pytest.mark.parametrize(("last", "line"), [(torch.bfloat16, "bfloat16"), (torch.float32, "float32")])
def test_bf16_and_mixed_types_are_trained(last, line):
    """Where a parameter has another type than the line, it stays in its own memory."""

    def body(transport, schedule):
        torch.manual_seed(1)
        module, inputs = Half(last), torch.from_numpy(np.random.default_rng(0).standard_normal((8, 6))).bfloat16()
        with TorchSession(module, LOSS, transport, example=inputs, schedule=schedule, optimizer=SGD(0.1)) as session:
            losses = [session.step(inputs, np.arange(8) % 4) for _ in range(30)]
            assert session.group.arena.values.dtype.name == line
            return losses[-1] < 0.9 * losses[0]

    assert [on_all(lambda transport, s=schedule: body(transport, s), 1) for schedule in ("wfbp", "dear")] == [
        [True]
    ] * 2


def test_a_checkpoint_goes_on(tmp_path):
    def body(transport, first, last):
        module = new("branches")
        with whole(module, transport, optimizer=Adam(0.01)) as session:
            if first:
                session.resume(tmp_path / "run.npz")
            for iteration in range(first, last):
                session.step(*batch(iteration, transport.rank))
            session.save(tmp_path / "run.npz")
            return values(module).tobytes()

    through = on_all(lambda transport: body(transport, 0, 6), 2)
    on_all(lambda transport: body(transport, 0, 3), 2)
    assert on_all(lambda transport: body(transport, 3, 6), 2) == through


def test_a_loss_that_is_not_finite_is_said_by_all():
    def body(transport):
        module = new("sequential")
        try:
            trained(whole(module, transport, optimizer=SGD(1e300)), module, rank=transport.rank)
        except TrainingError as error:
            return str(error)

    said = on_all(body, 2)
    assert said[0] == said[1]
    assert "not a number" in said[0] or "the loss is nan" in said[0]


class Dropped(nn.Module):
    """A model with what a profile must leave as it is: running means, random numbers, gradients; and a tied weight."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.drop = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.head = nn.Linear(6, 6, bias=False)

    def forward(self, x):
        y = self.norm(self.stem(x))
        return self.head(self.drop(torch.relu(y))) @ self.stem.weight


def test_a_profile_of_a_module_changes_nothing(tmp_path):
    torch.manual_seed(3)
    module, x, targets = Dropped(), torch.randn(8, 4), torch.randint(4, (8,))
    module(x).sum().backward()
    before = copy.deepcopy((module.state_dict(), [each.grad for each in module.parameters()], torch.get_rng_state()))
    addresses = [each.data_ptr() for each in module.parameters()]
    profile = TorchSession.profile(module, LOSS, x, targets, optimizer=Adam(), iterations=3)
    after = (module.state_dict(), [each.grad for each in module.parameters()], torch.get_rng_state())
    for was, now in zip(before, after, strict=True):
        pairs = zip(was.values(), now.values(), strict=True) if isinstance(was, dict) else zip(was, now, strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
    assert [each.data_ptr() for each in module.parameters()] == addresses
    assert (profile.model, profile.ranks, profile.batch, profile.schedule) == ("Dropped", 1, 8, "sequential")
    assert [(use.name, [tensor.shape for tensor in use.tensors]) for use in profile.uses] == [
        ("stem", [(6, 4), (6,)]),
        ("norm", [(6,), (6,)]),
        ("head", [(6, 6)]),
    ]
    assert all(seconds > 0 for seconds in (*profile.passes_s, profile.update_s_per_element, profile.rest_s))
    assert profile.forward_flops == 2 * 8 * (4 * 6 + 6 * 6 + 6 * 4)
    profile.write(tmp_path / "profile.json")
    assert read_profile(tmp_path / "profile.json") == profile


def test_what_cannot_be_profiled_is_told():
    module, (x, targets) = nn.Linear(4, 4), (torch.randn(8, 4), torch.randint(4, (8,)))
    with pytest.raises(AgreedError, match="eval mode"):
        TorchSession.profile(module.eval(), LOSS, x, targets)
    with pytest.raises(AgreedError, match="loss must be the sum over its examples"):
        TorchSession.profile(module.train(), nn.CrossEntropyLoss(), x, targets)
    with pytest.raises(ValueError, match="a profile needs an iteration"):
        TorchSession.profile(module, LOSS, x, targets, iterations=0)


def test_an_embedding_that_scales_its_rows_in_forward_is_named():
    """Each rank those that it looks up: at the end all have another model."""
    same = nn.Sequential(nn.Embedding(12, 4, max_norm=0.5), nn.Flatten(), nn.Linear(8, 4))

    def body(transport):
        module = copy.deepcopy(same)
        x = torch.arange(4).reshape(2, 2) + 4 * transport.rank
        with TorchSession(module, LOSS, transport, example=torch.zeros(2, 2, dtype=torch.int64)) as session:
            session.step(x, np.arange(2))

    said = on_all(body, 3)
    assert said == said[:1] * 3
    assert "as where forward changes a parameter in place: parameter 0 (0.weight) must be the same on all" in said[0]


class Shaped(nn.Module):
    """The output of a module in another shape."""

    def __init__(self, below, shape):
        super().__init__()
        self.below, self.shape = below, shape

    def forward(self, x):
        return self.shape(self.below(x))


def tokens(shape):
    return Shaped(nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11)), shape)


def near_boxes(outputs, targets):
    """Each target is (image, x, y)."""
    return ((outputs[targets[:, 0].long()] - targets[:, 1:]) ** 2).sum()


ENTROPY = nn.CrossEntropyLoss(reduction="sum")
OTHER_TARGETS = {
    "boxes": (
        lambda: nn.Linear(8, 2),
        near_boxes,
        (2, 8),
        torch.tensor([[0.0, 1, 2], [0, 3, 4], [1, 5, 6], [1, 7, 8]]),
    ),
    "flat tokens": (lambda: tokens(lambda y: y.flatten(0, 1)), ENTROPY, (4, 6), torch.arange(24) % 11),
    "time first": (lambda: Shaped(nn.LSTM(8, 3), lambda y: y[0][-1]), ENTROPY, (5, 7, 8), torch.arange(7) % 3),
    "fewer": (lambda: Shaped(nn.Linear(8, 3), lambda y: y.mean(0, True)), ENTROPY, (5, 8), torch.tensor([2])),
}


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", OTHER_TARGETS)
def test_targets_need_not_begin_with_the_axis_of_examples(name, ranks):
    make, loss, shape, targets = OTHER_TARGETS[name]
    torch.manual_seed(0)
    template = make()
    x = torch.randint(11, shape) if name == "flat tokens" else torch.randn(shape)
    right = float(loss(template(x), targets).detach()) / targets.numel()

    def body(transport):
        with TorchSession(copy.deepcopy(template), loss, transport, example=x) as session:
            return session.step(x, targets)

    np.testing.assert_allclose(on_all(body, ranks), right, rtol=1e-5)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_loss_is_divided_by_the_targets_that_count(ranks, accumulate):
    """As sum(losses) / valid targets of all ranks in PyTorch, also where a rank has none."""
    torch.manual_seed(3)
    template = tokens(lambda y: y.transpose(1, 2))
    batches = [[tuple(torch.randint(11, (2, 4, 6)).unbind()) for _ in range(ranks)] for _ in range(4)]
    for batch_of_all in batches:
        for rank, (_, targets) in enumerate(batch_of_all):
            targets[torch.rand(4, 6) < rank / (ranks - 1)] = -100
    totals = [sum(int((targets != -100).sum()) for _, targets in each) for each in batches]
    plain = copy.deepcopy(template)
    optimizer = torch.optim.SGD(plain.parameters(), 0.5)
    losses = []
    for batch_of_all, total in zip(batches, totals, strict=True):
        optimizer.zero_grad()
        loss = sum(ENTROPY(plain(x), targets) for x, targets in batch_of_all) / total
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    def body(transport):
        module = copy.deepcopy(template)
        options = {"optimizer": SGD(0.5), "accumulate": accumulate}
        with TorchSession(module, ENTROPY, transport, example=batches[0][0][0], **options) as session:
            found = [
                session.step(*each[transport.rank], total=torch.tensor(total))
                for each, total in zip(batches, totals, strict=True)
            ]
        return found, values(module)

    for found, parameters in on_all(body, ranks):
        np.testing.assert_allclose(found, losses, rtol=1e-4)
        np.testing.assert_allclose(parameters, values(plain), atol=1e-5)
