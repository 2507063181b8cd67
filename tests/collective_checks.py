"""What must hold of every collective, on any transport: run by loopback threads and under mpirun alike.

Data are small whole numbers, so that every result is exact in every type and errors cannot hide in a tolerance.
"""

import functools
import itertools
import tempfile
import time
import tracemalloc
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
from hypothesis import strategies as st
from ml_dtypes import finfo

from dear_mpi.collectives import (
    ALGORITHMS,
    Partition,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    make_plan,
    reduce_scatter,
)
from dear_mpi.collectives.algorithms.registry import served_by
from dear_mpi.collectives.plans import functions
from dear_mpi.collectives.program.errors import CollectiveError
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.collectives.transports.emulated import Link, port_of_host
from dear_mpi.collectives.transports.transport import Wrapper
from dear_mpi.kernels.array import array_module, to_host
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.reference import BITWISE
from dear_mpi.kernels.reference import OPS as ARITHMETIC

OPS = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max}
UFUNCS = ARITHMETIC | BITWISE
LARGE = 1_000_003


@dataclass(frozen=True)
class Case:
    """One call. ``count`` is a function of the number of ranks."""

    collective: str
    algorithm: str
    count: str
    dtype: str
    op: str
    in_place: bool
    segment_elements: int
    weighted: bool
    root: str

    @property
    def addressed(self) -> bool:
        return COLLECTIVES[self.collective].addressed

    def elements(self, size: int) -> int:
        """Of the full buffer: as many more as make chunks equal, where they must be."""
        found = {"0": 0, "1": 1, "size-1": size - 1, "size": size, "odd": 37, "many": 331, "large": LARGE}[self.count]
        return -(-found // size) * size if self.addressed else found

    def options(self, size: int) -> dict:
        """What differs from collective to collective; ranks of odd numbers own less, some of them nothing."""
        weighted = self.weighted and not self.addressed
        weights = [3, 1, 2, 0, 4, 0.5, 2, 1][:size] if weighted else None
        found = {"counts": Partition.of(self.elements(size), size, weights).counts if weighted else None}
        if COLLECTIVES[self.collective].rooted:
            found["root"] = 0 if self.root == "first" else size - 1
        if COLLECTIVES[self.collective].reduces:
            found["op"] = self.op
        return found

    def segment_bytes(self, dtype: np.dtype) -> int:
        # A million elements in segments of one would be a million messages: large buffers get large segments.
        return dtype.itemsize * self.segment_elements * (20_000 if self.count == "large" else 1)


SERVED = [(collective, name) for name, row in ALGORITHMS.items() for collective in row]
MESSAGES = [pair for pair in SERVED if pair[1] != "shared"]
SHARED = [pair for pair in SERVED if pair[1] == "shared"]
NATIVE = [(collective, "native") for collective in COLLECTIVES]


def cases(served=SERVED, counts=("0", "1", "size-1", "size", "odd"), dtypes=(*DTYPES, "int32", "int8")):
    """Any call."""
    return st.builds(
        lambda pair, **rest: Case(*pair, **rest),
        pair=st.sampled_from(served),
        count=st.sampled_from(counts),
        dtype=st.sampled_from(dtypes),
        op=st.sampled_from(sorted(OPS)),
        in_place=st.booleans(),
        segment_elements=st.sampled_from([1, 3, 8, 1000]),
        weighted=st.booleans(),
        root=st.sampled_from(["first", "last"]),
    )


def contribution(rank: int, count: int, dtype: np.dtype) -> np.ndarray:
    """A rank's data: -1, 1, or 2, so that products are powers of two, which every type has."""
    return np.random.default_rng([rank, count]).choice([-1, 1, 2], count).astype(dtype)


def check_case(transport, case: Case, put=lambda array: array) -> None:
    """The collective gives the exact result, leaves its input alone where it must, and fails on no rank.

    ``put`` brings an array to where the collective works.
    """
    rank, size = transport.rank, transport.size
    dtype = DTYPES.get(case.dtype) or np.dtype(case.dtype)
    count, options = case.elements(size), case.options(size)
    partition = Partition.exactly(count, size, options["counts"]) if options["counts"] else Partition.of(count, size)
    own, root = partition.shard(rank), options.get("root", 0)
    parts = np.array([contribution(other, count, dtype).astype(np.float64) for other in range(size)])
    expected = {
        "all_gather": lambda: parts[np.repeat(np.arange(size), partition.counts), np.arange(count)],
        "broadcast": lambda: parts[root],
        "all_to_all": lambda: parts.reshape(size, size, -1)[:, rank].reshape(-1),
        "reduce_scatter": lambda: OPS[case.op](parts, axis=0)[own],
    }.get(case.collective, lambda: OPS[case.op](parts, axis=0))()
    x = put(contribution(rank, count, dtype))
    given = x[own].copy() if case.collective == "all_gather" and not case.in_place else x
    before = to_host(given).copy()
    out = None if case.in_place else put(np.empty(expected.shape, dtype))
    options |= {"out": out, "algorithm": case.algorithm, "segment_bytes": case.segment_bytes(dtype)}
    with make_plan(case.collective, given, transport, **options) as plan:
        result = plan()
    if case.collective != "reduce" or rank == root:
        np.testing.assert_array_equal(to_host(result).astype(np.float64), expected)
    if case.in_place:
        assert result.size == 0 or array_module(x).may_share_memory(result, given)
    else:
        assert result is out
        np.testing.assert_array_equal(to_host(given), before)


def check_shared_has_the_bits_of_ordered(transport, dtype: str) -> None:
    """With buffers in shared memory and elsewhere; by mailboxes with one block of each shard, and with many."""
    for count, share in ((3001, True), (30001, True), (30001, False), (300001, False)):
        data = np.random.default_rng(transport.rank).standard_normal(count).astype(DTYPES[dtype])
        results = []
        for algorithm in ("ordered", "shared"):
            x = transport.allocate(data.nbytes).view(data.dtype) if share else np.empty_like(data)
            x[:] = data
            results.append(all_reduce(x, transport, algorithm=algorithm).tobytes())
        assert results[0] == results[1]


def shareable(transport):
    """Brings an array into memory that the other ranks can reach."""

    def put(array):
        place = transport.allocate(array.nbytes).view(array.dtype)
        place[:] = array
        return place

    return put


def check_barrier(transport) -> None:
    """Nobody leaves before the last one has come: by the clock that all ranks of a host share."""
    came_s = np.zeros(transport.size)
    time.sleep(0.02 * (transport.rank == transport.size - 1))
    came_s[transport.rank] = time.monotonic()
    barrier(transport)
    left_s = time.monotonic()
    all_reduce(came_s, transport)
    host = transport.hosts[transport.rank]
    assert all(came_s[rank] <= left_s for rank in range(transport.size) if transport.hosts[rank] == host)


def check_barrier_of_the_transport(transport, asleep: bool) -> None:
    """When it returns, all ranks have written what they write before it."""
    mine = transport.allocate(1)
    everyone = transport.reach(mine)
    for turn in range(1, 20):
        mine[0] = turn
        transport.barrier(asleep=asleep)
        assert everyone is None or all(other[0] >= turn for other in everyone)


class Tensor:
    """What is taken for one of PyTorch."""

    __module__ = "torch"


class DeviceArray:
    """What a transport that asks only whose array it is takes for CuPy's."""

    __module__ = "cupy"


def check_average(transport, dtype: str) -> None:
    """An average is a sum that is scaled once, in fp32 for two-byte types, and has the same bits everywhere."""
    x = contribution(transport.rank, 37, DTYPES[dtype])
    total = sum(contribution(rank, 37, DTYPES[dtype]).astype(np.float64) for rank in range(transport.size))
    wide = np.float64 if dtype == "fp64" else np.float32
    expected = (total.astype(wide) * wide(1 / transport.size)).astype(DTYPES[dtype])
    result = all_reduce(x, transport, op="average")
    assert result.tobytes() == expected.tobytes()


def check_average_in_fp16(transport) -> None:
    """Contributions whose sum is beyond the type have an average all the same, under every algorithm and collective."""
    data = [np.array([60000, 40000, -60000, 7, 3e-5], np.float16) + np.float16(rank) for rank in range(transport.size)]
    wide = functools.reduce(np.add, (part.astype(np.float32) for part in data)) / np.float32(transport.size)
    for algorithm, out in itertools.product(ALGORITHMS, (None, np.empty(5, np.float16))):
        if "all_reduce" in ALGORITHMS[algorithm]:
            x = data[transport.rank].copy()
            result = all_reduce(x, transport, op="average", algorithm=algorithm, out=out)
            np.testing.assert_allclose(result.astype(np.float64), wide, rtol=4e-3, atol=1e-6)
            assert len(set(transport.gather_values(result.tobytes()))) == 1
    own = Partition.of(5, transport.size).shard(transport.rank)
    for out in (None, np.empty(own.stop - own.start, np.float16)):
        result = reduce_scatter(data[transport.rank].copy(), transport, op="average", out=out)
        np.testing.assert_allclose(result.astype(np.float64), wide[own], rtol=4e-3, atol=1e-6)


def check_odd_inputs(transport) -> None:
    """What is unusual and right: shapes without elements, memory maps, unaligned arrays, numbers of NumPy, counts."""
    size = transport.size
    assert all_reduce(np.zeros((3, 0)), transport).shape == (3, 0)
    assert all_reduce(np.ones(()), transport) == size
    unaligned = np.zeros(8 * 5 + 1, np.uint8)[1:].view(np.float64)
    unaligned[:] = 2
    assert not unaligned.flags.aligned
    assert (all_reduce(unaligned, transport, algorithm="ring", segment_bytes=np.int64(16)) == 2 * size).all()
    x = np.full(5, transport.rank)
    assert (broadcast(x, transport, root=np.int64(size - 1)) == size - 1).all()
    with tempfile.TemporaryFile() as file:
        mapped = np.memmap(file, np.float32, shape=(3,))
        mapped[:] = 1
        assert all_reduce(mapped, transport) is mapped
        assert (mapped == size).all()
    counts = np.array([0] * (size - 1) + [7])
    assert reduce_scatter(np.ones(7), transport, counts=counts).size == counts[transport.rank]


MOVED = {
    **{name: np.dtype(name) for name in ("bool", "complex64", "complex128", "longdouble", ">i4", "m8[s]", "S5", "U3")},
    "record": np.dtype([("a", "<u8"), ("b", "<f4")]),
    "larger than a message": np.dtype("V300000"),
}


def check_moved_type(transport, dtype, algorithm: str) -> None:
    """Broadcasts, all-gathers and all-to-alls move bytes, in place and out of place, with a new plan and a kept one."""
    rank, size = transport.rank, transport.size
    parts = np.array([np.random.default_rng(other).integers(0, 2, (size, 3 * dtype.itemsize)) for other in range(size)])
    parts, sent = parts.astype(np.uint8), parts.astype(np.uint8)[rank].view(dtype)
    gathered = parts[range(size), range(size)].reshape(-1).view(dtype)
    own, shard = np.zeros_like(gathered), slice(3 * rank, 3 * rank + 3)
    own[shard] = gathered[shard]
    for collective, x, expected in (
        ("broadcast", sent, parts[size - 1].view(dtype)),
        ("all_to_all", sent.reshape(-1), parts[:, rank].copy().view(dtype).reshape(-1)),
        ("all_gather", own, gathered),
    ):
        if algorithm in ("native", *(name for name in ALGORITHMS if collective in ALGORITHMS[name])):
            options = {"algorithm": algorithm} | ({"root": size - 1} if collective == "broadcast" else {})
            call = getattr(functions, collective)
            for _ in range(2):
                assert call(x.copy(), transport, **options).tobytes() == expected.tobytes()
                given = x[shard] if collective == "all_gather" else x
                out = np.zeros_like(expected)
                assert call(given.copy(), transport, out=out, **options) is out
                assert out.tobytes() == expected.tobytes()


COMBINED = [  # types, and the ops that they have
    (("bool", "int8", "uint64"), ("sum", "prod", "min", "max", "band", "bor", "bxor")),
    (("longdouble",), ("sum", "prod", "min", "max")),
    (("complex64", "complex128", "clongdouble"), ("sum", "prod")),
]


def check_combined_types(transport, algorithm: str) -> None:
    """What NumPy makes of the numbers of all ranks: a sum of bool is "or"."""
    for dtype, op in ((dtype, op) for dtypes, ops in COMBINED for dtype in dtypes for op in ops):
        if algorithm == "native" and dtype == "int8":
            continue  # some libraries saturate
        signs = [np.array([1, 0, 1, 1, -1, 0, 2])[(np.arange(40) * (rank + 1)) % 7] for rank in range(transport.size)]
        data = [(1j if dtype.startswith("c") else 1) * part for part in signs]
        data = [part.astype(dtype) for part in data]
        expected = functools.reduce(UFUNCS[op], data)
        found = all_reduce(data[transport.rank].copy(), transport, op=op, algorithm=algorithm)
        assert found.tolist() == expected.tolist(), (dtype, op)


def check_products_of_complex_numbers_have_the_same_bits(transport, algorithm: str) -> None:
    """Wherever a rank has them in memory."""
    for dtype in ("complex64", "complex128"):
        data = np.random.default_rng(transport.rank).standard_normal((2, 200 + transport.rank))
        x = (data[0] + 1j * data[1]).astype(dtype)[transport.rank :]
        all_reduce(x, transport, op="prod", algorithm=algorithm, segment_bytes=208)
        assert len(set(transport.gather_values(x.tobytes()))) == 1


def check_same_bits(transport, algorithm: str, dtype: str) -> None:
    """Sums of numbers that are no whole ones: equal to the last bit on all ranks, and close to the exact sum."""
    data = [np.random.default_rng(rank).standard_normal(1003).astype(DTYPES[dtype]) for rank in range(transport.size)]
    x = data[transport.rank].copy()
    if "all_reduce" not in served_by(algorithm):
        return
    all_reduce(x, transport, algorithm=algorithm, segment_bytes=512)
    assert len(set(transport.gather_values(x.tobytes()))) == 1
    exact = np.sum([part.astype(np.float64) for part in data], axis=0)
    unit = float(finfo(DTYPES[dtype]).eps) / 2
    bound = transport.size * unit * np.sum([np.abs(part.astype(np.float64)) for part in data], axis=0)
    assert (np.abs(x.astype(np.float64) - exact) <= bound).all()


def check_ordered_ignores_the_layout(transport, dtype: str) -> None:
    """The same bits in one bucket or several, in any chunks and segments; two-byte sums are rounded once."""
    data = [np.random.default_rng(rank).standard_normal(503).astype(DTYPES[dtype]) for rank in range(transport.size)]
    mine, results = data[transport.rank], []
    for bounds, segment_bytes, weights in (([0, 503], 4096, None), ([0, 17, 200, 503], 64, [1, 2, 3, 4, 5, 6, 7, 8])):
        x = mine.copy()
        for start, stop in itertools.pairwise(bounds):
            counts = Partition.of(stop - start, transport.size, weights and weights[: transport.size]).counts
            all_reduce(x[start:stop], transport, algorithm="ordered", segment_bytes=segment_bytes, counts=counts)
        results.append(x.tobytes())
    wide = np.float64 if dtype == "fp64" else np.float32
    total = functools.reduce(np.add, [part.astype(wide) for part in data])
    assert results == [total.astype(DTYPES[dtype]).tobytes()] * 2


def check_plan_is_reusable(transport, drive) -> None:
    """A plan gives the right answer each time; ``drive`` runs it, waiting or polling."""
    x = np.zeros(1000, np.float32)
    with make_plan("all_reduce", x, transport, segment_bytes=256) as plan:
        for turn in range(5):
            x[:] = np.arange(1000) + transport.rank * turn
            assert drive(plan) is x
            ranks = sum(range(transport.size))
            np.testing.assert_array_equal(x, np.arange(1000, dtype=np.float32) * transport.size + ranks * turn)


def check_runs_allocate_nothing(transport, algorithm: str) -> None:
    """Nothing grows in some hundred runs."""
    collective = "all_reduce" if "all_reduce" in ALGORITHMS[algorithm] else next(iter(ALGORITHMS[algorithm]))
    with make_plan(collective, np.zeros(1000), transport, algorithm=algorithm, segment_bytes=1024) as plan:
        for _ in range(10):
            plan()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(300):
                plan()
            after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert after - before < 2048, f"{after - before} bytes are left"
    assert peak - before < 16384, f"{peak - before} bytes were in use at a time"


def blocking(plan):
    return plan()


def polling(plan):
    plan.start()
    while not plan.advance():
        time.sleep(0)  # so that threads take turns
    return plan.wait()


def mixed(plan):
    plan.start()
    plan.advance()
    return plan.wait()


DRIVES = [blocking, polling, mixed]


def refusal(call) -> str:
    """What a call says that is refused; nothing if it is not. (There is no pytest in a rank's thread.)"""
    try:
        call()
    except CollectiveError as error:
        return str(error)
    return ""


class CountingTransport(Wrapper):
    """Another transport, and how many of its requests were made and freed."""

    made = freed = 0

    def counted(self, request):
        def free():
            self.freed += 1
            request.Free()

        self.made += 1
        return SimpleNamespace(Start=request.Start, Wait=request.Wait, Test=request.Test, Free=free)

    def send_init(self, data, peer, tag):
        return self.counted(self.below.send_init(data, peer, tag))

    def recv_init(self, data, peer, tag):
        return self.counted(self.below.recv_init(data, peer, tag))


def check_requests_are_freed(transport) -> None:
    """Once each, however often the plan is freed; after that it refuses to run."""
    counting = CountingTransport(transport)
    plan = make_plan("all_reduce", np.ones(100), counting, segment_bytes=64)
    plan()
    assert (counting.made > 0) == (transport.size > 1)
    plan.free()
    plan.free()
    assert counting.made == counting.freed
    assert "start() on a plan that was freed" in refusal(plan.start)


def check_starting_twice_is_refused(transport) -> None:
    with make_plan("all_reduce", np.ones(100), transport) as plan:
        plan.start()
        assert "start() on a plan whose last run is not over" in refusal(plan.start)
        plan.wait()


def check_one_thread_at_a_time(transport) -> None:
    """While another thread uses the transport, all calls are refused at once, and change nothing."""
    x = np.ones(4)
    with make_plan("all_reduce", x, transport) as plan:
        transport.one_thread.tokens.pop()  # as a thread that runs another plan
        for call in (plan, plan.start, plan.advance, plan.wait, lambda: all_reduce(x, transport)):
            assert "two threads use one communicator at once: give each its own" in refusal(call)
        transport.one_thread.tokens.append(None)
        assert (plan() == transport.size).all()


def check_infinities_are_results(transport, drive) -> None:
    """Whatever NumPy was told to do about them, and on whichever rank."""
    for dtype, op in itertools.product((np.float16, np.float32), ("sum", "prod", "average")):
        x, out = np.full(100, np.finfo(dtype).max), np.empty(100, dtype)
        x[0] = -np.inf if transport.rank else np.inf
        with np.errstate(all="raise" if transport.rank == 0 else "warn"):
            with make_plan("all_reduce", x, transport, op=op, out=out) as plan:
                drive(plan)
            before = np.geterr()
            assert before["over"] == ("raise" if transport.rank == 0 else "warn")
        large = transport.size > 1 and not (op == "average" and dtype == np.float16)
        assert np.isinf(out[1]) == large
        assert np.isnan(out[0]) == (transport.size > 1 and op != "prod")


def check_debug_finds_another_plan(transport) -> None:
    """Rank 0 runs its two plans in the other order: with messages of the same length nobody would notice."""
    x, y = np.ones(8), np.ones(8)
    plans = [make_plan(collective, array, transport, debug=True)
             for collective, array in (("reduce_scatter", x), ("all_gather", y))]  # fmt: skip
    for plan in plans:
        plan()
    said = refusal(plans[transport.rank == 0])
    for plan in plans:
        plan.free()  # which does not wait for a run that never began
    told = "the plan that is run must be the same on all ranks, not all_gather number"
    assert transport.size == 1 or told in said, said
    assert len(set(transport.gather_values(said))) == 1


def check_plans_in_flight(transport) -> None:
    """Several plans of one transport may be under way at the same time, and end in another order."""
    arrays = [np.full(300 + 100 * number, float(transport.rank + number)) for number in range(3)]
    plans = [make_plan("all_reduce", x, transport, segment_bytes=128) for x in arrays]
    for plan in plans:
        plan.start()
    while not all([plan.advance() for plan in plans]):
        time.sleep(0)
    for number, (plan, x) in enumerate(zip(plans, arrays, strict=True)):
        plan.free()
        assert (x == sum(rank + number for rank in range(transport.size))).all()


# Checks of a transport alone, on any number of ranks.
CHECKS = {
    **{f"average of {dtype}": partial(check_average, dtype=dtype) for dtype in DTYPES},
    **{f"ordered sums of {dtype}": partial(check_ordered_ignores_the_layout, dtype=dtype) for dtype in DTYPES},
    **{f"shared, {dtype}": partial(check_shared_has_the_bits_of_ordered, dtype=dtype) for dtype in DTYPES},
    **{f"reusable plan, {drive.__name__}": partial(check_plan_is_reusable, drive=drive) for drive in DRIVES},
    **{f"infinities, {drive.__name__}": partial(check_infinities_are_results, drive=drive) for drive in DRIVES},
    **{f"barrier, {asleep}": partial(check_barrier_of_the_transport, asleep=asleep) for asleep in (0, 1)},
    "average in fp16": check_average_in_fp16,
    "odd inputs": check_odd_inputs,
    "barrier": check_barrier,
    "one thread at a time": check_one_thread_at_a_time,
    "debug": check_debug_finds_another_plan,
    "plans in flight": check_plans_in_flight,
    "freed plans": check_requests_are_freed,
    "plans that run": check_starting_twice_is_refused,
}


def check_error(transport, kind, message, make) -> None:
    """Bad input raises the same readable error on every rank, and the transport still works afterwards."""
    said = None
    try:
        make(transport)
    except (ValueError, TypeError) as error:
        said = (type(error), str(error))
    answers = transport.gather_values(said)
    assert all(answer == answers[0] for answer in answers), answers
    assert answers[0] is not None, "no error was raised"
    assert issubclass(answers[0][0], kind)
    assert message in answers[0][1], answers[0][1]
    if make in (strided_call, read_only_call) and transport.size > 1:
        assert answers[0][1].endswith(" on rank 0")
    assert (all_reduce(np.ones(3), transport) == transport.size).all()


def strided_call(transport):
    """Rank 0 alone passes a view with gaps."""
    all_reduce(np.zeros((4, 4))[:, ::2] if transport.rank == 0 else np.zeros(8), transport)


def read_only_call(transport):
    """Rank 0 alone passes an array that must not be written."""
    x = np.zeros(4)
    x.flags.writeable = transport.rank != 0
    all_reduce(x, transport)


def misnumbered_call(transport):
    """Rank 0 has made one plan less than the others. (A call by function may have a plan that was kept.)"""
    if transport.rank != 0:
        transport.next_tag()
    try:
        make_plan("all_reduce", np.zeros(5), transport)
    finally:
        if transport.rank == 0:
            transport.next_tag()


# (what is wrong, type of the error, part of its message, the call that makes it)
BAD_CALLS = [
    ("count", ValueError, "all_reduce: count must be the same on all ranks, not 5 on rank 0",
     lambda t: all_reduce(np.zeros(5 + t.rank), t)),
    ("dtype", ValueError, "dtype must be the same on all ranks, not float32 on rank 0; float64 on rank",
     lambda t: all_reduce(np.zeros(5, np.float64 if t.rank else np.float32), t)),
    ("collective of ranks", ValueError, "collective must be the same on all ranks, not all_reduce on rank 0",
     lambda t: (reduce_scatter if t.rank else all_reduce)(np.zeros(5), t)),
    ("debug of ranks", ValueError, "debug must be the same on all ranks, not False on rank 0",
     lambda t: make_plan("all_reduce", np.zeros(5), t, debug=t.rank > 0)),
    ("order of plans", ValueError, "number of the plan must be the same on all ranks",
     misnumbered_call),
    ("op of ranks", ValueError, "op must be the same on all ranks, not sum on rank 0; max on rank",
     lambda t: all_reduce(np.zeros(5), t, op="max" if t.rank else "sum")),
    ("op", ValueError, "op 'smu' is unknown: did you mean 'sum'?",
     lambda t: all_reduce(np.zeros(5), t, op="smu")),
    ("algorithm", ValueError, "algorithm 'rnig' is unknown: did you mean 'ring'?",
     lambda t: make_plan("all_gather", np.zeros(5), t, algorithm="rnig")),
    ("collective", ValueError, "collective 'allreduce' is unknown: did you mean 'all_reduce'",
     lambda t: make_plan("allreduce", np.zeros(5), t)),
    ("contiguous", ValueError, "x must be contiguous, in C order, not of strides (32, 16): pass a copy",
     strided_call),
    ("read-only", ValueError, "x must be writable, because the result is stored there; it is read-only",
     read_only_call),
    ("type", ValueError, "x must be of an integer type, bool, complex or one of fp64, fp32, fp16, bf16 for all_red",
     lambda t: all_reduce(np.zeros(5, "S3"), t)),
    ("byte order", ValueError, "bf16 for all_reduce, not >i4: pass x.astype('int32')",
     lambda t: all_reduce(np.zeros(5, ">i4"), t)),
    ("objects", ValueError, "x must have elements of a fixed size, above 0, without Python objects, not object",
     lambda t: broadcast(np.array([None]), t)),
    ("max of complex", ValueError, "op 'max' needs ordered numbers, not complex64",
     lambda t: all_reduce(np.zeros(5, "c8"), t, op="max")),
    ("bits of floats", ValueError, "op 'bor' needs integers or bool, in an array of NumPy, not float64 of numpy",
     lambda t: all_reduce(np.zeros(5), t, op="bor")),
    ("type of a number", ValueError, "must be a whole number from 8 (one element) to 1073741824, not '1KB'",
     lambda t: all_reduce(np.zeros(5), t, segment_bytes="1KB")),
    ("no array", ValueError, "x must be a plain array of NumPy or CuPy, not NoneType",
     lambda t: all_reduce(None, t)),
    ("masked array", ValueError, "x must be a plain array of NumPy or CuPy, not numpy.ma.MaskedArray",
     lambda t: all_reduce(np.ma.array([1.0, 2.0], mask=[True, False]), t)),
    ("tensor", ValueError, "x must be a plain array of NumPy or CuPy, not torch.Tensor: pass x.numpy()",
     lambda t: all_reduce(Tensor(), t)),
    ("name of an argument", ValueError, "all_reduce: argument 'algoritm' is unknown: did you mean 'algorithm'?",
     lambda t: all_reduce(np.zeros(5), t, algoritm="ring")),
    ("type of the algorithm", ValueError, "algorithm must be a name such as 'ring', not 3",
     lambda t: all_reduce(np.zeros(5), t, algorithm=3)),
    ("type of the root", ValueError, "root must be a whole number from 0 to",
     lambda t: make_plan("broadcast", np.zeros(5), t, algorithm="naive", root=1.0)),
    ("counts", ValueError, "whole numbers >= 0, one for each rank, with the sum 5, not [7",
     lambda t: all_reduce(np.zeros(5), t, counts=[7] * t.size)),
    ("chunks of all_to_all", ValueError, "elements for all_to_all, one equal chunk per rank, not",
     lambda t: all_to_all(np.zeros(t.size + 1, np.uint8), t)),
    ("root", ValueError, "root must be a whole number from 0 to",
     lambda t: make_plan("broadcast", np.zeros(5), t, algorithm="naive", root=t.size)),
    ("root of all", ValueError, "root must be left out, not 1",
     lambda t: make_plan("all_reduce", np.zeros(5), t, root=1)),
    ("average", ValueError, "op 'average' needs one of fp64, fp32, fp16, bf16, not int64",
     lambda t: all_reduce(np.zeros(5, np.int64), t, op="average")),
    ("segment", ValueError, "segment_bytes must be a whole number from 8 (one element) to 1073741824, not 7",
     lambda t: all_reduce(np.zeros(5), t, segment_bytes=7)),
    ("out count", ValueError, "out must have 5 elements on rank 0",
     lambda t: all_reduce(np.zeros(5), t, out=np.zeros(6))),
    ("out dtype", ValueError, "out must have the dtype of x, float64, not float32",
     lambda t: all_reduce(np.zeros(5), t, out=np.zeros(5, np.float32))),
    ("overlap", ValueError, "out must not share memory with x; leave it out to work in place",
     lambda t: (lambda x: all_reduce(x, t, out=x))(np.zeros(5))),
    ("comm", TypeError, "comm must be an mpi4py communicator or a Transport, not int",
     lambda t: all_reduce(np.zeros(5), 3)),
]  # fmt: skip
NEEDS_PEERS = {"count", "dtype", "order of plans", "chunks of all_to_all"}
NEEDS_PEERS |= {what for what, *_ in BAD_CALLS if what.endswith(" of ranks")}


def check_shared_port(transport, side):
    """Each rank books 200 times 5 bytes from time 0 on: after all of them, a host has booked those of its ranks."""
    hosts = tuple(rank // 3 for rank in range(transport.size))
    port = port_of_host(Link(bandwidth=10.0), transport, hosts)
    transport.barrier()
    for _ in range(200):
        port.book(side, 0.0, 5)
    transport.barrier()
    assert port.free_s[side] == 100 * hosts.count(hosts[transport.rank])
    assert port.free_s[1 - side] == 0
