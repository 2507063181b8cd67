"""Measure how much of a collective compute hides: OSU's *overlap (OMB)*, and the exposed rest.

    pure       | start, wait                    |
    compute    | passes over an array           |              they take as long as pure does on this rank
    overall    | start | passes, N tests . . . . . . | wait |

    overlap (OMB)  max(0, 100 (1 - (overall - compute meanwhile) / pure)), without the time of tests in the compute
    exposed        overall - compute by itself: the price of the collective, including slower compute

Times are means over turns and ranks, from a barrier on. A pass is a NumPy call of a 64th of pure.
``tests``: ``advance`` (``MPI_Test``) between passes; ``thread``: as in training.
Source: OSU Micro-Benchmarks 7.4, osu_iallreduce.c and do_compute_and_probe in osu_util_mpi.c.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from statistics import fmean
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
from rich.console import Console

from dear_mpi.bench.case import Case, Prepared
from dear_mpi.bench.run import Look, Report
from dear_mpi.bench.suite import Suite
from dear_mpi.bench.timing import Context
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.contrib.analysis.ready import ours, ready, same_case
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import table
from dear_mpi.reporting.units import format_bytes, grouped, plural, whole_number

OverlapRow: TypeAlias = dict[str, Any]

NONBLOCKING = "native-nonblocking"
TESTS, MOST_TESTS = "16", 10**6
NUMBERS, PASSES = (1024, 2**17), 64  # range of numbers in a pass; passes in a time of pure
WARM_UP, TURNS = 3, (5, 100)  # uncounted; range of counted
WAYS = ("tests", "thread")


class Nonblocking:
    """A call of MPI as a plan."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def start(self) -> None:
        self.request = self.call()

    def advance(self) -> bool:
        return bool(self.request.Test())

    def wait(self) -> None:
        self.request.Wait()


class Driven:
    def __init__(self, prepared: Prepared, transport: Transport, thread: ThreadPoolExecutor, tests: int) -> None:
        call = prepared.startable
        self.run, self.call, self.transport = (
            prepared.run,
            call if hasattr(call, "start") else Nonblocking(call),
            transport,
        )
        self.thread, self.tests, self.numbers, self.passes = thread, tests, np.ones(NUMBERS[0]), PASSES

    def compute(self, passes: int) -> None:
        for _ in range(passes):
            np.multiply(self.numbers, 1.0, out=self.numbers)

    def compute_all(self) -> None:
        self.compute(self.passes)

    def pure(self) -> None:
        self.call.start()
        self.call.wait()

    def seconds(self, call: Callable[[], object]) -> float:
        self.transport.barrier()
        begin = perf_counter()
        call()
        return perf_counter() - begin

    def last(self, wanted_s: float) -> None:
        """Make compute take ``wanted_s``: larger passes first, then more."""
        count = int(self.numbers.size * wanted_s / self.seconds(self.compute_all))
        self.numbers = np.ones(min(max(count, NUMBERS[0]), NUMBERS[1]))
        for _ in range(2):  # then with the final loop, while other ranks compute
            self.passes = max(1, round(self.passes * wanted_s / self.seconds(self.compute_all)))

    def turn(self) -> dict[str, tuple[float, float, float]]:
        """Collective: seconds (overall, compute, tests) by kind of progress; ``apart``: (pure, compute, 0)."""
        apart = self.seconds(self.pure), self.seconds(self.compute_all), 0.0
        self.transport.barrier()
        by_tests = self.by_tests()
        self.transport.barrier()
        return {"apart": apart, "tests": by_tests, "thread": self.by_thread()}

    def by_tests(self) -> tuple[float, float, float]:
        count, tests = self.tests or 1, 0.0
        borders = [self.passes * number // count for number in range(count + 1)]
        parts = [after - before for before, after in pairwise(borders) if after > before]
        begin = perf_counter()
        self.call.start()
        computing = perf_counter()
        for passes in parts:
            self.compute(passes)
            if self.tests:
                testing = perf_counter()
                self.call.advance()
                tests += perf_counter() - testing
        computed = perf_counter() - computing - tests
        self.call.wait()
        return perf_counter() - begin, computed, tests

    def by_thread(self) -> tuple[float, float, float]:
        begin = perf_counter()
        running = self.thread.submit(self.run)
        computing = perf_counter()
        self.compute_all()
        computed = perf_counter() - computing
        running.result()
        return perf_counter() - begin, computed, 0.0


def overlap_of(case: Case, prepared: Prepared, transport: Transport, tests: int, seconds: float) -> list[OverlapRow]:
    """Collective: return a row for each kind of progress. Fill the buffer with zeros. ``seconds``: of all turns."""
    with ThreadPoolExecutor(1) as thread:
        driven = Driven(prepared, transport, thread, tests)
        pure_s = [driven.seconds(driven.pure) for _ in range(2 * WARM_UP)][WARM_UP:]
        driven.last(fmean(pure_s))
        begin = perf_counter()
        for _ in range(WARM_UP):
            driven.turn()
        turn_s = max(transport.gather_values((perf_counter() - begin) / WARM_UP))
        turns = [driven.turn() for _ in range(int(min(max(seconds / turn_s, TURNS[0]), TURNS[1])))]
    ranks = [turn for mine in transport.gather_values(turns) for turn in mine]
    means = {way: [1e6 * fmean(each) for each in zip(*(turn[way] for turn in ranks), strict=True)] for way in ranks[0]}
    pure_us, alone_us, _ = means["apart"]
    return [
        {
            "collective": case.collective,
            "backend": transport.name,
            "ranks": transport.size,
            "bytes": case.nbytes,
            **case.facts,
            "carried_on_by": way,
            "tests": tests if way == "tests" else 0,
            "turns": len(turns),
            "overall_us": (overall_us := means[way][0]),
            "compute_us": (compute_us := means[way][1]),  # without tests
            "tests_us": means[way][2],
            "pure_us": pure_us,
            "compute_alone_us": alone_us,
            "overlap_percent": max(0.0, 100 * (1 - (overall_us - compute_us) / pure_us)),
            "exposed_us": overall_us - alone_us,
        }
        for way in WAYS
    ]


COLUMNS: dict[str, Callable[[OverlapRow], str]] = {
    "bytes": lambda row: format_bytes(row["bytes"]),
    "algorithm": lambda row: row["algorithm"],
    "carried on by": lambda row: plural(row["tests"], "test") if row["carried_on_by"] == "tests" else "a thread",
    "Overall(us)": lambda row: f"{row['overall_us']:.1f}",
    "Compute(us)": lambda row: f"{row['compute_us']:.1f}",
    "Pure Comm.(us)": lambda row: f"{row['pure_us']:.1f}",
    "Overlap(%)": lambda row: f"{row['overlap_percent']:.0f}",
    "exposed (us)": lambda row: f"{row['exposed_us']:.1f}",
}
DEFINITION = (
    "means over turns and ranks; Overlap: OMB's, 100 (1 - (Overall - Compute) / Pure Comm.), at least 0; exposed: "
    "Overall less the same compute alone"
)


def kind_of(row: OverlapRow) -> str:
    """Name all but algorithm and size."""
    op = [row["op"]] * (row["op"] != "none")
    about = [row["collective"], plural(row["ranks"], "rank"), row["dtype"], *op, row["placement"]]
    return f"{', '.join(about)}, over {row['backend']}"


def show_overlap(screen: Console, found: Sequence[OverlapRow]) -> None:
    for kind, rows in grouped(found, kind_of).items():
        groups, left = grouped(rows, lambda row: row["bytes"]).values(), ("algorithm", "carried on by")
        screen.print(table(groups, COLUMNS, left=left, title=f"{kind}: what hides behind compute", caption=DEFINITION))


def overlapped(cases: Sequence[Case], suite: Suite, world: World, tests: int) -> list[OverlapRow]:
    """Collective: run plans and MPI's non-blocking calls during compute; ``suite.budget_s`` is for each case."""
    context, found = Context.of(world, suite), list[OverlapRow]()
    with context.streams.compute.use():
        for case in cases:
            keys = suite.keys(case, world.size)
            theirs = [(NONBLOCKING, keys[0][1])] * (world.transport.native is not None)
            with ready(case, [*ours(keys), *theirs], context) as calls:
                for name, each in calls.items():
                    taken = overlap_of(case, each, world.transport, tests, suite.budget_s / len(calls))
                    found += [{"algorithm": name, **row} for row in taken]
    return found


def overlap(flags: Mapping[str, Any]) -> Callable[[World, Suite, Report], Look]:
    if flags.get("device", "cpu") != "cpu":
        raise ValueError("--overlap needs --device cpu: the compute is the host's")
    tests = whole_number(flags.get("tests", TESTS))
    if tests is None or tests > MOST_TESTS:
        raise ValueError(f"--tests must be a whole number of at most {MOST_TESTS}, not {flags['tests']!r}")

    def look(world: World, suite: Suite, report: Report) -> Look:
        cases = [case for case in suite.cases(world.size) if any(same_case(row, case) for row in report.rows)]
        found = overlapped(cases, suite, world, tests)
        return Look({"overlap": found}, partial(show_overlap, found=found))

    return look


def tests(flags: Mapping[str, Any]) -> Callable[[World, Suite, Report], Look]:
    if not flags.get("overlap"):
        raise ValueError("--tests is the number of calls during the compute of --overlap: give both")
    return lambda world, suite, report: Look({}, lambda screen: None)
