"""The program of docs/contrib/process_group.md does what the page says."""

import pytest

from tests.pages import Page

pytestmark = pytest.mark.mpi


def test_ddp_runs_over_our_ring(comm, agree):
    torch = pytest.importorskip("torch", reason="the page's program needs torch (our extra 'torch')")
    names = {"torch": torch, "MPI": pytest.importorskip("mpi4py.MPI"), "model": torch.nn.Linear(4, 3)}
    exec(Page.of("contrib/process_group.md").code, names)
    try:
        names["model"](torch.full((2, 4), float(comm.rank))).sum().backward()
        expected = 2 * (comm.size - 1) / 2
        gradient = names["model"].module.weight.grad  # a mean, so rounded where a fifth is a factor
        agree(torch.allclose(gradient, torch.full_like(gradient, expected)), "the mean over ranks")
    finally:
        torch.distributed.destroy_process_group()
