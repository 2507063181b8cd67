"""A flipped bit in a message is traced to the rank, the chunk and the step that received it."""

import json
import random
import re
from dataclasses import replace

import pytest

from dear_mpi.bench.arrivals.arrival import Arrival
from dear_mpi.bench.case import Case
from dear_mpi.bench.contest import Contest
from dear_mpi.bench.found.findings import Findings
from dear_mpi.bench.found.located import Checks
from dear_mpi.bench.run import bench
from dear_mpi.bench.shown.osu import osu_lines
from dear_mpi.bench.shown.table import table_lines
from dear_mpi.bench.stand import Stand
from dear_mpi.bench.timing.interleaved import Interleaved
from dear_mpi.collectives.algorithms.registry import programs
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.ranks.world import run_world
from tests.bench.flips import ALWAYS, ONCE, Flips, case_of, chunk_of, is_fitted, is_located, planted, received
from tests.bench.readers import unfolded

ALGORITHMS = ["ring", "bidirectional", "bruck", "rabenseifner", "swing", "torus", "naive", "ordered"]


def faults(collective, algorithm, ranks, times, *, segment_bytes=1 << 16, hits=4, **settings):
    """Some messages, each with what was found where it was flipped."""
    case = case_of(collective, **settings)
    every = received(case, algorithm, ranks, segment_bytes)
    for hit in random.Random(ranks).sample(every, min(hits, len(every))):
        fault = run_world(
            lambda world, hit=hit: planted(world, case, algorithm, segment_bytes, hit, times), threads=ranks
        )
        yield hit, fault


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_bit_that_is_always_flipped_is_located(algorithm, collective, ranks):
    for hit, fault in faults(collective, algorithm, ranks, ALWAYS):
        assert is_located(fault, hit), (hit, fault)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        ("all_reduce", "recursive_doubling"),
        ("all_reduce", "double_tree"),
        ("all_reduce", "binomial"),
        ("reduce", "binomial"),
        ("broadcast", "binomial"),
        ("all_to_all", "pairwise"),
        ("all_to_all", "naive"),
    ],
)
def test_in_other_collectives_too(algorithm, collective, ranks):
    for hit, fault in faults(collective, algorithm, ranks, ALWAYS):
        assert is_located(fault, hit), (hit, fault)
    for hit, fault in faults(collective, algorithm, ranks, ONCE, hits=2):
        assert is_fitted(fault, hit), (hit, fault)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
@pytest.mark.parametrize("algorithm", ["ring", "rabenseifner", "bruck"])
def test_a_bit_that_was_flipped_once_is_among_what_fits(algorithm, collective, ranks):
    for hit, fault in faults(collective, algorithm, ranks, ONCE):
        assert is_fitted(fault, hit), (hit, fault)
        assert "wrong in 1 of 4 calls, first on rank" in fault.text()
        assert "not seen again in 3 more calls; that fits what rank" in fault.text()


@pytest.mark.parametrize("algorithm", ["ring", "double_tree"])
def test_segments_of_a_chunk_are_told_apart(algorithm):
    for hit, fault in faults("all_reduce", algorithm, 3, ALWAYS, segment_bytes=256, hits=8):
        assert is_located(fault, hit), (hit, fault)


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather", "broadcast"])
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_every_op_and_placement_has_its_values(collective, op):
    for hit, fault in faults(collective, "naive", 3, ALWAYS, op=op, placement="out"):
        first = fault.rank, fault.chunk, fault.step, fault.peer, fault.element, fault.point
        rank, message, _ = hit
        assert first == (rank, chunk_of(hit), message.key[0], message.peer, message.start, "arrived"), (hit, fault)


@pytest.mark.parametrize(
    ("dtype", "op"), [("fp16", "average"), ("bf16", "sum"), ("fp64", "average"), ("fp32", "min"), ("int8", "max")]
)
@pytest.mark.parametrize("placement", ["in", "out"])
def test_what_is_right_is_right_in_every_type(dtype, op, placement):
    """A check of messages that are all right finds nothing, though the result is said to be wrong."""
    case = Case("all_reduce", 8 * 999, dtype=dtype, op=op, placement=placement)

    def on_each_rank(world):
        interleaved = Interleaved(case, [("ring", 1 << 10)], Stand.of(world, case))
        prepared, data = interleaved.ready["ring", 1 << 10]
        checks = Checks(prepared.run, data, world.transport)
        looked, look = [], checks.look
        checks.checked.look = lambda *arguments: looked.append(arguments) or look(*arguments)
        checks.checked.bind_all()
        return checks.calls(0.0), len(looked)

    found, looked = run_world(on_each_rank, threads=4)
    assert found == ([], 3)
    assert looked > 3 * 6 * 2


def damaged(ranks, damage, algorithm="ring"):
    """The fault that is found where ``damage(rank, prepared)`` has changed what a rank does."""

    def on_each_rank(world):
        case = Case("all_reduce", 4 * 30)
        stand = Stand.of(world, case)
        interleaved = Interleaved(case, [(algorithm, 1 << 10)], stand)
        ((key, (prepared, data)),) = interleaved.ready.items()
        interleaved.ready[key] = damage(world.rank, prepared), data
        findings = Findings()
        findings.look(interleaved.case, interleaved.run(2, skipped=1), interleaved, stand, 0.0)
        return findings.faults

    (fault,) = run_world(on_each_rank, threads=ranks)
    return fault


def adding(rank, prepared, to=2):
    """After the run of a rank an element is another one."""

    def more():
        x = prepared.run.call.x if isinstance(prepared.run, Plan) else prepared.run.args[0]
        x[17] += 65536

    if rank != to:
        return prepared
    if isinstance(prepared.run, Plan):
        prepared.run.after = [more]
        return prepared
    return replace(prepared, run=lambda run=prepared.run: (run(), more()))


def test_what_goes_wrong_after_the_last_step_is_no_steps_fault():
    fault = damaged(3, adding)
    assert (fault.rank, fault.chunk, fault.element, fault.step, fault.point) == (2, 1, 17, None, "result")
    assert "ring, 120 B: wrong first on rank 2, chunk 1, after the last step: element 17 is 655" in fault.text()
    assert fault.text().endswith("seen in 3 of 3 more calls")


@pytest.mark.parametrize("algorithm", ["shared", "function"])
def test_without_messages_rank_and_chunk_are_said(algorithm):
    fault = damaged(3, adding, algorithm)
    assert (fault.rank, fault.chunk, fault.element, fault.step, fault.more_calls) == (2, 1, 17, None, 0)
    assert fault.chunks == {1: [2]}
    assert re.fullmatch(
        rf"{algorithm}[^:]*: wrong in 3 of 3 calls, first on rank 2, chunk 1: element 17 is 655\d\d, not \d+; "
        "wrong were chunk 1 on rank 2",
        fault.text(),
    )


def test_wrong_arithmetic_is_told_from_wrong_messages():
    """A rank whose sums are wrong: what came was right."""

    def wrong_sums(rank, prepared):
        run = prepared.run.run
        if rank == 1:
            run.op = "max"
            run.bind_all()
        return prepared

    fault = damaged(3, wrong_sums)
    first = next(step for step in programs("ring", "all_reduce", 3)[1].steps if step.receives[0].combine)
    assert (fault.rank, fault.step, fault.point) == (1, 0, "combined")
    assert fault.chunk == first.receives[0].chunks[0]
    assert "(combines what came right from rank 0)" in fault.text()


def test_memory_that_changes_between_steps_is_told_from_wrong_messages():
    """A rank whose chunk changes before it leaves."""

    def changing(rank, prepared):
        run = prepared.run.run
        if rank == 2:
            number = next(n for n, each in enumerate(run.listing.messages) if not each.incoming and each.key[0] == 1)
            array = run.elements(number)
            run.lift = lambda each: [lambda: array.__setitem__(3, -1)] * (each == number)
            run.bind_all()
        return prepared

    fault = damaged(3, changing)
    assert (fault.rank, fault.step, fault.point, fault.peer, fault.got) == (2, 1, "sent", 0, -1)
    assert fault.element % 10 == 3
    assert "step 1 (sends to rank 0, and had it right before)" in fault.text()


def test_reports_and_tables_say_it():
    """A whole run of the benchmark: its table, OSU's layout, and the file of --json."""
    case = case_of("all_reduce")
    hit = next(each for each in received(case, "ring", 3, 1 << 16) if each[0] == 1)

    def on_each_rank(world):
        if world.rank == 1:
            world = replace(world, transport=Flips(world.transport, hit[1].peer, 0, 4, ALWAYS))
        return bench(Contest((case.nbytes, 12), algorithms=("ring",), dtypes=("int32",), budget_s=0.001), world)

    report = run_world(on_each_rank, threads=3)
    said = [fault.text() for fault in report.findings.faults]
    assert [fault.bytes for fault in report.findings.faults] == [case.nbytes, 12]
    assert "wrong first on rank 1, chunk" in said[0]
    for lines in (table_lines(report), osu_lines(report)):
        text = unfolded("\n".join(map(str, lines))).splitlines()
        for each in said:
            (line,) = [line for line in text if each in line]
            assert line.startswith("#")
    (first, _) = json.loads(json.dumps(report.findings.as_report(), allow_nan=False))["faults"]
    assert (first["rank"], first["step"], first["peer"]) == (1, 0, 0)


@pytest.mark.parametrize("arrival", [(), (Arrival("ramp"),)])
def test_what_was_wrong_in_calls_that_are_not_timed_is_said(arrival):
    """The first call of all, of warm-up or to see how long calls take, on one rank."""
    case = case_of("all_reduce")
    hit = next(each for each in received(case, "ring", 3, 1 << 16) if each[0] == 1)
    how = {"algorithms": ("ring",), "dtypes": ("int32",), "iterations": 1, "warmup": 1, "arrival": arrival}

    def on_each_rank(world):
        if world.rank == 1:
            world = replace(world, transport=Flips(world.transport, hit[1].peer, 0, 4, range(1)))
        return bench(Contest((case.nbytes,), **how), world)

    report = run_world(on_each_rank, threads=3)
    (fault,) = report.findings.faults
    assert [row.wrong > 0 for row in report.rows] == [True, False][: len(report.rows)]
    assert (fault.wrong_calls, report.rows[0].samples) == (1, 1)
