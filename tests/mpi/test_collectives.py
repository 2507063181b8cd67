"""The collectives over MPI: the same checks as tests/collectives/test_loopback.py, on as many ranks as there are."""

import itertools
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from mpi4py import MPI

from dear_mpi.collectives import ALGORITHMS, all_reduce, make_plan, transport_of
from dear_mpi.collectives.plans.runners import native
from dear_mpi.collectives.plans.tuning import Rule, write_rules
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.transports.emulated import OUT
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.ranks.world import run_world
from tests import collective_checks as checks
from tests.collective_checks import OPS

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="session")
def transport(comm):
    return transport_of(comm)


@settings(max_examples=100)
@given(case=checks.cases())
def test_any_call_is_exact(transport, case):
    checks.check_case(transport, case)


@settings(max_examples=8)
@given(case=checks.cases(counts=("large",), dtypes=("fp32", "bf16", "fp64")))
def test_large_calls_are_exact(transport, case):
    checks.check_case(transport, case)


@settings(max_examples=40)
@given(case=checks.cases(checks.NATIVE, dtypes=("fp64", "fp32", "int32")))
def test_native_is_exact(transport, case):
    """The baseline obeys the same rules."""
    checks.check_case(transport, case)


def test_the_ranks_of_an_emulated_host_share_its_port(transport):
    checks.check_shared_port(transport, OUT)


@pytest.mark.parametrize("dtype", checks.MOVED)
@pytest.mark.parametrize("algorithm", ["ring", "binomial", "pairwise", "shared", "native"])
def test_any_type_is_moved(transport, algorithm, dtype):
    checks.check_moved_type(transport, checks.MOVED[dtype], algorithm)


@pytest.mark.parametrize("algorithm", ["ring", "shared", "native"])
def test_numbers_are_combined(transport, algorithm):
    checks.check_combined_types(transport, algorithm)


@pytest.mark.parametrize("check", checks.CHECKS)
def test_checks(transport, check):
    checks.CHECKS[check](transport)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_same_bits_on_all_ranks(transport, dtype, algorithm):
    checks.check_same_bits(transport, algorithm, dtype)


@settings(max_examples=8)
@given(case=checks.cases(checks.SHARED, counts=("large",), dtypes=("fp32", "bf16", "fp64")))
def test_large_calls_in_shared_memory_are_exact(transport, case):
    checks.check_case(transport, case, checks.shareable(transport))


class Own(MPI.Intracomm):
    """A communicator of a user's class, whose methods do other things."""

    def Dup(self, info=None):
        raise AssertionError("Dup of the user's class was called")

    Get_rank = Get_size = Get_attr = Set_attr = allgather = Split_type = Dup


def test_a_communicator_may_be_of_a_users_class(comm):
    plain = comm.Dup()
    assert (all_reduce(np.ones(3), Own(plain)) == comm.size).all()
    assert transport_of(Own(plain)) is transport_of(plain)
    plain.Free()


@pytest.mark.parametrize(
    ("what", "kind", "message", "make"), checks.BAD_CALLS, ids=[row[0] for row in checks.BAD_CALLS]
)
def test_bad_call(transport, what, kind, message, make):
    if transport.size > 1 or what not in checks.NEEDS_PEERS:
        checks.check_error(transport, kind, message, make)


def test_native_refuses_what_mpi_has_not(transport):
    message = "algorithm 'native' cannot reduce bf16, which MPI does not have: use 'ring'"
    x = np.zeros(3, DTYPES["bf16"])
    checks.check_error(transport, ValueError, message, lambda t: all_reduce(x, t, algorithm="native"))


def test_native_refuses_unaligned_arrays(transport):
    unaligned = np.zeros(8 * 3 + 1, np.uint8)[1:].view(np.float64)
    message = "must be aligned for algorithm 'native': pass a copy, or use 'ring'"
    for place in ({"x": unaligned}, {"x": np.zeros(3), "out": unaligned}):
        call = partial(all_reduce, **place, comm=transport, algorithm="native")
        checks.check_error(transport, ValueError, message, lambda _, call=call: call())


@pytest.mark.parametrize("op", ["sum", "prod"])
@pytest.mark.parametrize("dtype", [f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "reduce"])
def test_integers_wrap_or_native_is_refused(transport, collective, dtype, op, here):
    """Open MPI saturates sums of 8 and 16 bits in whole vectors: 127 + 127 gave 127. A rest wrapped."""
    write_rules(Path("rules.json"), {}, [Rule(collective, transport.size, None, "native", 1 << 18)])
    for algorithm, count in itertools.product(("native", "auto:rules.json"), (1, 17, 64, 1000)):
        most = np.iinfo(dtype).max
        x = np.full(count, most if op == "sum" else most // 2 + 2, dtype)
        expected = OPS[op](np.array([x] * transport.size), axis=0, dtype=x.dtype)
        try:
            result = make_plan(collective, x, transport, op=op, algorithm=algorithm)()
        except ArgumentError as error:
            result, said = expected, str(error)
        else:
            said = ""
        assert (result == expected[: result.size]).all() or (collective == "reduce" and transport.rank > 0)
        assert not said or (x.itemsize <= 2 and f"'native' cannot take the {op} of {x.dtype}: " in said)


@pytest.mark.parametrize(("collective", "dtype"), [("all_reduce", "i1"), ("broadcast", "f4")])
def test_native_says_how_much_it_takes(transport, monkeypatch, collective, dtype):
    """As if 2^31 were 4."""
    monkeypatch.setattr(native, "INT_MAX", 3)
    x = np.zeros(4, dtype) if dtype == "i1" else np.zeros(1, dtype)
    if MPI.Get_version() < (4, 0):
        message = "algorithm 'native' takes at most 3 "
        checks.check_error(transport, ValueError, message, lambda t: make_plan(collective, x, t, algorithm="native"))
    else:
        make_plan(collective, x, transport, algorithm="native").free()


def test_same_bits_as_loopback(transport):
    """What ran over threads ends with the same bits over MPI."""

    def body(transport):
        x = np.random.default_rng(transport.rank).standard_normal(5000).astype(np.float32)
        return all_reduce(x, transport, segment_bytes=1024).tobytes()

    assert body(transport) == run_loopback(transport.size, body)[0]


def test_a_communicator_has_one_transport(comm):
    assert transport_of(comm) is transport_of(comm)


def test_many_plans_free_what_they_took(comm):
    """MPICH would complain at the end of the job; tags are not used up."""
    own = comm.Dup()
    x = np.ones(10)
    for _ in range(50):
        with make_plan("all_reduce", x, own) as plan:
            plan()
    own.Free()
    assert (x == float(comm.size) ** 50).all()


def test_a_job_gives_its_communicator_back():
    """Also after an error that all ranks raise."""
    kept = []

    def command(world, algorithm):
        kept.append(world.transport.native)
        all_reduce(np.ones(3), world.transport, algorithm=algorithm)

    run_world(lambda world: command(world, "ring"))
    with pytest.raises(ArgumentError):
        run_world(lambda world: command(world, "rnig"))
    assert kept == [MPI.COMM_NULL] * 2


# Hundreds of runs of each take long where ranks share cores: all algorithms on few ranks, three of them on more.
@pytest.mark.parametrize("algorithm", ALGORITHMS if MPI.COMM_WORLD.size <= 2 else ["ring", "bruck", "shared"])
def test_runs_allocate_nothing(transport, algorithm):
    checks.check_runs_allocate_nothing(transport, algorithm)
