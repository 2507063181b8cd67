"""``DistributedOptimizer`` beside PyTorch's DDP over gloo, on the same digits, with the same values and batches."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="DistributedOptimizer needs torch (our extra 'torch')")

import dear_mpi.torch as dear  # noqa: E402
from dear_mpi.training.schedules import SCHEDULES  # noqa: E402
from tests.torch.digits import ddp, learned, new, parts  # noqa: E402
from tests.torch.gloo import over_gloo  # noqa: E402
from tests.torch.models import values  # noqa: E402
from tests.torch.test_random import SEEDS, Case  # noqa: E402

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(("name", "schedules"), [("mlp", ["wfbp", "dear"]), ("block", [*SCHEDULES])])
def test_the_digits_have_the_losses_of_ddp(comm, agree, name, schedules):
    expected, theirs = ddp(comm, name)
    bits = set()
    for schedule in schedules if comm.size <= 3 else ["dear"]:
        module = new(name)
        options = {"schedule": schedule, "algorithm": "ordered", "fusion": "4kB"}
        optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
        with dear.DistributedOptimizer(optimizer, module, comm=comm, **options) as optimizer:
            losses = learned(comm, module, optimizer)
        found = values(module)
        bits.update(comm.allgather(found.tobytes()))
        agree(np.allclose(losses, expected, rtol=1e-4), f"{schedule}: {losses[-1]} beside {expected[-1]}")
        agree(np.allclose(found, theirs, rtol=1e-3, atol=1e-5), schedule)
    assert len(bits) == 1
    assert expected[-1] < 0.8 * expected[0]


@pytest.mark.parametrize("update", ["full", "sharded"])
def test_one_rank_alone_saves_what_is_up_to_date(comm, agree, update):
    """The others wait for it at a barrier, as in scripts that write checkpoints: nobody calls ``flush``."""
    module, batches, kept = new("block"), parts(comm), {}
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    with dear.DistributedOptimizer(optimizer, module, comm=comm, update=update, fusion="4kB") as optimizer:
        for iteration, (x, y) in enumerate(batches[:6]):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
            optimizer.step()
            saves = comm.rank == iteration % comm.size
            kept = {key: each.clone() for key, each in module.state_dict().items()} if saves else {}
            comm.Barrier()
    alike = all(torch.equal(each, module.state_dict()[key]) for key, each in kept.items())
    agree(alike, "the parameters that were saved are those at the end")


def test_random_combinations_end_as_under_ddp(comm, agree):
    with over_gloo(comm):
        for seed in SEEDS:
            case = Case(seed, comm.size)
            module, optimizer = case.begin()
            model = torch.nn.parallel.DistributedDataParallel(module, find_unused_parameters=True)
            divisor = sum(case.rows) / case.size if case.weighted else 1
            case.train(model, optimizer, [comm.rank], divisor=divisor, clip=case.options.get("clip"))
            found = case.ours(comm, comm.rank)
            try:
                case.check(found, module)
                said = ""
            except AssertionError as error:
                said = f"seed {seed}: {error}"
            agree(not said, said)
