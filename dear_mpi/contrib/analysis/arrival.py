"""Time calls that ranks enter late, as in programs whose ranks compute for different times.

    rank 0   |call . . . . . . . . . . . . . .|
    rank 1   |- - - - its delay - - - -|call . . . . .|
             common start              last arrival   end on the slowest rank: a sample is the time between the two

The longest delay is by default the median of balanced calls' medians.
Source: Faraj, Patarasuk and Yuan (IJPP 36, 2008); Proficz (J. Supercomputing 74, 2018).
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from rich.console import Console

from dear_mpi.bench.backends import label, labels
from dear_mpi.bench.case import OPERATIONS, Case
from dear_mpi.bench.fit import Fit, programs_of
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.run import Look, Report
from dear_mpi.bench.suite import Suite
from dear_mpi.bench.timing import Context, Interleaved
from dear_mpi.collectives.program.cost import cost
from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.collectives.transports.wait_policy import crowd_of
from dear_mpi.contrib.analysis.layouts import aligned
from dear_mpi.contrib.analysis.ready import same_case
from dear_mpi.kernels.array import Array
from dear_mpi.kernels.dtypes import TYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.ranks.world import World
from dear_mpi.reporting.declared import listed
from dear_mpi.reporting.stats import Median, in_batches, median
from dear_mpi.reporting.units import SECONDS, check_distinct, format_bytes, parse

MOST_S = 10.0  # longest delay
CLOSE_S = 100e-6  # a sleeping rank spins this long before its moment
WARM_UP, FIRST, MOST = 2, 11, 200  # turns: uncounted, for the default delay, at most
MOST_PRICED = 16  # turns in the model
BALANCED = "none"
Taken: TypeAlias = dict[str, Array]
"""A case's samples by candidate: seconds of each rank (rows) from the last arrival."""


def one_late(turn: int, ranks: int) -> list[float]:
    """Delay each rank once in ``ranks`` turns."""
    late = random.Random(f"one-late {turn // ranks}").sample(range(ranks), ranks)[turn % ranks]
    return [float(rank == late) for rank in range(ranks)]


def ramp(turn: int, ranks: int) -> list[float]:
    return [place / max(1, ranks - 1) for place in random.Random(f"ramp {turn}").sample(range(ranks), ranks)]


def uniform(turn: int, ranks: int) -> list[float]:
    drawn = random.Random(f"random {turn}")
    return [drawn.random() for _ in range(ranks)]


# Delays of ranks in a turn, as shares of the longest.
PATTERNS: dict[str, Callable[[int, int], list[float]]] = {"one-late": one_late, "ramp": ramp, "random": uniform}


def parse_patterns(text: str) -> dict[str, float | None]:
    """Return the longest delay by pattern, in s; None is the default.

    >>> parse_patterns("one-late:2ms,ramp")
    {'one-late': 0.002, 'ramp': None}
    """
    found: dict[str, float | None] = {}
    parts = [part.partition(":") for part in listed("--arrival", text)]
    check_distinct("--arrival: patterns", [pattern for pattern, _, _ in parts])
    for pattern, colon, delay in parts:
        lookup("arrival", pattern, PATTERNS)
        delay_s = parse("--arrival: delay", delay, SECONDS, "2ms", zero=False) if colon else None
        if delay_s is not None and delay_s > MOST_S:
            raise ValueError(f"--arrival: delay {delay!r} must be at most {MOST_S:g} s")
        found[pattern] = delay_s
    return found


def wait(begin_s: float, delay_s: float, *, asleep: bool) -> float:
    """Return the delay after it has passed."""
    clock, end_s = time.perf_counter, begin_s + delay_s
    if asleep:
        while (left_s := end_s - clock()) > CLOSE_S:
            time.sleep(left_s - CLOSE_S)
    while (now_s := clock()) < end_s:
        pass
    return now_s - begin_s


def after_last(ends_s: Array, came_s: Array) -> Array:
    """Return times from the last arrival to each rank's (row's) end, at least 0."""
    found: Array = np.maximum(ends_s - came_s.max(axis=0), 0.0)
    return found


@dataclass(frozen=True)
class Late:
    interleaved: Interleaved
    asleep: bool  # other ranks need the cores

    def names(self) -> dict[Any, str]:
        ready = self.interleaved.ready
        cuts = len({cut for _, cut in ready}) > 1
        return {key: label(key[0], each.chosen, key[1] if cuts else None) for key, (each, _) in ready.items()}

    def turns(self, delays_s: Sequence[Sequence[float]]) -> tuple[Taken, int]:
        """Collective: take a turn for each of these delays by rank; also return wrong elements."""
        all_of, transport, wrong = self.interleaved, self.interleaved.transport, 0
        names = self.names()
        mine: dict[str, list[tuple[float, float]]] = {name: [] for name in names.values()}
        all_of.start.prepare()
        for delays in delays_s:
            all_of.turn += 1
            for key in random.Random(all_of.turn).sample(list(names), len(names)):
                prepared, data = all_of.ready[key]
                data.fill(all_of.turn)
                all_of.start()
                begin_s = time.perf_counter()
                came_s = wait(begin_s, delays[transport.rank], asleep=self.asleep)
                prepared.run()
                mine[names[key]].append((time.perf_counter() - begin_s, came_s))
                prepared.untimed()
                wrong += data.errors(all_of.turn)
        answers = transport.gather_values((mine, wrong))
        taken = {}
        for name in mine:
            times_s = np.array([found[name] for found, _ in answers])
            taken[name] = after_last(times_s[..., 0], times_s[..., 1])
        return taken, sum(wrong for _, wrong in answers)


def timed(case: Case, suite: Suite, context: Context, patterns: Mapping[str, float | None]) -> dict[str, Any] | None:
    """Collective: measure a case, for ``--json``; None if no candidate runs."""
    size, transport = context.world.size, context.world.transport
    late = Late(
        Interleaved(case, suite.keys(case, size), context), crowd_of(transport, 1).crowded or not transport.spins
    )
    if not late.interleaved.ready:
        return None
    balanced, none = dict[str, Array](), [[0.0] * size]
    late.turns(none * WARM_UP)
    first, wrong = late.turns(none * FIRST)
    usual_s = float(np.median([np.median(each.max(axis=0)) for each in first.values()]))
    scales_s = {pattern: usual_s if delay_s is None else delay_s for pattern, delay_s in patterns.items()}
    turn_s = sum(float(each.max(axis=0).mean()) for each in first.values()) * (1 + len(scales_s))
    turn_s += sum(scales_s.values()) * len(first)
    turns = suite.iterations or int(min(max(suite.budget_s / turn_s, FIRST), MOST))
    turns = transport.gather_values(turns)[0]
    found: dict[str, Taken] = {pattern: {} for pattern in scales_s}
    for number in range(turns):
        taken, errors = late.turns(none)
        balanced = joined(balanced, taken)
        wrong += errors
        for pattern, scale_s in scales_s.items():
            shares = PATTERNS[pattern](number, size)
            taken, errors = late.turns([[scale_s * share for share in shares]])
            found[pattern], wrong = joined(found[pattern], taken), wrong + errors
    late.interleaved.free()
    return {
        "case": case,
        "wrong": wrong,
        "asleep": late.asleep,
        "turns": turns,
        "scales_s": scales_s,
        "us": {BALANCED: in_us(balanced), **{pattern: in_us(taken) for pattern, taken in found.items()}},
    }


def joined(found: Taken, more: Taken) -> Taken:
    return {name: np.hstack([found[name], each]) if name in found else each for name, each in more.items()}


def in_us(taken: Taken) -> dict[str, list[float]]:
    return {name: (1e6 * each.max(axis=0)).tolist() for name, each in taken.items()}


def priced_us(row: Row, fit: Fit, world: World, delays_s: Sequence[Sequence[float]]) -> float | None:
    """Return the model's median time after the last arrival; None without a program."""
    written = programs_of(row, world.transport.hosts, world.transport.rates)
    if not written:
        return None
    itemsize = TYPES[row.dtype].itemsize
    times_s = [
        cost(written, row.count, itemsize, fit.network, arrivals_s=delays).time_s - max(delays) for delays in delays_s
    ]
    return float(np.median(times_s)) * 1e6


def reported(found: Mapping[str, Any], rows: Mapping[str, Row], fit: Fit | None, world: World) -> list[dict[str, Any]]:
    """Return an object per pattern; ``rows``: of the usual measurement, by candidate."""
    case, size, objects = found["case"], world.size, []
    for pattern, scale_s in found["scales_s"].items():
        delays = list(
            dict.fromkeys(tuple(PATTERNS[pattern](turn, size)) for turn in range(min(found["turns"], MOST_PRICED)))
        )
        delays_s = [[scale_s * share for share in shares] for shares in delays]
        algorithms = []
        for name, late_us in found["us"][pattern].items():
            balanced_us = found["us"][BALANCED][name]
            models: list[float | None] = [None, None]
            if fit is not None and name in rows:
                models = [priced_us(rows[name], fit, world, each) for each in ([[0.0] * size], delays_s)]
            cut = in_batches([late_us, balanced_us])
            ends = None if cut is None else cut[0].over(cut[1])
            algorithms.append(
                {
                    "algorithm": name,
                    "balanced_us": median(balanced_us).value,
                    "late_us": median(late_us).value,
                    "ratio": median(late_us).value / median(balanced_us).value,
                    "ratio_low": ends and ends.low,
                    "ratio_high": ends and ends.high,
                    "model_balanced_us": models[0],
                    "model_late_us": models[1],
                }
            )
        fastest = {
            "balanced": fastest_of(found["us"][BALANCED]),
            pattern: fastest_of(found["us"][pattern]),
        }
        objects.append(
            {
                "collective": case.collective,
                "ranks": size,
                "bytes": case.nbytes,
                **case.facts,
                "arrival": pattern,
                "arrival_us": scale_s * 1e6,
                "asleep": found["asleep"],
                "turns": found["turns"],
                "wrong": found["wrong"],
                "algorithms": algorithms,
                "fastest": fastest,
            }
        )
    return objects


def fastest_of(times_us: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the fastest, then those with an overlapping interval."""
    medians: dict[str, Median] = {name: median(each) for name, each in times_us.items()}
    first = min(medians, key=lambda name: medians[name].value)
    return [first, *(name for name in medians if name != first and medians[name].low <= medians[first].high)]


HEADS = ("algorithm", "balanced", "late", "late / balanced (95 %)", "model: balanced", "late")
MEANING = (
    "us: medians; late: from the last arrival to the end on the slowest rank; model: by the fitted network, the median "
    f"over up to {MOST_PRICED} turns; -: no program"
)


def show(screen: Console, found: Sequence[Mapping[str, Any]]) -> None:
    for each in found:
        where = f"{each['collective']} of {format_bytes(each['bytes'])}, {each['ranks']} ranks, {each['dtype']}"
        how = "sleep until then: ranks share cores, so moments are less sharp" if each["asleep"] else "spin until then"
        wrong = f"; {each['wrong']} elements are WRONG" * bool(each["wrong"])
        about = f"{each['placement']}: {each['arrival']}, by up to {each['arrival_us']:.1f} us"
        fastest = (f"fastest, {name}: {', '.join(names)}" for name, names in each["fastest"].items())
        cells = map(cells_of, each["algorithms"])
        lines = (f"arrival: {where}, {about}; late ranks {how}{wrong}", *aligned([HEADS, *cells]), *fastest, "")
        for line in lines:
            screen.print(line.rstrip(), soft_wrap=True)
    if found:
        screen.print(MEANING, soft_wrap=True)


def cells_of(each: Mapping[str, Any]) -> list[str]:
    known = each["ratio_low"] is not None
    interval = f"{each['ratio_low']:.2f} to {each['ratio_high']:.2f}" if known else "too few samples"
    models = ["-" if each[name] is None else f"{each[name]:.1f}" for name in ("model_balanced_us", "model_late_us")]
    return [
        *(each["algorithm"], f"{each['balanced_us']:.1f}", f"{each['late_us']:.1f}"),
        f"{each['ratio']:.2f} ({interval})",
        *models,
    ]


def arrival(flags: Mapping[str, Any]) -> Callable[[World, Suite, Report], Look]:
    patterns = parse_patterns(flags["arrival"])
    if flags.get("cadence", "isolated") != "isolated":
        raise ValueError("--arrival needs --cadence isolated: in a row of calls, a rank begins when it can")

    def look(world: World, suite: Suite, report: Report) -> Look:
        context, found = Context.of(world, suite), list[dict[str, Any]]()
        for case in suite.cases(world.size) if world.size > 1 else ():
            if OPERATIONS[case.collective].pair:
                continue
            rows = [row for row in report.rows if same_case(row, case)]
            with context.streams.compute.use():
                taken = timed(case, suite, context, patterns) if rows else None
            if taken is not None:
                by_name = dict(zip(labels(rows), rows, strict=True))
                found += said_by_rank_0(
                    world.transport, "--arrival", partial(reported, taken, by_name, report.fit, world)
                )
        return Look({"arrival": found}, partial(show, found=found))

    return look
