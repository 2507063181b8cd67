"""The programs of docs/other-frameworks.md do what the page says."""

import pytest

from tests.pages import Page

pytestmark = pytest.mark.mpi

OF_TORCH, OF_BACKEND = Page.of("other-frameworks.md").blocks
TORCH = "the page's programs need torch (our extra 'torch')"


def test_a_loop_trains(comm, agree):
    torch = pytest.importorskip("torch", reason=TORCH)
    torch.manual_seed(1)
    losses, loss_of = [], torch.nn.CrossEntropyLoss()

    def noted(outputs, targets):
        losses.append(loss_of(outputs, targets))
        return losses[-1]

    names = {"model": torch.nn.Linear(4, 3), "loader": [(torch.randn(8, 4), torch.arange(8) % 3)] * 20}
    exec(OF_TORCH, {"loss_of": noted, **names})
    names["model"].state_dict()
    agree(losses[-1] < 0.95 * losses[0], str(losses))


def test_ddp_runs_over_our_ring(comm, agree):
    torch = pytest.importorskip("torch", reason=TORCH)
    names = {"torch": torch, "MPI": pytest.importorskip("mpi4py.MPI"), "model": torch.nn.Linear(4, 3)}
    exec(OF_BACKEND, names)
    try:
        names["model"](torch.full((2, 4), float(comm.rank))).sum().backward()
        expected = 2 * (comm.size - 1) / 2
        gradient = names["model"].module.weight.grad  # a mean, so rounded where a fifth is a factor
        agree(torch.allclose(gradient, torch.full_like(gradient, expected)), "the mean over ranks")
    finally:
        torch.distributed.destroy_process_group()
