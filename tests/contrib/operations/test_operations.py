"""What MPI alone carries out is checked to the last element, timed as OSU does it, and measured once."""

from types import SimpleNamespace

import pytest

from dear_mpi.bench.case import OPERATIONS, Case, Prepared
from dear_mpi.bench.data import Data
from dear_mpi.bench.run import bench
from dear_mpi.bench.suite import Suite
from dear_mpi.bench.timing import Interleaved, needed_bytes
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.program.program import COLLECTIVES, Partition
from dear_mpi.contrib.operations.calls import WINDOW
from dear_mpi.ranks.streams import host_streams
from dear_mpi.ranks.world import run_world

ALONE = [name for name in OPERATIONS if name not in COLLECTIVES]
MOVING = [name for name in ALONE if name != "barrier"]
MESSAGES = [name for name in MOVING if OPERATIONS[name].is_messages]
CONDITIONS = {"placement": "out", "dtype": "fp32", "op": "sum", "cadence": "isolated"}


def case_of(collective, count, ranks, **conditions):
    return Case.of(collective, 4 * count, ranks, CONDITIONS | conditions)


def filled(case, ranks, turn):
    """The data of all ranks, as a call finds it."""
    worlds = [SimpleNamespace(rank=rank, size=ranks, transport=None) for rank in range(ranks)]
    found = [Data(case, world, host_streams(), "private") for world in worlds]
    for data in found:
        data.fill(turn)
    return found


def results(case, found):
    """Where each rank's result belongs, by what the operations are, and what belongs there: (array, values) pairs."""
    ranks, last = len(found), len(found) - 1
    out = [data.x if data.out is None else data.out for data in found]
    shards = [Partition.of(case.count, ranks).shard(rank) for rank in range(ranks)]
    whole = len(found[-1].x) == case.count  # so that parts have their places in it
    if case.collective == "gather":
        parts = [data.x[shard] if whole else data.x for data, shard in zip(found, shards, strict=True)]
        return [(out[0][shard], part.copy()) for shard, part in zip(shards, parts, strict=True)]
    if case.collective == "scatter":
        homes = [array if case.placement == "out" else array[shard] for array, shard in zip(out, shards, strict=True)]
        return [(home, found[0].x[shard].copy()) for home, shard in zip(homes, shards, strict=True)]
    if case.collective == "sendrecv":
        return [(out[(rank + 1) % ranks], data.x.copy()) for rank, data in enumerate(found)]
    there, back = (out[last], found[0].x), (out[0], found[last].x)
    pairs = [there] if case.collective == "bandwidth" else [there, back]
    window = WINDOW if case.collective != "ping_pong" else 1
    return [(place, sent.copy()) for array, sent in pairs for place in array.reshape(window, -1)]


@pytest.mark.parametrize("collective", MOVING)
@pytest.mark.parametrize("placement", ["in", "out"])
@pytest.mark.parametrize(("ranks", "count"), [(2, 40), (3, 40), (33, 70)])
def test_the_result_is_right_and_each_wrong_element_is_found(collective, placement, ranks, count):
    case = case_of(collective, count, ranks, placement=placement)
    for turn in (1, 40):
        found = filled(case, ranks, turn)
        due = results(case, found)
        for place, values in due:
            place[...] = values
        assert [data.errors(turn) for data in found] == [0] * ranks
        for place, _ in due[:: max(1, len(due) // 7)]:
            for at in range(0, len(place), 9):
                place[at] += 1
                assert sum(data.errors(turn) for data in found) == 1
                place[at] -= 1


@pytest.mark.parametrize(("nbytes", "window"), [(0, 64), (4, 64), (1 << 20, 64), (4 << 20, 16), (64 << 20, 4)])
def test_few_large_messages_are_under_way_at_once(nbytes, window):
    """And the time is that of one of them."""
    case = Case("bandwidth", nbytes, placement="out")
    assert case.window == window
    assert needed_bytes(case, ["native"], (0, 0)) == (3 + window) * nbytes


@pytest.mark.parametrize("collective", ["sendrecv", "ping_pong", "both_ways"])
def test_a_message_of_another_rank_is_wrong(collective):
    found = filled(case_of(collective, 100, 32), 32, 5)
    for data in found:
        if data.out.size:
            data.out.reshape(OPERATIONS[collective].window, -1)[...] = data.x
    assert all(data.errors(5) > 0.9 * data.result.size for data in found if data.out.size)


def test_what_makes_no_difference_is_measured_once():
    sizes = (4, 5, 64)
    for dtype, op, placement in (("fp64", "max", "in"), ("int8", "sum", "out")):
        suite = Suite(sizes, tuple(ALONE), dtypes=(dtype,), ops=(op,), placements=(placement,))
        cases = suite.cases(3)
        (barrier,) = [case for case in cases if case.collective == "barrier"]
        assert (barrier.nbytes, barrier.dtype, barrier.placement) == (0, "fp32", "in")
        assert {case.op for case in cases} == {"sum"}
        assert {case.placement for case in cases if OPERATIONS[case.collective].pair} == {"out"}
        assert {case.placement for case in cases if case.collective == "gather"} == {placement}


@pytest.mark.parametrize(
    ("collective", "parts"), [("gather", 1), ("ping_pong", 2), ("bandwidth", 64), ("both_ways", 64)]
)
def test_the_time_is_that_of_one_part_of_a_run(collective, parts):
    """A round trip is two ways, and a window as many messages as OSU's."""
    interleaved = object.__new__(Interleaved)
    interleaved.case, interleaved.turn, interleaved.start = case_of(collective, 100, 2), 1, lambda: True
    interleaved.stream = SimpleNamespace(mark=lambda: None, seconds=lambda begin, end: 6.4)
    data = SimpleNamespace(fill=lambda turn: None, errors=lambda turn: 0)
    elapsed_s, *_ = interleaved.sample(Prepared(lambda: None), data)
    assert interleaved.in_time([[elapsed_s], [elapsed_s]])[0][0] == [pytest.approx(6.4 / parts)]


@pytest.mark.parametrize(("placement", "calls"), [("out", "aabb"), ("in", "ab")])
def test_out_of_place_a_sample_follows_a_call_of_its_own(placement, calls):
    """Else it would pay for the cache lines of ``out`` that another candidate's ranks have read."""
    interleaved, made = object.__new__(Interleaved), []
    interleaved.case, interleaved.turn = case_of("all_gather", 100, 2, placement=placement), 1
    interleaved.start, interleaved.stream = lambda: True, SimpleNamespace(mark=int, seconds=lambda begin, end: 1.0)
    data = SimpleNamespace(fill=lambda turn: None, errors=lambda turn: 0)
    for name in "ab":
        interleaved.sample(Prepared(lambda name=name: made.append(name)), data)
    assert made == [*calls]


@pytest.mark.parametrize("collective", MESSAGES)
def test_messages_need_another_rank(collective):
    with pytest.raises(ArgumentError, match=f"bench: collective '{collective}' needs at least 2 ranks, not 1"):
        run_world(lambda world: bench(Suite((64,), ("all_reduce", collective)), world), threads=1)


@pytest.mark.parametrize("algorithms", [(), ("ring", "function"), ("ring", "native")])
def test_ours_sit_out_what_has_no_program(algorithms):
    settings = Suite((64, 100), ("gather", "all_reduce", "barrier"), algorithms, iterations=3)
    report = run_world(lambda world: bench(settings, world), threads=2)
    assert {row.collective for row in report.rows} == {"all_reduce"}
    for name in set(settings.names) - {"native", "native-best"}:
        why = f"{name}: has no program for it: only MPI's own calls are measured"
        places = [left[1:] for left in report.left_out if left[0] == why]
        assert places == [("gather", 64), ("gather", 100), ("barrier", 0)]


def test_a_name_is_looked_up_where_nothing_has_a_program():
    with pytest.raises(ArgumentError, match="'rnig' is unknown: did you mean 'ring'"):
        run_world(lambda world: bench(Suite((64,), ("gather",), ("native", "rnig")), world), threads=2)
    with pytest.raises(ArgumentError, match="nothing can be measured here: ring: has no program for it"):
        run_world(lambda world: bench(Suite((64,), ("gather",), ("ring",)), world), threads=2)
