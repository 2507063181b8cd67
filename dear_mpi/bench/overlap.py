"""Measure how much of a collective compute hides: OSU's *overlap (OMB)*, and the exposed rest.

    pure       | start, wait                    |
    compute    | passes over an array           |              they take as long as pure does on this rank
    overall    | start | passes, N tests . . . . . . | wait |

    overlap (OMB)  max(0, 100 (1 - (overall - compute meanwhile) / pure)), without the time of tests in the compute
    exposed        overall - compute by itself: the price of the collective, including slower compute

Times are means over turns and ranks, from a barrier on. The collective progresses by ``tests``, which are calls of
``advance`` (``MPI_Test``) between passes, or in a ``thread``, as in training.

A pass is one NumPy call of a 64th of pure, on 1024 to 131072 numbers. NumPy releases the interpreter lock, and Python
holds it between passes, so a thread gets the lock about as often as in a training loop.

Source: OSU Micro-Benchmarks 7.4, osu_iallreduce.c and do_compute_and_probe in osu_util_mpi.c.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from statistics import fmean
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from dear_mpi.bench.case import Case, Prepared
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.reporting.terminal import table
from dear_mpi.reporting.units import format_bytes, grouped, plural


@dataclass(frozen=True)
class Subject:
    """A candidate at one size, on some ranks."""

    collective: str
    algorithm: str
    backend: str
    ranks: int
    bytes: int
    dtype: str
    op: str
    placement: str

    @property
    def kind(self) -> str:
        """Return all but algorithm and size, for example: all_reduce, 2 ranks, fp32, sum, in place, over MPICH."""
        op = [self.op] * (self.op != "none")
        texts = [self.collective, plural(self.ranks, "rank"), self.dtype, *op, self.placement, f"over {self.backend}"]
        return ", ".join(texts)

    @property
    def name(self) -> str:
        """Return a short name, for example: all_reduce, 2 ranks, ring, 4 KiB."""
        return f"{self.collective}, {plural(self.ranks, 'rank')}, {self.algorithm}, {format_bytes(self.bytes)}"


def subject(name: str, case: Case, transport: Transport) -> dict[str, Any]:
    """Return the fields of a ``Subject``; ``name`` is the candidate's label."""
    where = {"backend": transport.name, "ranks": transport.size}
    return {"collective": case.collective, "algorithm": name, **where, "bytes": case.nbytes, **case.facts}


NUMBERS, PASSES = (1024, 2**17), 64  # the fewest and the most numbers in a pass; passes in a time of pure
WARM_UP, TURNS = 3, (5, 100)  # uncounted turns; the fewest and the most counted turns
WAYS = ("tests", "thread")


class Compute:
    """Passes over a private array."""

    def __init__(self) -> None:
        self.numbers, self.passes = np.ones(NUMBERS[0]), PASSES

    def run(self, passes: int) -> None:
        for _ in range(passes):
            np.multiply(self.numbers, 1.0, out=self.numbers)

    def all(self) -> None:
        self.run(self.passes)

    def last(self, wanted_s: float, seconds: Callable[[Callable[[], object]], float]) -> None:
        """Make compute take ``wanted_s``, by larger passes first, then by more passes."""
        count = int(self.numbers.size * wanted_s / seconds(self.all))
        self.numbers = np.ones(min(max(count, NUMBERS[0]), NUMBERS[1]))
        for _ in range(2):  # the second time with the final loop, while other ranks compute
            self.passes = max(1, round(self.passes * wanted_s / seconds(self.all)))

    def parts(self, count: int) -> list[int]:
        """Divide the passes into ``count`` parts, or into fewer parts of one pass."""
        borders = [self.passes * number // count for number in range(count + 1)]
        return [after - before for before, after in pairwise(borders) if after > before]


def seconds_of(call: Callable[[], object], transport: Transport) -> float:
    """Return the seconds of a call after a barrier."""
    transport.barrier()
    begin = perf_counter()
    call()
    return perf_counter() - begin


def at_once(
    thread: ThreadPoolExecutor, run: Callable[[], object], compute: Callable[[], object]
) -> tuple[float, float]:
    """Run a collective on a thread and compute on this one. Returns the seconds until both end, and until compute
    ends.
    """
    begin = perf_counter()
    running = thread.submit(run)
    computing = perf_counter()
    compute()
    computed = perf_counter() - computing
    running.result()
    return perf_counter() - begin, computed


class Turn(NamedTuple):
    """Seconds on this rank."""

    pure: float
    alone: float  # compute without the collective
    by: Mapping[str, tuple[float, float, float]]  # overall, compute and tests; by tests, and with a thread


class Driven:
    """A prepared collective, with simultaneous compute."""

    def __init__(self, prepared: Prepared, transport: Transport, thread: ThreadPoolExecutor, tests: int) -> None:
        assert prepared.startable is not None, "the caller has seen it"
        self.run, self.call = prepared.run, prepared.startable
        self.transport, self.thread, self.tests, self.compute = transport, thread, tests, Compute()
        self.seconds = partial(seconds_of, transport=transport)

    def turn(self) -> Turn:
        """Collective: take one turn."""
        pure, alone = self.seconds(self.pure), self.seconds(self.compute.all)
        self.transport.barrier()
        by_tests = self.by_tests()
        self.transport.barrier()
        overall, compute = at_once(self.thread, self.run, self.compute.all)
        return Turn(pure, alone, {"tests": by_tests, "thread": (overall, compute, 0.0)})

    def pure(self) -> None:
        self.call.start()
        self.call.wait()

    def by_tests(self) -> tuple[float, float, float]:
        parts, tests = self.compute.parts(self.tests or 1), 0.0
        begin = perf_counter()
        self.call.start()
        computing = perf_counter()
        for passes in parts:
            self.compute.run(passes)
            if self.tests:
                testing = perf_counter()
                self.call.advance()
                tests += perf_counter() - testing
        computed = perf_counter() - computing - tests
        self.call.wait()
        return perf_counter() - begin, computed, tests


@dataclass(frozen=True)
class Overlap(Subject):
    """A candidate's overlap with one kind of progress; times in us, means over turns and ranks."""

    carried_on_by: str
    tests: int  # the requested number
    turns: int
    overall_us: float
    compute_us: float  # during the collective, without tests
    tests_us: float
    pure_us: float
    compute_alone_us: float

    @property
    def overlap_percent(self) -> float:
        return max(0.0, 100 * (1 - (self.overall_us - self.compute_us) / self.pure_us))

    @property
    def exposed_us(self) -> float:
        return self.overall_us - self.compute_alone_us

    def as_row(self) -> dict[str, Any]:
        return asdict(self) | {"overlap_percent": self.overlap_percent, "exposed_us": self.exposed_us}


class Effort(NamedTuple):
    tests: int  # in each compute
    seconds: float  # for all turns, within the bounds of their number


def overlap_of(name: str, case: Case, prepared: Prepared, transport: Transport, effort: Effort) -> list[Overlap]:
    """Collective: run a prepared collective during compute; return a result for each kind of progress.

    Fill the buffer with values that combining does not change, such as zeros.
    """
    with ThreadPoolExecutor(1) as thread:
        driven = Driven(prepared, transport, thread, effort.tests)
        pure_s = [driven.seconds(driven.pure) for _ in range(2 * WARM_UP)][WARM_UP:]
        driven.compute.last(fmean(pure_s), driven.seconds)
        begin = perf_counter()
        for _ in range(WARM_UP):
            driven.turn()
        turn_s = max(transport.gather_values((perf_counter() - begin) / WARM_UP))
        turns = [driven.turn() for _ in range(int(min(max(effort.seconds / turn_s, TURNS[0]), TURNS[1])))]
    ranks = [turn for mine in transport.gather_values(turns) for turn in mine]
    pure_us, alone_us = mean_us((turn.pure, turn.alone) for turn in ranks)
    found = []
    for way in WAYS:
        overall_us, compute_us, tests_us = mean_us(turn.by[way] for turn in ranks)
        found.append(
            Overlap(
                **subject(name, case, transport),
                carried_on_by=way,
                tests=effort.tests if way == "tests" else 0,
                turns=len(turns),
                overall_us=overall_us,
                compute_us=compute_us,
                tests_us=tests_us,
                pure_us=pure_us,
                compute_alone_us=alone_us,
            )
        )
    return found


def mean_us(seconds: Iterable[Sequence[float]]) -> list[float]:
    return [1e6 * fmean(column) for column in zip(*seconds, strict=True)]


def show_overlap(screen: Console, found: Sequence[Overlap]) -> None:
    for kind, rows in grouped(found, lambda each: each.kind).items():
        screen.print(table_of(rows, f"{kind}: what hides behind compute"))


COLUMNS: dict[str, Callable[[Overlap], str]] = {
    "bytes": lambda each: format_bytes(each.bytes),
    "algorithm": lambda each: each.algorithm,
    "carried on by": lambda each: plural(each.tests, "test") if each.carried_on_by == "tests" else "a thread",
    "Overall(us)": lambda each: f"{each.overall_us:.1f}",
    "Compute(us)": lambda each: f"{each.compute_us:.1f}",
    "Pure Comm.(us)": lambda each: f"{each.pure_us:.1f}",
    "Overlap(%)": lambda each: f"{each.overlap_percent:.0f}",
    "exposed (us)": lambda each: f"{each.exposed_us:.1f}",
}


def table_of(rows: Sequence[Overlap], title: str) -> Table:
    turns = sorted({row.turns for row in rows})
    calls = f"{turns[0]} to {turns[-1]} calls" if len(turns) > 1 else plural(turns[0], "call")
    definition = "Overlap: OMB's, 100 (1 - (Overall - Compute) / Pure Comm.), at least 0"
    return table(
        grouped(rows, lambda row: row.bytes).values(),
        COLUMNS,
        left=("algorithm", "carried on by"),
        title=title,
        caption=f"means over {calls} and ranks; {definition}; exposed: Overall less the same compute alone",
    )
