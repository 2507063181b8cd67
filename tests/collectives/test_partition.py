"""How buffers split over ranks: what holds of any count, number of ranks and weights."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dear_mpi.collectives import ALGORITHMS, make_plan
from dear_mpi.collectives.algorithms.registry import runner_of
from dear_mpi.collectives.lowering.messages import WHOLE, Portion
from dear_mpi.collectives.program.errors import AgreedError
from dear_mpi.collectives.program.program import Partition, chunk_bounds
from dear_mpi.collectives.transports.loopback import run_loopback
from dear_mpi.collectives.transports.transport import StagedTransport

COUNTS = st.integers(0, 100_000)
SIZES = st.integers(1, 40)
WEIGHT = st.one_of(st.integers(0, 1000), st.floats(0, 1e6), st.sampled_from([0.1, 1 / 3, 1e-9]))
WEIGHTS = st.lists(WEIGHT, min_size=1, max_size=20).filter(any)


def check_cover(borders, count, parts):
    """From 0 to the count, never backwards: so every element belongs to one part."""
    assert len(borders) == parts + 1
    assert (borders[0], borders[-1]) == (0, count)
    assert list(borders) == sorted(borders)


@given(count=COUNTS, size=SIZES)
def test_even_shards_cover_the_buffer_and_differ_by_one_at_most(count, size):
    partition = Partition.of(count, size)
    check_cover(partition.borders, count, size)
    assert partition.counts == sorted(partition.counts, reverse=True)
    assert max(partition.counts) - min(partition.counts) <= 1
    assert partition.count == count
    shards = [partition.shard(rank) for rank in range(size)]
    assert [(shard.start, shard.stop) for shard in shards] == [chunk_bounds(count, size, rank) for rank in range(size)]


@given(count=COUNTS, weights=WEIGHTS)
def test_weighted_shards_cover_the_buffer_in_proportion(count, weights):
    """Each within one element of its exact part, which counts the elements that rounding leaves over."""
    partition = Partition.of(count, len(weights), weights)
    check_cover(partition.borders, count, len(weights))
    total = sum(map(float, weights))
    for got, weight in zip(partition.counts, weights, strict=True):
        assert abs(got - count * weight / total) < 1 + 1e-6
        assert weight or not got, "a rank of weight 0 owns nothing"


@given(count=COUNTS, weights=WEIGHTS, parts=st.integers(1, 7))
def test_parts_cut_each_shard_evenly(count, weights, parts):
    partition = Partition.of(count, len(weights), weights)
    chunks = partition.chunks(parts)
    check_cover(chunks, count, parts * len(weights))
    assert chunks[::parts] == partition.borders
    for rank, shard in enumerate(partition.counts):
        own = chunks[rank * parts : (rank + 1) * parts + 1]
        assert [stop - start for start, stop in itertools.pairwise(own)] == Partition.of(shard, parts).counts


@pytest.mark.parametrize(("weights", "message"), [
    ([1, 1], "weights must be 3 numbers, one for each rank, not [1, 1]"),
    ([], "weights must be 3 numbers, one for each rank, not []"),
    (3, "weights must be 3 numbers, one for each rank, not 3"),
    ("abc", "weights must be 3 numbers, one for each rank, not 'abc'"),
    ([1, -1, 1], "weights must be finite numbers >= 0, not all of them 0, not [1, -1, 1]"),
    ([0, 0, 0], "not all of them 0, not [0, 0, 0]"),
    ([1, float("inf"), 1], "weights must be finite numbers >= 0"),
    ([1, float("nan"), 1], "weights must be finite numbers >= 0"),
])  # fmt: skip
def test_bad_weights(weights, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        Partition.of(10, 3, weights)
    assert message in str(caught.value)


@given(counts=st.lists(st.integers(0, 1000), min_size=1, max_size=20))
def test_counts_are_exact(counts):
    partition = Partition.exactly(sum(counts), len(counts), counts)
    check_cover(partition.borders, sum(counts), len(counts))
    assert partition.counts == counts
    assert Partition.exactly(sum(counts), len(counts), np.array(counts)) == partition


@pytest.mark.parametrize("counts", [[5, 5], [5, 5, 1], [11, -1, 0], [5.0, 5, 0], 10, "55", [None] * 3, []])
def test_bad_counts(counts):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        Partition.exactly(10, 3, counts)
    due = "counts must be 3 whole numbers >= 0, one for each rank, with the sum 10, not"
    assert str(caught.value) == f"{due} {counts!r}"


# Plans of portions of every chunk, run in any order, have the bits of one plan of the whole.

SEGMENT = 256
CASES = [
    (algorithm, collective)
    for algorithm, functions in ALGORITHMS.items()
    for collective in ("reduce_scatter", "all_gather", "all_reduce", "all_to_all")
    if collective in functions and runner_of(algorithm) == "messages"
]


def carried_out(transport, algorithm, collective, portions, count, *, debug=False):
    """What this rank has afterwards, as bytes: of a reduce_scatter its shard; an all_to_all has equal chunks."""
    count -= count % transport.size if collective == "all_to_all" else 0
    x = np.random.default_rng(transport.rank).standard_normal(count).astype(np.float32)
    how = {"algorithm": algorithm, "segment_bytes": SEGMENT, "debug": debug}
    plans = [make_plan(collective, x, transport, portion=portion, **how) for portion in portions]
    for plan in plans:
        plan()
    shard = plans[0].call.partition(transport.size).shard(transport.rank)
    for plan in plans:
        plan.free()
    return (x[shard] if collective == "reduce_scatter" else x).tobytes()


@pytest.mark.parametrize(("algorithm", "collective"), CASES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_portions_in_any_order_have_the_bits_of_the_whole(algorithm, collective, ranks):
    portions = [Portion(2, 7, 7), Portion(0, 1, 7), Portion(1, 2, 7)]
    for count in (0, ranks + 1, 5003):
        whole, parts = (
            run_loopback(ranks, lambda each, p=p, c=count: carried_out(each, algorithm, collective, p, c))
            for p in ([WHOLE], portions)
        )
        assert whole == parts


def test_portions_of_staged_buffers_in_debug_mode():
    def body(transport):
        staged = StagedTransport(transport)
        return carried_out(staged, "ring", "all_reduce", [Portion(1, 2, 2), Portion(0, 1, 2)], 5000, debug=True)

    assert run_loopback(3, body) == run_loopback(3, lambda each: carried_out(each, "ring", "all_reduce", [WHOLE], 5000))


@pytest.mark.parametrize(("how", "said"), [
    ({"op": "average"}, "portion must be left out if out is given or op is .average."),
    ({"out": np.zeros(8)}, "portion must be left out if out is given or op is .average."),
])  # fmt: skip
def test_what_is_of_the_whole_has_no_portions(how, said):
    with pytest.raises(AgreedError, match=said):
        run_loopback(2, lambda each: make_plan("all_reduce", np.ones(8), each, portion=Portion(0, 1, 2), **how))


def test_ranks_compare_portions():
    portions = Portion(0, 1, 2), Portion(1, 2, 2)
    with pytest.raises(AgreedError, match="portion"):
        run_loopback(2, lambda each: make_plan("all_reduce", np.ones(8), each, portion=portions[each.rank]))
