"""What MPI alone carries out: every call is right, and a wrong element of any of them is found."""

from dataclasses import replace

import pytest

from dear_mpi.bench import timing
from dear_mpi.bench.case import OPERATIONS
from dear_mpi.bench.native import FORMS
from dear_mpi.bench.output import FORMATS
from dear_mpi.bench.run import bench
from dear_mpi.bench.suite import Suite
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.units import format_bytes, grouped
from tests.bench.readers import read_table

pytestmark = pytest.mark.mpi

ALONE = [name for name in OPERATIONS if name not in COLLECTIVES]
KINDS = {"gather": FORMS, "scatter": FORMS, "barrier": ("", "-nonblocking", "-persistent")}
PAIR = ("", "-persistent")


@pytest.fixture(autouse=True)
def _two_ranks(comm):
    if comm.size < 2:
        pytest.skip("there is nobody to send to")


def measured(*collectives, **settings):
    suite = Suite((8, 100, 50_000), collectives, iterations=3, warmup=1, start="barrier")
    return run_world(lambda world: bench(replace(suite, **settings), world))


def kinds_of(collective, placement):
    """Which calls there are, where all parts are as long."""
    if collective == "sendrecv":
        return ("", "-nonblocking", "-persistent") if placement == "out" else ("",)
    kinds = KINDS.get(collective, PAIR)
    return [kind for kind in kinds if not kind.endswith("-beside")]


@pytest.mark.parametrize("placement", ["in", "out"])
def test_all_calls_of_the_library_are_right(comm, placement):
    settings = {"sizes": (4 * comm.size, 400 * comm.size), "placements": (placement,)}
    report = measured(*ALONE, algorithms=("native-best",), **settings)
    for collective, rows in grouped(report.rows, lambda row: row.collective).items():
        kinds = kinds_of(collective, placement)
        assert {row.algorithm for row in rows} == {f"native{kind}" for kind in kinds}
        assert len(rows) == len(kinds) * (1 if collective == "barrier" else 2)
        assert [row.wrong for row in rows] == [0] * len(rows)
    assert not report.left_out


def spoilt(setup, prepared, at):
    """The same call, whose result has a wrong element, on the rank that has one there."""
    result = setup.x if setup.out is None else setup.out

    def run():
        prepared.run()
        if result.size:
            result[int(at * (result.size - 1))] += 1

    return replace(prepared, run=run)


@pytest.mark.parametrize("kind", ["", "-persistent"])
@pytest.mark.parametrize("at", [0, 0.4, 1])
def test_a_wrong_element_is_counted(comm, monkeypatch, kind, at):
    whole = timing.prepare

    def losing(name, setup):
        prepared = whole(name, setup)
        return spoilt(setup, prepared, at) if name == f"native{kind}" else prepared

    monkeypatch.setattr(timing, "prepare", losing)
    kinds, moving = ("native", "native-persistent"), [name for name in ALONE if name != "barrier"]
    report = measured(*moving, sizes=(400 * comm.size,), algorithms=kinds, placements=("out",))
    found = {(row.collective, row.algorithm): row.wrong > 0 for row in report.rows}
    assert found == {(collective, name): name == f"native{kind}" for collective in moving for name in kinds}


@pytest.mark.parametrize("cadence", ["isolated", "streaming"])
def test_the_time_of_a_pair_is_the_first_ranks(comm, monkeypatch, cadence):
    monkeypatch.setattr("dear_mpi.bench.timing.CALLS", (3, 2))
    report = measured("ping_pong", "bandwidth", "gather", algorithms=("native",), cadence=cadence, placements=("out",))
    assert not any(row.wrong for row in report.rows)
    for row in report.rows:
        assert len(row.times_us) == (comm.size if row.collective == "gather" else 1)
        if row.collective != "gather":
            assert (row.slow_rank, row.rank_min_us, row.rank_mean_us) == (0, row.rank_max_us, row.rank_max_us)


@pytest.mark.parametrize("collective", ALONE)
def test_what_was_measured_can_be_read(comm, collective):
    report = measured(collective)
    assert {row.algorithm.partition("-")[0] for row in report.rows} == {"native"}
    lines = read_table("\n".join(line.plain for line in FORMATS["table"].lines(report)))
    sizes = {row.bytes for row in report.rows}
    assert [line["size"] for line in lines] == list(map(format_bytes, sorted(sizes)))


@pytest.mark.parametrize(("collective", "algorithm", "reason"), [
    ("gather", "ring", "has no program for it: only MPI's own calls are measured"),
    ("barrier", "function", "has no program for it: only MPI's own calls are measured"),
    ("bandwidth", "native-nonblocking", "bandwidth has only native and -persistent"),
    ("sendrecv", "native-persistent", "sendrecv in place is only MPI_Sendrecv_replace"),
    ("scatter", "native-beside", "-beside only for reduce_scatter and all_reduce in place"),
    ("barrier", "native-counts", "-counts only for"),
])  # fmt: skip
def test_who_sits_out_says_why(comm, collective, algorithm, reason):
    report = measured(collective, algorithms=("native", algorithm))
    assert {name for _, name, _ in report.left_out} == {collective}
    assert all(why.startswith(f"{algorithm}: {reason}") for why, _, _ in report.left_out)
    with pytest.raises(ArgumentError, match=f"nothing can be measured here: {algorithm}: {reason}"):
        measured(collective, algorithms=(algorithm,))


@pytest.mark.parametrize("collective", ["ping_pong", "bandwidth", "all_gather"])
def test_messages_of_a_pair_in_a_row_have_no_barriers(comm, monkeypatch, collective):
    """They wait for each other by themselves, and OSU's have none."""
    seen, loop = [], timing.in_a_row

    def in_a_row(run, between, calls):
        if calls == 3:  # not those of the loop's own cost
            seen.append(between)
        return loop(run, between, calls)

    monkeypatch.setattr(timing, "CALLS", (3, 3))
    monkeypatch.setattr(timing, "in_a_row", in_a_row)
    measured(collective, algorithms=("native",), cadence="streaming", placements=("out",))
    assert seen
    assert {between is int for between in seen} == {collective != "all_gather"}
