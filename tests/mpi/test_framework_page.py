"""The programs of docs/other-frameworks.md do what the page says."""

import re

import numpy as np
import pytest

from dear_mpi.training import Session
from tests.pages import Page

pytestmark = pytest.mark.mpi

OF_TORCH, OF_JAX, OF_BACKEND = Page.of("other-frameworks.md").blocks
TORCH, JAX = "the page's programs need torch (our extra 'torch')", "the page's program needs jax (our extra 'jax')"


def test_a_module_of_torch_trains(comm, capsys):
    torch = pytest.importorskip("torch", reason=TORCH)
    torch.manual_seed(1)
    model, batches = torch.nn.Linear(4, 3), [(torch.randn(8, 4), torch.arange(8) % 3)] * 20
    block, given_here = re.subn(r"^(model|batches) = \.\.\. .*$", "", OF_TORCH, flags=re.MULTILINE)
    assert given_here == 2
    exec(block, {"torch": torch, "model": model, "batches": batches})
    losses = [float(line) for line in capsys.readouterr().out.split()]
    assert len(losses) == 20
    assert losses[-1] < 0.9 * losses[0]


def test_layers_of_jax_are_a_session(comm, agree):
    jax = pytest.importorskip("jax", reason=JAX)
    draw = np.random.default_rng(1).standard_normal
    w, b, v = (draw(shape).astype("f4") / 4 for shape in ((8, 16), 16, (16, 1)))
    x, losses = draw((32, 8)).astype("f4"), []
    steps = "losses += [session.step(x, x.sum(1)[:, None]) for _ in range(20)]"
    assert OF_JAX.count("    ...\n") == 1
    block = OF_JAX.replace("    ...\n", f"    {steps}\n")
    exec(block, {"jax": jax, "w": w, "b": b, "v": v, "x": x, "comm": comm, "Session": Session, "losses": losses})
    agree(losses[-1] < losses[0], str(losses))


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
