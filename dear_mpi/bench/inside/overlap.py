"""How much of a collective hides behind compute: *overlap (OMB)*, as the OSU benchmarks define it, and what is exposed.

    pure       | start, wait                    |
    compute    | passes over an array           |              as many as take as long as pure does on this rank
    overall    | start | passes, N tests . . . . . . | wait |

    overlap (OMB)  max(0, 100 (1 - (overall - compute beside it) / pure)), without the time of tests in the compute
    exposed        overall - compute alone: what a program pays for the collective; a compute that is disturbed counts

Times are means over turns and ranks, from a barrier on. The collective is carried on by ``tests``: calls of ``advance``
(``MPI_Test``) between passes; or by a ``thread`` of its own, as in training, which is in the collective all the time.

A pass is one call of NumPy on as many numbers as take a 64th of pure, between 1024 and 131072. It releases the
interpreter lock, which Python holds between passes: so a thread gets it about as often as beside a training loop.

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
from dear_mpi.bench.inside.beside import at_once, seconds_of
from dear_mpi.bench.inside.subject import Subject, subject
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.reporting.terminal import table
from dear_mpi.reporting.units import format_bytes, grouped, plural

NUMBERS, PASSES = (1024, 2**17), 64  # the fewest and the most in a pass; about so many passes as long as pure
WARM_UP, TURNS = 3, (5, 100)  # turns that do not count; the fewest and the most that do
WAYS = ("tests", "thread")


class Compute:
    """Passes over an array of its own."""

    def __init__(self) -> None:
        self.numbers, self.passes = np.ones(NUMBERS[0]), PASSES

    def run(self, passes: int) -> None:
        for _ in range(passes):
            np.multiply(self.numbers, 1.0, out=self.numbers)

    def all(self) -> None:
        self.run(self.passes)

    def last(self, wanted_s: float, seconds: Callable[[Callable[[], object]], float]) -> None:
        """From now on take so long, by what ``seconds`` says of calls: first by larger passes, then by more."""
        count = int(self.numbers.size * wanted_s / seconds(self.all))
        self.numbers = np.ones(min(max(count, NUMBERS[0]), NUMBERS[1]))
        for _ in range(2):  # the second time the loop is as long as it will be, and other ranks compute, too
            self.passes = max(1, round(self.passes * wanted_s / seconds(self.all)))

    def parts(self, count: int) -> list[int]:
        """The passes, shared out to so many parts, or to fewer that have one each."""
        borders = [self.passes * number // count for number in range(count + 1)]
        return [after - before for before, after in pairwise(borders) if after > before]


class Turn(NamedTuple):
    """Seconds on this rank: pure, and compute alone; overall, compute and tests, by tests and with a thread."""

    pure: float
    alone: float
    by: Mapping[str, tuple[float, float, float]]


class Driven:
    """A prepared collective and the compute beside it."""

    def __init__(self, prepared: Prepared, transport: Transport, thread: ThreadPoolExecutor, tests: int) -> None:
        assert prepared.startable is not None, "the caller has seen it"
        self.run, self.call = prepared.run, prepared.startable
        self.transport, self.thread, self.tests, self.compute = transport, thread, tests, Compute()
        self.seconds = partial(seconds_of, transport=transport)

    def turn(self) -> Turn:
        """Collective."""
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
    """A contestant that is carried on in one way; times in us, means over turns and ranks."""

    carried_on_by: str
    tests: int  # as many were asked for
    turns: int
    overall_us: float
    compute_us: float  # while the collective is under way, without tests
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
        """For a report."""
        return asdict(self) | {"overlap_percent": self.overlap_percent, "exposed_us": self.exposed_us}


class Effort(NamedTuple):
    tests: int  # in each compute
    seconds: float  # for all turns, if that is neither too few nor too many


def overlap_of(name: str, case: Case, prepared: Prepared, transport: Transport, effort: Effort) -> list[Overlap]:
    """Collective: run a prepared collective beside compute; a result for each way to carry it on. Its buffer must hold
    what stays the same however often it is combined, such as zeros."""
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
    """Of each column its mean."""
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
