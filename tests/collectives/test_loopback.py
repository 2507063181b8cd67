"""The collectives over threads of this process; tests/mpi/test_collectives.py runs the same checks under mpirun."""

import math
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings

from dear_mpi.collectives import ALGORITHMS, CollectiveError, TransportError, all_reduce, make_plan
from dear_mpi.collectives.plans.runners import shared
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.collectives.transports.transport import StagedTransport
from dear_mpi.kernels.dtypes import DTYPES
from tests import collective_checks as checks

SIZES = [1, 2, 3, 4, 5]
LAYOUTS = [(0, 0, 1), (0, 1, 0, 1), (0, 0, 0, 1, 1)]


@pytest.mark.parametrize("size", [*SIZES, 8])
@settings(max_examples=60)
@given(case=checks.cases())
def test_any_call_is_exact(size, case):
    run_loopback(size, lambda transport: checks.check_case(transport, case))


@pytest.mark.parametrize("hosts", LAYOUTS)
@settings(max_examples=30)
@given(case=checks.cases([(collective, "hierarchical") for collective in ALGORITHMS["hierarchical"]]))
def test_any_call_is_exact_on_several_hosts(hosts, case):
    run_loopback(len(hosts), lambda transport: checks.check_case(transport, case), hosts)


@pytest.mark.parametrize("size", [2, 3])
@settings(max_examples=4)
@given(case=checks.cases(counts=("large",), dtypes=("fp32", "bf16", "fp64")))
def test_large_calls_are_exact(size, case):
    run_loopback(size, lambda transport: checks.check_case(transport, case))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_any_type_is_moved_and_numbers_are_combined(size, algorithm):
    def body(transport):
        for dtype in checks.MOVED.values():
            checks.check_moved_type(transport, dtype, algorithm)
        if "all_reduce" in ALGORITHMS[algorithm]:
            checks.check_combined_types(transport, algorithm)
            checks.check_products_of_complex_numbers_have_the_same_bits(transport, algorithm)

    run_loopback(size, body)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_same_bits_on_all_ranks(dtype, algorithm):
    for size in SIZES:
        run_loopback(size, lambda transport: checks.check_same_bits(transport, algorithm, dtype))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("mailboxes_up_to", [0, math.inf])
@settings(max_examples=30)
@given(case=checks.cases(checks.SHARED, counts=("0", "1", "size-1", "size", "odd", "many")))
def test_any_call_in_shared_memory_is_exact(size, mailboxes_up_to, case):
    """In buffers and by mailboxes, of one block for each shard and of several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "PRIVATE_BYTES", mailboxes_up_to)
        patch.setattr(shared, "BLOCK_BYTES", 64)
        run_loopback(size, lambda transport: checks.check_case(transport, case))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("check", checks.CHECKS)
def test_checks(size, check):
    run_loopback(size, checks.CHECKS[check])


def test_ranks_of_several_hosts_share_no_memory():
    with pytest.raises(CollectiveError, match="algorithm 'shared' needs ranks of one host"):
        run_loopback(3, lambda transport: all_reduce(np.ones(9), transport, algorithm="shared"), hosts=[0, 0, 1])
    assert run_loopback(3, lambda t: all_reduce(np.ones(1), t, algorithm="auto")[0], hosts=[0, 0, 1]) == [3] * 3


def test_a_barrier_that_cannot_be_reached_releases_the_others():
    def body(transport):
        if transport.rank == 1:
            raise KeyError("rank 1 gives up")
        transport.barrier()

    with pytest.raises(KeyError, match="rank 1 gives up"):
        run_loopback(3, body)


def test_a_staged_transport_is_handed_host_memory_alone():
    """In all else it is what it wraps."""

    def body(transport):
        staged = StagedTransport(transport)
        takes = [each.takes(array) for each in (transport, staged)
                 for array in (np.zeros(1), checks.DeviceArray())]  # fmt: skip
        assert takes == [True, True, True, False]
        assert (staged.rank, staged.size, staged.name) == (transport.rank, transport.size, transport.name)
        assert staged.native is None
        assert len(staged.reach(staged.allocate(8))) == transport.size

    run_loopback(2, body)


def test_a_second_thread_is_refused_while_the_first_one_waits():
    def body(transport):
        x = np.ones(10)
        with make_plan("all_reduce", x, transport) as plan:
            if transport.rank == 0:
                first = threading.Thread(target=plan)
                first.start()
                while transport.one_thread.tokens:
                    time.sleep(0)
                with pytest.raises(CollectiveError, match="two threads use one communicator at once"):
                    all_reduce(np.ones(10), transport)
                transport.barrier()
                first.join()
            else:
                transport.barrier()
                plan()
        return x.tolist()

    assert run_loopback(2, body) == [[2] * 10] * 2


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    ("what", "kind", "message", "make"), checks.BAD_CALLS, ids=[row[0] for row in checks.BAD_CALLS]
)
def test_bad_call(size, what, kind, message, make):
    if size == 1 and what in checks.NEEDS_PEERS:
        size = 2
    run_loopback(size, lambda transport: checks.check_error(transport, kind, message, make))


def test_a_rank_that_fails_releases_the_others():
    """The others wait for a message of rank 1 that never comes."""

    def body(transport):
        if transport.rank == 1:
            time.sleep(0.05)
            raise KeyError("rank 1 gives up")
        all_reduce(np.zeros(10), transport)

    before = threading.active_count()
    with pytest.raises(KeyError, match="rank 1 gives up"):
        run_loopback(3, body)
    assert threading.active_count() == before


def test_messages_of_another_length_are_refused():
    """MPI would say nothing."""

    def body(transport):
        data = np.zeros(3 + transport.rank, np.uint8)
        make = transport.recv_init if transport.rank else transport.send_init
        request = make(data, 1 - transport.rank, transport.next_tag())
        request.Start()
        request.Wait()

    with pytest.raises(TransportError, match="a send of 3 B met a receive of 4 B"):
        run_loopback(2, body)
