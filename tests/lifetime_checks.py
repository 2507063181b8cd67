"""What must hold of plans that are kept, dropped or broken off: run by loopback threads and under mpirun alike."""

import gc
import os
import random
import tracemalloc
import weakref

import numpy as np

from dear_mpi.collectives import (
    ALGORITHMS,
    Partition,
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    make_plan,
    reduce_scatter,
)
from dear_mpi.collectives.plans.functions import MOST_PLANS, CachedPlans
from dear_mpi.collectives.program.errors import MismatchError, TransportError
from dear_mpi.collectives.transports.transport import Wrapper
from tests.collective_checks import refusal

COUNTS = [5, 1003, 30_011, 200_003]  # in memory of the plan's own, and in the array's


def whole_numbers(rank: int, count: int, seed: int) -> np.ndarray:
    return np.random.default_rng([rank, count, seed]).integers(-9, 9, count).astype(np.float64)


def check_plans_are_cached(transport, count: int, algorithm: str = "ring") -> None:
    """One plan serves all calls of a kind, whichever array is given, in place and not; and keeps no array alive."""
    size, before = transport.size, CachedPlans.of(transport).made
    seen, living = [], []
    for seed in range(5):
        data = [whole_numbers(rank, count, seed) for rank in range(size)]
        x, out = data[transport.rank].copy(), np.empty(count)
        assert all_reduce(x, transport, algorithm=algorithm, out=out) is out
        np.testing.assert_array_equal(x, data[transport.rank])
        assert all_reduce(x, transport, algorithm=algorithm) is x
        np.testing.assert_array_equal(x, np.sum(data, axis=0))
        np.testing.assert_array_equal(out, x)
        seen.append(weakref.ref(x))
        living.append(out)  # so that the next one is elsewhere
        del x
        assert seen[-1]() is None
    assert CachedPlans.of(transport).made == before + 2


def check_all_functions_are_kept(transport, count: int) -> None:
    """Results are as in the table at the head of the package, also from the second call on."""
    rank, size = transport.rank, transport.size
    before = CachedPlans.of(transport).made
    for seed in range(3):
        data = [whole_numbers(other, count, seed) for other in range(size)]
        total = np.sum(data, axis=0)
        x = data[rank].reshape(1, -1).copy()
        shard = reduce_scatter(x, transport)
        assert shard.size == 0 or np.may_share_memory(shard, x)
        out = np.full_like(shard, np.nan)
        assert reduce_scatter(data[rank], transport, out=out) is out
        np.testing.assert_array_equal(out, shard)
        assert all_gather(x, transport) is x
        np.testing.assert_array_equal(x[0], total)
        full = np.empty((count, 1))
        assert all_gather(out, transport, out=full) is full
        np.testing.assert_array_equal(full[:, 0], total)
        y = data[rank].copy()
        assert broadcast(y, transport, root=size - 1) is y
        np.testing.assert_array_equal(y, data[-1])
        counts = [len(data[rank]), *[0] * (size - 1)]  # a list, which has no hash
        assert all_reduce(data[rank], transport, op="average", counts=counts) is data[rank]
        np.testing.assert_array_equal(data[rank], total * (1 / size))
    assert CachedPlans.of(transport).made == before + 6


def said_by(transport, call) -> str:
    """What a call raises, which must be the same on all ranks; the transport works afterwards."""
    try:
        call()
        said = ""
    except (MismatchError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
    assert len(set(transport.gather_values(said))) == 1
    x = np.ones(5)
    all_reduce(x, transport)
    assert (x == transport.size).all()
    return said


def check_hits_and_misses_disagree(transport) -> None:
    """A rank that has a plan of its call, and others that have another or none: one error on all of them."""
    last, x = transport.rank == transport.size - 1, np.ones(5)
    for op in ("sum", "max"):
        all_reduce(x, transport, op=op)
    for odd, what in [
        (lambda: all_reduce(np.ones(6), transport), "count"),
        (lambda: all_reduce(np.ones(5, np.float32), transport), "dtype"),
        (lambda: all_reduce(np.ones(5), transport, op="max"), "op"),
        (lambda: all_reduce(np.ones(5), transport, algorithm="bruck"), "algorithm"),
        (lambda: reduce_scatter(np.ones(5), transport), "collective"),
        (lambda: make_plan("all_gather", np.ones(5), transport), "collective"),
        (lambda: make_plan("all_reduce", np.ones(5), transport, op="min"), "op"),
    ]:
        said = said_by(transport, odd if last else lambda: all_reduce(np.ones(5), transport))
        assert said.startswith("MismatchError"), said
        assert f"{what} must be the same on all ranks" in said, said
    said = said_by(transport, lambda: all_reduce(np.ones(5), transport, **{"algoritm": "ring"} if last else {}))
    assert said.startswith("ArgumentError: all_reduce: argument 'algoritm' is unknown"), said
    read_only = np.ones(5)
    read_only.flags.writeable = False
    said = said_by(transport, lambda: all_reduce(read_only if last else np.ones(5), transport))
    assert said.startswith("ArgumentError: all_reduce: x must be writable"), said


def check_kept_plans_are_bounded(transport) -> None:
    for count in range(1, MOST_PLANS + 20):
        x = np.ones(count)
        for _ in range(2):
            all_reduce(x, transport)
        assert (x == transport.size**2).all()
    cached_plans = CachedPlans.of(transport)
    assert len(cached_plans.kept) == len(cached_plans.numbers) == MOST_PLANS


def check_dropped_plans_keep_their_memory(transport) -> None:
    """Messages of a plan that nobody holds any longer go on: neither new arrays nor what peers get may change."""
    count, size = 500_000, transport.size
    x = whole_numbers(transport.rank, count, 0)
    array = weakref.ref(x)
    plan = make_plan("reduce_scatter", x, transport, segment_bytes=8 * count)
    transport.gather_values(None)
    plan.start()
    del plan, x
    gc.collect()
    assert size == 1 or array() is not None
    others = [np.full(count // size + 1, 7.0) for _ in range(20)]
    for _ in range(50):
        transport.barrier()
    assert all((other == 7).all() for other in others)
    for plan in [each for each in transport.under_way if getattr(each, "result", None) is not None]:
        if plan.running and plan.transport is transport:
            own = plan.call.partition(size).shard(transport.rank)
            expected = np.sum([whole_numbers(rank, count, 0) for rank in range(size)], axis=0)[own]
            np.testing.assert_array_equal(plan.wait(), expected)
            plan.free()
    plan = None
    gc.collect()
    assert array() is None


class Failing(Wrapper):
    """A transport whose receives fail, once ``error`` is set."""

    error = None

    def recv_init(self, data, peer, tag):
        return FailingRequest(self.below.recv_init(data, peer, tag), self)


class FailingRequest(Wrapper):
    def __init__(self, below, transport):
        super().__init__(below)
        self.transport = transport

    def Wait(self):
        self.below.Wait()
        self.fail()

    def Test(self):
        over = self.below.Test()
        if over:
            self.fail()
        return over

    def fail(self):
        if self.transport.error is not None:
            raise self.transport.error


def check_a_plan_that_was_broken_off_says_so(transport, error, drive) -> None:
    """Whatever is done with it next, but for freeing it; another plan works."""
    failing = Failing(transport)
    plan = make_plan("all_reduce", np.ones(100), failing)
    drive(plan)
    failing.error = error
    try:
        drive(plan)
    except (KeyboardInterrupt, TransportError):
        pass
    else:
        raise AssertionError("no error came through")
    failing.error = None
    for call in (plan.start, plan.wait, plan.advance, plan):
        name = "KeyboardInterrupt" if isinstance(error, KeyboardInterrupt) else "TransportError"
        assert f"was broken off by {name}" in refusal(call), call
    plan.free()
    assert plan in transport.under_way
    transport.barrier()
    x = np.ones(100)
    all_reduce(x, failing)
    assert (x == transport.size).all()


def check_a_cached_plan_that_was_broken_off_is_made_again(transport, count: int) -> None:
    failing = Failing(transport)
    for error in (None, KeyboardInterrupt(), None, None):
        failing.error, x = error, np.ones(count)
        try:
            all_reduce(x, failing)
            assert (x == transport.size).all()
        except KeyboardInterrupt:
            assert failing.error is not None
            failing.error.__traceback__ = None  # it holds the arrays, too
            array = weakref.ref(x)
            transport.barrier()
    del x
    gc.collect()
    assert count <= 5000 or array() is not None, "messages may still be written to it"
    assert CachedPlans.of(failing).made == 2


KINDS = [
    (collective, algorithm, count, dtype, op)
    for collective, op in (
        *(("all_reduce", "sum"), ("all_reduce", "min"), ("reduce_scatter", "max")),
        *(("all_gather", ""), ("all_to_all", "")),
    )
    for algorithm in ("ring", "auto", "bruck", "shared")
    for count, dtype in ((3, np.float64), (700, np.int32), (20_011, np.float32), (90_001, np.float64))
    if algorithm == "auto" or collective in ALGORITHMS[algorithm]
]
FUNCTIONS = {call.__name__: call for call in (all_reduce, reduce_scatter, all_gather, all_to_all)}
OPS = {"sum": np.sum, "max": np.max, "min": np.min, "": lambda data, axis: data[0]}


def soak(transport, seed: int, turns: int) -> None:
    """One-off calls, and plans that are kept for a while: the same on all ranks, by the seed."""
    choice, rank, size = random.Random(seed), transport.rank, transport.size
    held = []
    for turn in range(turns):
        collective, algorithm, count, dtype, op = choice.choice(KINDS)
        count -= count % size if collective == "all_to_all" else 0
        own = Partition.of(count, size).shard(rank)
        data = [whole_numbers(other, count, seed + turn).astype(dtype) for other in range(size)]
        expected, x = OPS[op](data, axis=0), data[rank].copy()
        x[own] = data[0][own] if collective == "all_gather" else x[own]
        if collective == "all_to_all":
            expected = np.concatenate([part[own] for part in data])
        options = {"algorithm": algorithm} | ({"op": op} if op else {})
        if choice.random() < 0.7:
            result = FUNCTIONS[collective](x, transport, **options)
        else:
            held.append(make_plan(collective, x, transport, **options))
            if choice.random() < 0.5:
                held[-1].start()
            result = held[-1].wait() if held[-1].running else held[-1]()
        np.testing.assert_array_equal(result, expected[own] if collective == "reduce_scatter" else expected)
        while len(held) > choice.randrange(1, 6):
            held.pop(choice.randrange(len(held))).free()
        if choice.random() < 0.05:
            gc.collect()
    for plan in held:
        plan.free()


def check_soak(transport, turns: int, beside=lambda seed: None) -> None:
    """Results are NumPy's; neither memory nor descriptors grow. ``beside`` is done in between."""

    def in_use(seed):
        soak(transport, seed, turns)
        beside(seed)
        CachedPlans.of(transport).free()
        gc.collect()
        transport.barrier()
        used = tracemalloc.get_traced_memory()[0], len(os.listdir("/proc/self/fd"))
        transport.barrier()  # ranks that are threads count each other's memory: no one may go on before
        return used

    tracemalloc.start()
    try:
        _, (memory, files), *_, (memory_later, files_later) = [in_use(seed) for seed in range(6)]
        transport.barrier()
    finally:
        tracemalloc.stop()
    assert files_later <= files + 1
    assert memory_later < memory + 100_000
