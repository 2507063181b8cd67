"""Modules of PyTorch beside PyTorch's own DDP over gloo, on the same digits, with the same values and batches."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="adapters of PyTorch need torch (our extra 'torch')")

from dear_mpi.adapters.torch_session import TorchSession  # noqa: E402
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
