"""A group of our backend of torch.distributed, on ranks that are threads: how it ends, and which there can be."""

import sys
import threading

import pytest

torch = pytest.importorskip("torch", reason="the backend of torch.distributed needs torch (our extra 'torch')")

import torch.distributed as dist  # noqa: E402

from dear_mpi.adapters import torch_group  # noqa: E402
from dear_mpi.adapters.torch_backend import init_process_group  # noqa: E402
from dear_mpi.adapters.torch_group import TorchGroup  # noqa: E402
from dear_mpi.collectives.transports.loopback import run_loopback  # noqa: E402


def test_without_communicators_there_is_one_group():
    """A second group of all ranks had the transport of the first one: their threads met on it."""

    def body(transport):
        init_process_group(transport)
        try:
            dist.all_reduce(torch.ones(3))
            for ranks in (None, [0]):
                with pytest.raises(ValueError, match=r"^a second group \(ranks \[0\]\) needs MPI, not "):
                    dist.new_group(ranks)
        finally:
            dist.destroy_process_group()

    run_loopback(1, body)


def test_at_a_prompt_an_old_exception_is_no_failure(monkeypatch):
    for name in ("last_type", "ps1"):
        monkeypatch.delattr(sys, name, raising=False)
    assert not torch_group.failing()
    monkeypatch.setattr(sys, "last_type", ZeroDivisionError, raising=False)
    assert torch_group.failing()
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert not torch_group.failing()
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        assert torch_group.failing()


def test_a_rank_that_ends_with_collectives_under_way_says_so(capsys, monkeypatch):
    monkeypatch.setattr(torch_group, "failing", lambda: False)
    over = threading.Event()

    def never(*_):
        yield None
        over.wait()

    def body(transport):
        group = TorchGroup(transport, "group")
        group.start("never", never())
        group.shutdown(0.01)
        over.set()
        group.shutdown(None)  # which waits for as long as it takes, and says nothing

    run_loopback(1, body)
    said = "dear-mpi: rank 0 ends with collectives under way, for which it waited 0.01 s\n"
    assert capsys.readouterr().err == said
