"""What a user does to a module between steps counts as in PyTorch, or is refused."""

import copy
import io

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="DistributedOptimizer needs torch (our extra 'torch')")

from torch import nn  # noqa: E402
from torch.optim.swa_utils import AveragedModel  # noqa: E402

from dear_mpi.collectives.program.errors import CollectiveError  # noqa: E402
from dear_mpi.collectives.transports.loopback import run_loopback  # noqa: E402
from tests.torch.looping import OPTIMIZERS, alike, bits, close, each_trains, loss_of, reference, same, step, wrapped  # noqa: E402
from tests.torch.models import values  # noqa: E402

LATE = [  # ways to have updates in flight between steps
    {"schedule": "dear"},
    {"schedule": "dear", "update": "sharded"},
    {"schedule": "dear-eager", "clip": 1e3},
    {"schedule": "bytescheduler"},
]
STEPS = 4


def name_of(case):
    return " ".join(map(str, case.values())) if isinstance(case, dict) else getattr(case, "__name__", None)


def zero_grad(module):
    module.zero_grad()


def zero_grad_in_place(module):
    module.zero_grad(set_to_none=False)


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


@pytest.mark.parametrize("options", [*LATE, {"schedule": "wfbp"}], ids=name_of)
@pytest.mark.parametrize("change", [zero_grad, zero_grad_in_place, other_zeros, clamp_data, scale, load], ids=name_of)
def test_changes_between_steps_count_as_in_pytorch(options, change):
    *models, alone = alike("branches", 3)
    reference(alone, OPTIMIZERS["sgd"](alone.parameters()), 2, STEPS, change=lambda: change(alone))

    def drive(optimizer, own, transport):
        for iteration in range(STEPS):
            step(optimizer, own, iteration, transport.rank)
            change(own)

    each_trains(models, drive, fusion="none", **options)
    close(models[0], alone, 1e-9)


@pytest.mark.parametrize("options", [*LATE, {"schedule": "wfbp"}, {"schedule": "zero"}], ids=name_of)
def test_states_after_backward_are_those_after_the_last_step_and_passes_may_be_dropped(options):
    *models, alone = alike("branches", 3)
    reference(alone, OPTIMIZERS["adamw"](alone.parameters()), 2, STEPS)

    def drive(optimizer, own, transport):
        for iteration in range(STEPS):
            optimizer.zero_grad()
            loss_of(own, iteration, transport.rank).backward()
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            optimizer.flush()
            optimizer.step()
        optimizer.zero_grad()
        loss_of(own, STEPS, transport.rank).backward()
        optimizer.close()

    each_trains(models, drive, "adamw", fusion="none", **options)
    close(models[0], alone, 1e-9)


def flat(tensors):
    return torch.cat([each.detach().flatten() for each in tensors]).numpy().copy()


def averaged(module):
    average = AveragedModel(module)
    average.update_parameters(module)
    return flat(average.module.parameters())


def output(module):
    module.eval()
    with torch.no_grad():
        found = module(torch.ones(2, 6, dtype=torch.float64))
    module.train()
    return found.numpy()


def saved(module):
    torch.save(module.state_dict(), file := io.BytesIO())
    file.seek(0)
    return flat(torch.load(file).values())


def whole_saved(module):
    torch.save(module, file := io.BytesIO())
    file.seek(0)
    return flat(torch.load(file, weights_only=False).parameters())


READS = {
    "state_dict": lambda module: flat(module.state_dict().values()),
    "state_dict of a part": lambda module: flat(module.blocks.state_dict().values()),
    "forward": output,
    "forward of a part": lambda module: module.stem(torch.ones(2, 6, dtype=torch.float64)).detach().numpy(),
    "parameters": values,
    "data": lambda module: module.head.weight.data.numpy().copy(),
    "deepcopy": lambda module: flat(copy.deepcopy(module).parameters()),
    "average": averaged,
    "save": saved,
    "save of the module": whole_saved,
    "address": lambda module: module.head.weight.data_ptr() and values(module),
}


@pytest.mark.parametrize("options", LATE, ids=name_of)
def test_one_rank_reads_what_is_up_to_date_while_others_wait(options):
    """As a rank that writes a checkpoint."""
    models = alike("branches", 3)

    def drive(optimizer, own, transport):
        for iteration, (name, read) in enumerate(READS.items()):
            step(optimizer, own, iteration, transport.rank)
            found = read(own) if transport.rank == iteration % 3 else None
            transport.barrier()
            optimizer.flush()
            if found is not None:
                np.testing.assert_array_equal(found, read(own), name)

    each_trains(models, drive, fusion="none", **options)


@pytest.mark.parametrize("schedule", ["fsdp", "zero:overlap_param_gather=yes"])
def test_what_needs_other_ranks_is_refused_instead_of_a_hang(schedule):
    """These schedules start gathers when a layer needs them; on one rank alone that would wait for ever."""
    models = alike("branches", 3)
    options = {"schedule": schedule} | ({"update": "sharded"} if "zero" in schedule else {})

    def drive(optimizer, own, transport):
        for iteration in range(2):
            step(optimizer, own, iteration, transport.rank)
        if transport.rank == 0:
            for name in ("state_dict", "parameters", "deepcopy"):
                with pytest.raises(CollectiveError, match=r"call \w+\.flush\(\) on all ranks before"):
                    READS[name](own)
        optimizer.flush()
        saved(own)
        step(optimizer, own, 2, transport.rank)

    each_trains(models, drive, fusion="none", **options)


def test_nothing_waits_for_what_neither_reads_nor_changes():
    """A loop that keeps its ``zero_grad`` has as much overlap as one without it; nor do steps wait for themselves."""
    models = alike("branches", 2)

    def body(transport):
        own = models[transport.rank]
        with wrapped(transport, own, schedule="dear", fusion="none") as optimizer:
            for iteration in range(2):  # the first one ends with a flush
                step(optimizer, own, iteration, transport.rank)
            run = optimizer.run
            under_way = run.group.trainers["dear"].schedule.under_way
            for iteration in range(2, 5):
                optimizer.zero_grad()
                own.zero_grad()
                assert [(each.shape, each.dtype, each.numel()) for each in own.parameters() if each.requires_grad]
                assert len(under_way) == len(run.group.buckets) == len(run.calls)
                seen = []
                with own.blocks[1].right.register_forward_pre_hook(lambda *_: seen.append(len(under_way))):  # noqa: B023
                    loss = loss_of(own, iteration, transport.rank)
                assert seen == [1]
                loss.backward()
                optimizer.step()
            own.state_dict()
            assert not under_way

    run_loopback(2, body)


def test_reductions_start_while_autograd_still_runs():
    models = alike("branches", 2)

    def body(transport):
        own, events = models[transport.rank], []
        with wrapped(transport, own, schedule="wfbp", fusion="none") as optimizer:
            step(optimizer, own, 0, 0)
            fabric = optimizer.run.group.fabric
            start = fabric.start
            fabric.start = lambda *asked: (events.append("start"), start(*asked))[1]
            own.stem.weight.register_hook(lambda gradient: events.append("stem"))
            step(optimizer, own, 1, 0)
        return events

    events, _ = run_loopback(2, body)
    assert events.index("stem") >= 5
    assert events[-1] == "start"


def test_modules_without_parameters_may_be_exchanged():
    models = alike("sequential", 2)

    def drive(optimizer, own, transport):
        step(optimizer, own, 0, transport.rank)
        own[1] = nn.Tanh()
        step(optimizer, own, 1, transport.rank)
        with optimizer.no_sync():
            torch.autograd.grad(loss_of(own, 2, 0), [own[0].weight])
        loss_of(copy.deepcopy(own), 2, 0).backward()  # no copy takes part
        step(optimizer, own, 2, transport.rank)

    each_trains(models, drive)


def test_after_close_the_module_is_an_ordinary_one():
    models = alike("branches", 2)

    def body(transport):
        own = models[transport.rank]
        with wrapped(transport, own) as optimizer:
            for iteration in range(2):
                step(optimizer, own, iteration, transport.rank)
        assert {type(each) for each in own.parameters()} == {nn.Parameter}
        assert not any(each._forward_pre_hooks for each in own.modules())
        assert not any(each._post_accumulate_grad_hooks for each in own.parameters())
        loss_of(own, 0, 0).backward()
        loss_of(own, 0, 0).backward()
        torch.save(own, io.BytesIO())
        return bits(own)

    same(2, body)


@pytest.mark.parametrize("options", [{}, {"fusion": "cut:128B"}, {"update": "sharded"}], ids=name_of)
def test_after_close_another_one_goes_on_with_the_state(options):
    """As to train a layer that was frozen until then."""
    *models, alone = alike("branches", 3)

    def begin(module):
        module.stem.requires_grad_(False)
        return OPTIMIZERS["adamw"]([each for each in module.parameters() if each.requires_grad])

    def thaw(module, optimizer):
        module.stem.requires_grad_(True)
        optimizer.add_param_group({"params": list(module.stem.parameters()), "lr": 0.001})

    plain = begin(alone)
    reference(alone, plain, 2, STEPS)
    thaw(alone, plain)
    reference(alone, plain, 2, STEPS, start=STEPS)

    def body(transport):
        own = models[transport.rank]
        inner = begin(own)
        for start in (0, STEPS):
            with wrapped(transport, own, inner, **options) as optimizer:
                for iteration in range(start, start + STEPS):
                    step(optimizer, own, iteration, transport.rank)
            if not start:
                thaw(own, inner)
        return bits(own)

    same(2, body)
    close(models[0], alone, 1e-9)
