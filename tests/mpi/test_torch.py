"""Modules of PyTorch beside PyTorch's own DDP over gloo, on the same digits, with the same values and batches."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="adapters of PyTorch need torch (our extra 'torch')")

from dear_mpi.adapters.torch_session import TorchSession  # noqa: E402
from dear_mpi.collectives.program.errors import ArgumentError  # noqa: E402
from dear_mpi.kernels.optimizers import SGD  # noqa: E402
from dear_mpi.training.schedules import SCHEDULES  # noqa: E402
from tests.adapters.torch_digits import ddp, new, parts  # noqa: E402
from tests.adapters.torch_models import LOSS, values  # noqa: E402

pytestmark = pytest.mark.mpi


CASES = [("mlp", ["wfbp", "dear"]), ("block", [*SCHEDULES])]


@pytest.mark.parametrize(("name", "schedules"), CASES)
def test_the_digits_have_the_losses_of_ddp(comm, agree, name, schedules):
    expected, theirs = ddp(comm, name)
    bits = set()
    for schedule in schedules if comm.size <= 3 else ["dear"]:
        module = new(name)
        batches = parts(comm)
        options = {"schedule": schedule, "optimizer": SGD(0.1, momentum=0.9), "algorithm": "ordered", "fusion": "4kB"}
        with TorchSession(module, LOSS, comm, example=batches[0][0], **options) as session:
            losses = [session.step(x, torch.from_numpy(y)) for x, y in batches]
            session.flush()
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
    options = {"schedule": "dear", "update": update, "optimizer": SGD(0.1), "fusion": "4kB"}
    with TorchSession(module, LOSS, comm, example=batches[0][0], **options) as session:
        for iteration, (x, y) in enumerate(batches[:6]):
            session.step(x, y)
            saves = comm.rank == iteration % comm.size
            kept = {key: each.clone() for key, each in module.state_dict().items()} if saves else {}
            comm.Barrier()
        session.flush()
    alike = all(torch.equal(each, module.state_dict()[key]) for key, each in kept.items())
    agree(alike, "the parameters that were saved are those after a flush")


def test_what_one_rank_changes_is_an_error_on_all(comm, agree):
    module, batches = new("block"), parts(comm)
    with TorchSession(module, LOSS, comm, example=batches[0][0], schedule="dear") as session:
        session.step(*batches[0])
        if comm.rank == comm.size - 1:
            module.head = torch.nn.Linear(48, 10)
        with pytest.raises(ArgumentError) as error:
            session.step(*batches[1])
    agree("head.weight: added, removed or replaced" in str(error.value), str(error.value))
