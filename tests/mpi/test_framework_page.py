"""The program of docs/other-frameworks.md does what the page says."""

import pytest

from tests.pages import Page

pytestmark = pytest.mark.mpi


def test_a_loop_trains(comm, agree):
    torch = pytest.importorskip("torch", reason="the page's program needs torch (our extra 'torch')")
    torch.manual_seed(1)
    losses, loss_of = [], torch.nn.CrossEntropyLoss()

    def noted(outputs, targets):
        losses.append(loss_of(outputs, targets))
        return losses[-1]

    names = {"model": torch.nn.Linear(4, 3), "loader": [(torch.randn(8, 4), torch.arange(8) % 3)] * 20}
    exec(Page.of("other-frameworks.md").blocks[0], {"loss_of": noted, **names})
    names["model"].state_dict()
    agree(losses[-1] < 0.95 * losses[0], str(losses))
