"""What a user does to a module between the steps of its session: it counts as in PyTorch, or all ranks refuse it."""

import copy
import io

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="adapters of PyTorch need torch (our extra 'torch')")

from torch import nn  # noqa: E402
from torch.optim.swa_utils import AveragedModel  # noqa: E402

from dear_mpi.collectives.program.errors import ArgumentError, CollectiveError  # noqa: E402
from dear_mpi.collectives.transports.loopback import run_loopback  # noqa: E402
from dear_mpi.kernels.optimizers import SGD  # noqa: E402
from tests.adapters.test_torch_session import whole  # noqa: E402
from tests.adapters.torch_models import LOSS, batch, new, values  # noqa: E402
from tests.training_checks import on_all  # noqa: E402

LATE = [  # ways to have updates under way between steps
    {"schedule": "dear"},
    {"schedule": "dear", "update": "sharded"},
    {"schedule": "dear-eager", "clip": 1e3},
    {"schedule": "bytescheduler", "accumulate": 2},
]
WAYS = [*LATE, {"schedule": "wfbp", "accumulate": 2}]
GATHERS = [{"schedule": "fsdp"}, {"schedule": "zero:overlap_param_gather=yes", "update": "sharded"}]
STEPS = 4


def name_of(case):
    return " ".join(map(str, case.values())) if isinstance(case, dict) else getattr(case, "__name__", None)


def opened(transport, name="branches", **options):
    module = new(name)
    return module, whole(module, transport, optimizer=SGD(0.5, momentum=0.9), fusion="none", **options)


def pytorch(change, name="branches", ranks=2):
    """The parameters after some steps of PyTorch, with a change after each."""
    module = new(name)
    optimizer = torch.optim.SGD(module.parameters(), 0.5, momentum=0.9)
    for iteration in range(STEPS):
        optimizer.zero_grad()
        for rank in range(ranks):
            x, y = map(torch.from_numpy, batch(iteration, rank))
            (LOSS(module(x), y) / (4 * ranks)).backward()
        optimizer.step()
        change(module)
    return values(module)


def zero_grad(module):
    module.zero_grad()


def zero_grad_in_place(module):
    module.zero_grad(set_to_none=False)


def zeros(module):
    for each in module.parameters():
        if each.grad is not None:
            each.grad.zero_()


def zeros_through_data(module):
    for each in module.parameters():
        if each.grad is not None:
            each.grad.data.zero_()


def other_zeros(module):
    for each in module.parameters():
        each.grad = torch.zeros_like(each)


def clamp_data(module):
    for each in module.parameters():
        each.data.clamp_(-0.1, 0.1)


def scale(module):
    with torch.no_grad():
        module.stem.weight.mul_(0.5)
        nn.init.zeros_(module.head.bias)


def load(module):
    module.load_state_dict({key: each / 2 for key, each in module.state_dict().items()})


CHANGES = [zero_grad, zero_grad_in_place, zeros, zeros_through_data, other_zeros, clamp_data, scale, load]


@pytest.mark.parametrize("options", WAYS, ids=name_of)
@pytest.mark.parametrize("change", CHANGES, ids=name_of)
def test_changes_between_steps_count_as_in_pytorch(options, change):
    def body(transport):
        module, session = opened(transport, **options)
        with session:
            for iteration in range(STEPS):
                session.step(*batch(iteration, transport.rank))
                change(module)
        return values(module)

    expected = pytorch(change)
    for found in on_all(body, 2):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def flat(tensors):
    return torch.cat([each.detach().flatten() for each in tensors]).numpy().copy()


def averaged(module):
    """A moving average over parameters, as of the swa_utils, that has one entry."""
    average = AveragedModel(module)
    average.update_parameters(module)
    return flat(average.module.parameters())


def output(module):
    module.eval()
    found = module(torch.ones(2, 6, dtype=torch.float64))
    module.train()
    return found.detach().numpy()


def part(module):
    return module.stem(torch.ones(2, 6, dtype=torch.float64)).detach().numpy()


def saved(module):
    torch.save(module.state_dict(), file := io.BytesIO())
    file.seek(0)
    return flat(torch.load(file).values())


READS = {
    "state_dict": lambda module: flat(module.state_dict().values()),
    "state_dict of a part": lambda module: flat(module.blocks.state_dict().values()),
    "forward": output,
    "forward of a part": part,
    "parameters": values,
    "data": lambda module: module.head.weight.data.numpy().copy(),
    "deepcopy": lambda module: flat(copy.deepcopy(module).parameters()),
    "average": averaged,
    "save": saved,
    "gradient": lambda module: module.head.weight.grad.numpy().copy(),
}


@pytest.mark.parametrize("options", LATE, ids=name_of)
def test_one_rank_reads_what_is_up_to_date_while_others_wait(options):
    """As a rank that writes a checkpoint; the others wait for it, and do not call the session."""

    def body(transport):
        module, session = opened(transport, **options)
        with session:
            for iteration, (name, read) in enumerate(READS.items()):
                for _ in range(2):  # the first iteration ends with a flush
                    session.step(*batch(iteration, transport.rank))
                found = read(module) if transport.rank == iteration % 3 else None
                transport.barrier()
                session.flush()
                if found is not None:
                    np.testing.assert_array_equal(found, read(module), name)
        return values(module).tobytes()

    assert len(set(run_loopback(3, body))) == 1


@pytest.mark.parametrize("options", GATHERS, ids=name_of)
def test_what_needs_other_ranks_is_refused_instead_of_a_hang(options):
    """These schedules start gathers when a layer needs them; on one rank alone that would wait for ever."""

    def body(transport):
        module, session = opened(transport, **options)
        with session:
            for iteration in range(2):  # the first one ends with a flush
                session.step(*batch(iteration, transport.rank))
            assert sum(each.numel() for each in module.parameters()) == values(new("branches")).size
            if transport.rank == 0:
                for read in READS.values():
                    with pytest.raises(CollectiveError, match=r"call session\.flush\(\) on all ranks before"):
                        read(module)
                module.train()
                module.zero_grad()
            session.flush()
            saved(module)
            return session.step(*batch(2, transport.rank))

    assert len(set(run_loopback(3, body))) == 1


def test_nothing_waits_for_what_neither_reads_nor_changes():
    """A loop that keeps its ``zero_grad`` has as much overlap as one without it."""

    def body(transport):
        module, session = opened(transport, schedule="dear")
        with session:
            for iteration in range(2):  # the first one ends with a flush
                session.step(*batch(iteration, transport.rank))
            module.zero_grad()
            assert [(each.shape, each.dtype, each.numel()) for each in module.parameters() if each.requires_grad]
            under_way = len(session.group.trainers["dear"].schedule.under_way)
            module.state_dict()
            return under_way, len(session.group.trainers["dear"].schedule.under_way)

    ((before, after),) = run_loopback(1, body)
    assert before > after == 0


def clip(module):
    nn.utils.clip_grad_norm_(module.parameters(), 0.1)


def halve(module):
    module.head.weight.grad.mul_(0.5)


def assign(module):
    module.head.weight.grad = torch.ones_like(module.head.weight)


def clamp_older_view(module):
    module.older.clamp_(-0.1, 0.1)


def zero_older_view(module):
    module.older_gradient.zero_()


def replace_head(module):
    module.head = nn.Linear(8, 5).double()


def replace_weight(module):
    module.head.weight = nn.Parameter(module.head.weight.detach().clone())


def hold_elsewhere(module):
    """Another module with the same parameters: no hook sees it start."""
    head = nn.Linear(8, 4).double()
    head.weight, head.bias, module.head = module.head.weight, module.head.bias, head


def add(module):
    module.blocks.append(nn.Linear(8, 8).double())


def remove(module):
    del module.unused


def tie(module):
    module.blocks[1].right.weight = module.blocks[0].right.weight


def freeze(module):
    module.head.requires_grad_(False)


def bind(module):
    module.head.weight.data = module.head.weight.data.clone()


LATER = "was changed when it had been sent: take clip=, or a hook on the parameter"
NEW = "begin a new session for that"
REFUSED = [
    (clip, LATER),
    (halve, "the gradient of parameter head.weight " + LATER),
    (assign, "the gradient of parameter head.weight " + LATER),
    (clamp_older_view, "parameter head.weight was changed through another view while its update was under way"),
    (zero_older_view, "the gradient of parameter head.weight " + LATER),
    (replace_head, f"(head.bias, head.weight: added, removed or replaced): {NEW}"),
    (replace_weight, f"(head.weight: added, removed or replaced): {NEW}"),
    (hold_elsewhere, f"(head.bias, head.weight: added, removed or replaced): {NEW}"),
    (add, f"(blocks.2.bias, blocks.2.weight: added, removed or replaced): {NEW}"),
    (remove, f"(unused.bias, unused.weight: added, removed or replaced): {NEW}"),
    (tie, f"(blocks.1.right.weight: added, removed or replaced): {NEW}"),
    (freeze, f"parameter head.weight is frozen since the session began: {NEW}"),
    (bind, "parameter head.weight: its value was bound to another array; change it in place (copy_)"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=name_of)
@pytest.mark.parametrize(("where", "options"), [({1}, LATE[0]), ({0, 1, 2}, LATE[0]), ({1}, WAYS[-1])])
def test_what_no_step_can_use_is_an_error_on_all_ranks(options, where, change, message):
    """Also if one rank alone does it."""
    if "older" in change.__name__ and options["schedule"] == "wfbp":
        pytest.skip("nothing is under way")

    def body(transport):
        module, session = opened(transport, **options)
        with session:
            session.step(*batch(0, transport.rank))
            weight = module.head.weight
            vars(module).update(older=weight.detach(), older_gradient=weight.grad.detach())
            session.step(*batch(1, transport.rank))
            if transport.rank in where:
                change(module)
            with pytest.raises(ArgumentError) as error:
                session.step(*batch(2, transport.rank))
            raise error.value

    said = on_all(body, 3)
    assert said == said[:1] * 3
    assert message in said[0]
    assert ("on rank 1" in said[0]) == (where == {1})


def test_modules_without_parameters_may_be_exchanged():
    """The probability of a dropout, for example."""

    def body(transport):
        module, session = opened(transport, "sequential")
        with session:
            session.step(*batch(0, transport.rank))
            module[1] = nn.Tanh()
            module.append(nn.Dropout(0.0))
            return session.step(*batch(1, transport.rank)), session.step(*batch(2, transport.rank))

    assert len(set(run_loopback(2, body))) == 1


OUTSIDE = r"backward\(\) was called outside of session\.step"


@pytest.mark.parametrize("options", WAYS, ids=name_of)
def test_a_backward_pass_outside_of_steps_is_refused(options):
    """At once, and by all ranks at the next step."""

    def body(transport):
        module, session = opened(transport, **options)
        x, y = map(torch.from_numpy, batch(0, transport.rank))
        with session:
            session.step(x, y)
            torch.autograd.grad(LOSS(module(x), y), [*module.stem.parameters()])
            LOSS(copy.deepcopy(module)(x), y).backward()  # no copy is in the session
            with pytest.raises(TypeError, match=r"cannot be pickled during a session: save its state_dict\(\)"):
                torch.save(module, io.BytesIO())
            session.step(x, y)
            if transport.rank == 1:
                with pytest.raises(ValueError, match=OUTSIDE):
                    LOSS(module(x), y).backward()
            with pytest.raises(ArgumentError, match=OUTSIDE):
                session.step(x, y)
        LOSS(module(x), y).backward()
        torch.save(module, io.BytesIO())

    run_loopback(2, body)


@pytest.mark.parametrize("options", LATE, ids=name_of)
def test_after_an_error_the_module_is_as_without_a_session(options):
    def body(transport):
        module, session = opened(transport, **options)
        with pytest.raises(ZeroDivisionError), session:  # noqa: PT012
            for iteration in range(2):
                session.step(*batch(iteration, transport.rank))
            raise ZeroDivisionError
        assert {type(each) for each in module.parameters()} == {nn.Parameter}
        assert {type(each.grad) for each in module.parameters()} == {torch.Tensor}
        LOSS(module(torch.from_numpy(batch(1, 0)[0])), torch.zeros(4, dtype=torch.int64)).backward()
        return values(module)

    one, other = run_loopback(2, body)
    np.testing.assert_array_equal(one, other)
