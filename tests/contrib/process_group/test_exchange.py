"""Bytes for every other rank, over threads; the backend of torch.distributed has it under MPI."""

import numpy as np
import pytest

from dear_mpi.collectives import CollectiveError, MismatchError, all_reduce
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.contrib.process_group.exchange import exchange


def octets(sender, receiver):
    """What one rank has for another one: of some length, and none for some."""
    return np.full((3 * sender + receiver) % 5, 16 * sender + receiver, np.uint8)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_rank_gets_what_the_others_have_for_it(size):
    def call(transport):
        incoming = [np.zeros_like(octets(peer, transport.rank)) for peer in range(size)]
        exchange(transport, "exchange", [octets(transport.rank, peer) for peer in range(size)], incoming)
        return all((found == octets(peer, transport.rank)).all() for peer, found in enumerate(incoming))

    assert all(run_loopback(size, call))


def test_long_messages_are_cut(monkeypatch):
    monkeypatch.setattr("dear_mpi.contrib.process_group.exchange.MESSAGE_BYTES", 3)

    def call(transport):
        incoming = [np.zeros(10, np.uint8), np.zeros(10, np.uint8)]
        exchange(transport, "exchange", [np.arange(10, dtype=np.uint8)] * 2, incoming)
        return [found.tolist() for found in incoming]

    assert run_loopback(2, call) == [[list(range(10))] * 2] * 2


def test_who_expects_other_bytes_is_named_on_all_ranks_and_nothing_is_sent():
    def call(transport):
        nothing, some = np.zeros(0, np.uint8), np.ones(4, np.uint8)
        incoming = [nothing, nothing, some.copy() if transport.rank == 2 else nothing]
        with pytest.raises(MismatchError, match=r"^gather: rank 2 sends 0 bytes to rank 2, which expects 4$"):
            exchange(transport, "gather", [nothing] * 3, incoming)
        return all_reduce(np.ones(3), transport).tolist()

    assert run_loopback(3, call) == [[3.0] * 3] * 3


def test_two_threads_do_not_exchange_at_once():
    def call(transport):
        some = [np.ones(4, np.uint8)] * 2
        transport.one_thread.tokens.pop()  # as a thread that runs a plan
        with pytest.raises(CollectiveError, match="two threads use one communicator at once"):
            exchange(transport, "gather", some, some)
        transport.one_thread.tokens.append(None)

    run_loopback(2, call)
