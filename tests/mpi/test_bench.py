"""The benchmark measures what it says, and its candidates are right."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dear_mpi.bench.case import OPERATIONS
from dear_mpi.bench.native import FORMS
from dear_mpi.bench.output import object_of, show_bench
from dear_mpi.bench.run import bench
from dear_mpi.bench.saved import rules_before, write_tuned
from dear_mpi.bench.suite import Suite
from dear_mpi.collectives.plans import functions
from dear_mpi.collectives.plans.tuning import read_rules
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.kernels.dtypes import DTYPES, TYPES
from dear_mpi.ranks.world import run_world
from dear_mpi.reporting.units import format_bytes
from tests.bench.readers import read_table
from tests.bench.runs import BAD_SUITES
from tests.cli_checks import invoke, succeed

pytestmark = pytest.mark.mpi

FEW = 3  # samples
QUICK = Suite(sizes=(8, 100, 10_000), segments=(512,), iterations=FEW, warmup=1, start="barrier")
KEYS = (  # a contract: scripts depend on them
    "collective algorithm backend device ranks bytes count dtype op placement segment_bytes samples min_us p50_us"
    " ci_low_us ci_high_us mean_us p99_us max_us algbw_GBps busbw_GBps wrong slow_rank model_us"
    " hosts cadence rank_min_us rank_max_us memory chosen peer over_peer start late"
    " rank_mean_us over_peer_low over_peer_high bound_us"
)


@pytest.fixture(autouse=True)
def _few_ranks(comm):
    if comm.size > 3:
        pytest.skip("slow where ranks share cores; 1 to 3 of them will do")


def measured(**settings):
    return run_world(lambda world: bench(replace(QUICK, **settings), world))


def skip_if_too_few(comm, collective):
    if comm.size < 1 + OPERATIONS[collective].is_messages:
        pytest.skip("it needs others")


@pytest.mark.parametrize("collective", OPERATIONS)
def test_rows(comm, collective):
    skip_if_too_few(comm, collective)
    report = measured(collectives=(collective,))
    assert all(" ".join(object_of(row, raw=False)) == KEYS for row in report.rows)
    for row in report.rows:
        assert row.wrong == 0
        assert row.samples == FEW
        assert 0 < row.min_us <= row.ci_low_us <= row.p50_us <= row.ci_high_us <= row.max_us
        assert row.algbw_GBps == pytest.approx(row.bytes / row.p50_us * 1e-3)
        assert row.busbw_GBps == pytest.approx(row.algbw_GBps * OPERATIONS[collective].factor(comm.size))
        assert 0 <= row.slow_rank < comm.size
        sends_messages = row.algorithm in ("ring", "auto") and row.chosen != "shared"
        assert (row.model_us is None) == (comm.size == 1 or not sends_messages)
        assert row.bound_us is None or (row.bound_us > 0 and comm.size > 1 and collective in COLLECTIVES)
        assert sum(row.hosts) == comm.size
        assert row.peer.startswith("native")
        assert row.chosen == row.algorithm or row.algorithm == "auto"
    assert all(answer == report for answer in comm.allgather(report))
    run_world(lambda world: show_bench(world, report, "table"))


@pytest.mark.parametrize("collective", OPERATIONS)
@pytest.mark.parametrize("placement", ["in", "out"])
def test_every_type_and_op_is_exact(comm, collective, placement):
    skip_if_too_few(comm, collective)
    if comm.size > 2:
        pytest.skip("tests/mpi/test_collectives.py has more ranks")
    for dtype in TYPES:
        for op in ("sum", "prod", "min", "max", "average")[: 5 if dtype in DTYPES else 4]:
            settings = {"placements": (placement,), "dtypes": (dtype,), "ops": (op,), "sizes": (100,)}
            report = measured(collectives=(collective,), algorithms=("naive", "native-best"), **settings)
            assert [row.wrong for row in report.rows] == [0] * len(report.rows)
            assert {row.algorithm for row in report.rows} >= {"naive" if collective in COLLECTIVES else "native"}


def test_a_wrong_result_is_counted(comm, monkeypatch):
    """A call that loses one element is found out."""
    whole = functions.all_reduce

    def losing(x, transport, **options):
        whole(x, transport, **options)
        x[-1] += 1

    monkeypatch.setattr(functions, "all_reduce", losing)
    rows = measured(algorithms=("native", "ring", "auto", "function"), sizes=(400 * comm.size,)).rows
    assert {row.algorithm for row in rows} == {"native", "ring", "auto", "function"}
    assert {row.algorithm for row in rows if row.wrong} == {"function"}


def test_who_cannot_run_is_left_out_with_the_reason(comm):
    sizes = (4 * comm.size, 4 * comm.size + 4)
    report = measured(collectives=("all_gather", "reduce"), sizes=sizes, algorithms=("naive", "native-counts"))
    cases = [(row.collective, row.bytes) for row in report.rows if row.algorithm == "native-counts"]
    equal = sizes if comm.size == 1 else sizes[:1]
    assert cases == [("all_gather", nbytes) for nbytes in equal]
    (reason,) = {why for why, _, _ in report.left_out}
    assert "-counts only for reduce_scatter, all_gather, gather, scatter of equal shards" in reason
    assert [nbytes for _, name, nbytes in report.left_out if name == "reduce"] == list(sizes)


@pytest.mark.parametrize(("settings", "message"), BAD_SUITES)
def test_bad_settings_are_refused_on_all_ranks(settings, message):
    with pytest.raises(ArgumentError, match=message):
        measured(**settings)


def test_all_calls_of_the_library_take_part(comm):
    settings = {"collectives": ("reduce_scatter",), "sizes": (8000 * comm.size,), "cadence": "streaming"}
    report = measured(algorithms=("native-best",), **settings)
    assert [row.algorithm for row in report.rows] == [f"native{suffix}" for suffix in FORMS]
    assert all(row.wrong == 0 and row.cadence == "streaming" for row in report.rows)
    assert {row.peer for row in report.rows} == {min(report.rows, key=lambda row: row.p50_us).algorithm}


def test_tune_writes_what_auto_reads(comm, tmp_path_factory):
    file = Path(comm.bcast(str(tmp_path_factory.mktemp("rules") / "rules.json")))
    old = {"collective": "all_reduce", "ranks": 99, "up_to_bytes": None, "algorithm": "naive", "segment_bytes": 4}
    if comm.rank == 0:
        file.write_text(json.dumps({"machine": {}, "rules": [old]}))
    comm.Barrier()
    settings = replace(QUICK, algorithms=("ring", "naive", "native"), segments=(512, 4096))

    def command(world):
        before = rules_before(file, settings, world, of_auto=True)
        report = bench(settings, world)
        said_by_rank_0(world.transport, "tune", lambda: write_tuned(file, before, report.rows, world.transport.name))
        return report

    report = run_world(command)
    assert {(row.algorithm, row.segment_bytes) for row in report.rows if row.bytes == 10_000} == {
        *(("ring", 512), ("ring", 4096), ("naive", 512), ("naive", 4096), ("native", 4096))
    }
    rules = read_rules(file)
    assert {rule.ranks for rule in rules} == {comm.size, 99}
    assert {rule.algorithm for rule in rules} <= {"ring", "naive"}
    again = measured(algorithms=(f"auto:{file}", "native"))
    assert all(row.wrong == 0 for row in again.rows)
    comm.Barrier()


def test_the_command_writes_its_rows(comm, tmp_path_factory):
    file = Path(comm.bcast(str(tmp_path_factory.mktemp("rows") / "rows.json")))
    sizes = ("--sizes", "4B:64B,1KiB", "--iterations", "3", "--json", str(file))
    result = succeed("bench", *sizes, "--collective", "all_gather,reduce", "--algorithms", "auto,native")
    comm.Barrier()
    rows = json.loads(file.read_text())["rows"]
    assert [row["bytes"] for row in rows] == [4, 4, 16, 16, 64, 64, 1024, 1024] * 2
    assert all(" ".join(row) == KEYS for row in rows)
    text = " ".join(result.stdout.split())
    assert ("all_gather, " in text) == (comm.rank == 0)
    if comm.rank == 0:
        lines = read_table(result.stdout)
        assert [(line["size"], line["wrong"]) for line in lines] == [(format_bytes(row["bytes"]), "0") for row in rows]
    comm.Barrier()


@pytest.mark.parametrize("sizes", ["64Q", "1KiB:1B", "4B,,8B"])
def test_bad_sizes_end_the_command(comm, sizes):
    result = invoke("bench", "--sizes", sizes)
    assert result.exit_code == 2
    assert ("error: --sizes: size" in result.stderr) == (comm.rank == 0)


def test_tune_is_refused_before_the_work(comm, tmp_path_factory):
    bad = Path(comm.bcast(str(tmp_path_factory.mktemp("rules") / "bad.json")))
    if comm.rank == 0:
        bad.write_text("[]")
    comm.Barrier()
    ring = replace(QUICK, algorithms=("ring",))
    for path, suite, message in (
        (bad.parent / "no such folder" / "rules.json", ring, "cannot be written"),
        (bad, ring, "it must be an object, not a list"),
        (bad, replace(ring, algorithms=("native", "auto")), "algorithms must name some that auto may pick"),
        (bad, replace(ring, dtypes=("fp32", "bf16")), "dtypes must be one: .*, not fp32, bf16"),
        (bad, replace(ring, ops=("sum", "max")), "ops must be one: .*, not sum, max"),
        (bad, replace(ring, placements=("in", "out")), "placements must be one: .*, not in, out"),
    ):
        with pytest.raises(ArgumentError, match=message):
            run_world(lambda world, path=path, suite=suite: rules_before(path, suite, world, of_auto=True))
