"""Run the benchmark, from a suite to a ``Report``.

    warm-up | 6 turns | as many again, while some median is not known well enough and there is time | ...

A row's peer, the fastest MPI call, may have been lucky, so all calls that are not clearly slower are rivals: a ratio's
upper end is the highest over rivals, its lower end the highest of widened intervals: any end is too high with a chance
of 2.5 % (Bonferroni).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial, reduce
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from rich.console import Console

from dear_mpi.bench.backends import BEST, LIBRARY, candidate
from dear_mpi.bench.case import OPERATIONS, Case, Samples, job_us, of_job, row_of
from dear_mpi.bench.fit import Fit, fit_network, programs_of, time_s
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.suite import Key, Suite
from dear_mpi.bench.timing import LATE, AtBarrier, Context, Interleaved, decided_start, needed_bytes, own_cost
from dear_mpi.collectives.plans.tuning import default_segment
from dear_mpi.collectives.program.cost import Network
from dear_mpi.collectives.program.errors import ArgumentError
from dear_mpi.collectives.program.hosts import Rates
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.collectives.transports.agree import agree, said_by_rank_0
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.ranks.host import available_bytes
from dear_mpi.ranks.world import World
from dear_mpi.reporting.stats import FEWEST_SAMPLES, in_batches, median, worth_one
from dear_mpi.reporting.terminal import note
from dear_mpi.reporting.units import format_bytes, grouped

K = TypeVar("K")
BLOCKS, FEWEST_IN_A_BLOCK = 4, 11  # at least, if some candidates take turns separately
MOST_SAMPLES = 10_000  # samples per candidate and point, without --iterations
WARM_UP_SHARE = 0.25  # s: the most of a point's time
MORE_BLOCKS = 3  # the most, if too few samples count; each grows a clock start's lead


class LateStarts(Exception):
    """Some rank was late for most start moments."""


@dataclass(frozen=True)
class Report:
    rows: list[Row]
    fit: Fit | None
    names: tuple[str, ...]  # of requested candidates
    left_out: list[tuple[str, str, int]] = field(default_factory=list)  # why, collective, size
    own_cost: dict[str, Any] | None = None  # of the loop
    clock: dict[str, Any] | None = None


class Look(NamedTuple):
    """A closer look at a run, by a flag of an extra."""

    data: Mapping[str, Any]  # for --json, by key
    show: Callable[[Console], object]  # comments, on rank 0
    files: Mapping[str, Callable[[], object]] = MappingProxyType({})  # by flag, on rank 0


def agreed(suite: Suite, world: World) -> Suite:
    """Collective: check these ranks, and settle the suite's segments; raises like ``agree``."""
    suite = replace(suite, segments=suite.segments or (default_segment(world.transport.hosts),))

    def facts() -> Mapping[str, object]:
        suite.check_for(world)
        return asdict(suite)

    agree(world.transport, "bench", facts)
    return suite


def bench(suite: Suite, world: World, progress: Callable[[str], object] = lambda note: None) -> Report:
    """Collective: return a row per case and candidate; measured again from barriers if many starts are late.

    ArgumentError on all ranks: something is not allowed or available.
    """
    suite = agreed(suite, world)
    suite = replace(suite, start=decided_start(world, suite))
    try:
        return bench_once(suite, world, progress)
    except LateStarts:
        note(world, f"{LATE}; all points are measured again")
        return bench_once(replace(suite, start=AtBarrier.name), world, progress)


def bench_once(suite: Suite, world: World, progress: Callable[[str], object]) -> Report:
    transport, hosts = world.transport, world.transport.hosts
    context, rows, left_out = Context.of(world, suite), list[Row](), list[tuple[str, str, int]]()
    with ExitStack() as stack, context.streams.compute.use():
        libraries = {
            name: stack.enter_context(session(world))
            for name in suite.names
            if (session := candidate(name).session) is not None and transport.native is not None
        }
        own = own_cost(transport, [each for each in suite.collectives if each in COLLECTIVES] or ["all_reduce"])
        room = min(transport.gather_values(available_bytes() / world.ranks_here))
        too_large = {"all": f"more memory than the {room / 2**30:.3g} GiB that each rank can have"}
        for case in suite.cases(world.size):
            progress(f"{case.collective}, {format_bytes(case.nbytes)}")
            fits = needed_bytes(case, suite.names, hosts) <= room
            samples, missing = measured(case, suite.keys(case, world.size), suite, context) if fits else ({}, too_large)
            left_out += [(f"{name}: {why}", case.collective, case.nbytes) for name, why in missing.items()]
            for (name, cut), found in samples.items():
                library = libraries.get(name, transport.name)
                rows.append(row_of(case, name, found, backend=library, hosts=world.ranks_per_host, segment_bytes=cut))
        if not rows:
            reasons = grouped(dict.fromkeys(each[0].partition(": ")[::2] for each in left_out), lambda each: each[1])
            whys = "; ".join(f"{', '.join(name for name, _ in same)}: {why}" for why, same in reasons.items())
            raise ArgumentError(f"bench: nothing can be measured here: {whys}")
    model = partial(modelled, against_peers(rows), hosts, transport.rates)
    fit, rows = said_by_rank_0(transport, "bench", model, asleep=True)
    return Report(rows, fit, suite.names, left_out, own, context.start.report())


def measured(
    case: Case, keys: Sequence[Key], suite: Suite, context: Context
) -> tuple[dict[Key, Samples], dict[str, str]]:
    """Collective: return a case's samples by candidate, and why some are missing.

    LateStarts: most starts of a candidate were late, or too few samples count.
    """
    interleaved = Interleaved(case, keys, context)
    blocks = BLOCKS if any(candidate(name).session for name, _ in keys) else 1
    found = paced(suite, interleaved.run, interleaved.transport, blocks)
    interleaved.free()
    for each in found.values():
        if each.counted < each.late or each.counted < FEWEST_SAMPLES <= each.counted + each.late:
            raise LateStarts
    return found, interleaved.left_out


def paced(suite: Suite, run: Callable[[int], dict[K, Samples]], transport: Transport, blocks: int) -> dict[K, Samples]:
    """Collective: return a point's samples, of at least ``blocks`` blocks, with warm-up's wrong results."""
    begin_s = time.perf_counter()

    def spent_s() -> float:
        return float(transport.gather_values(time.perf_counter() - begin_s)[0])

    def enough() -> bool:
        """Whether all medians are known well; similar neighbouring samples count less."""
        for samples in found.values():
            times_s = of_job(samples.times_s, suite.cadence).tolist()
            if len(times_s) < FEWEST_SAMPLES:
                return False
            middle = median(times_s)
            error = (middle.high - middle.low) / 2 * math.sqrt(worth_one(times_s))
            if error > suite.precision * middle.value:
                return False
        return True

    untimed = list[dict[K, Samples]]()
    for _ in range(suite.warmup):
        untimed.append(run(1))
        if suite.iterations is None and spent_s() > suite.budget_s * WARM_UP_SHARE:
            break
    warm_s = spent_s()
    if suite.iterations is not None:
        parts = [suite.iterations // blocks + (number < suite.iterations % blocks) for number in range(blocks)]
        found = reduce(together, [run(part) for part in parts if part])
    else:
        turns = FEWEST_SAMPLES if blocks == 1 else FEWEST_IN_A_BLOCK
        fewest, found = blocks * turns, run(turns)
        while turns < MOST_SAMPLES and not (turns >= fewest and enough()):
            now_s = spent_s()
            count = min(int((suite.budget_s - now_s) / (now_s - warm_s) * turns), turns, MOST_SAMPLES - turns)
            if count < 1:
                break
            found, turns = together(found, run(count)), turns + count
        for _ in range(MORE_BLOCKS):  # late starts left too few samples, but some
            if not 0 < min((each.counted for each in found.values()), default=0) < FEWEST_SAMPLES:
                break
            found = together(found, run(FEWEST_SAMPLES))
    for earlier in untimed:
        found = {key: samples.after(earlier[key]) for key, samples in found.items()}
    return found


def together(found: dict[K, Samples], later: dict[K, Samples]) -> dict[K, Samples]:
    return {key: samples + later[key] for key, samples in found.items()}


def modelled(rows: Sequence[Row], hosts: Sequence[int], rates: Rates | None) -> tuple[Fit | None, list[Row]]:
    """Return the fitted network, and rows with its prediction and bound."""
    found, fit = list[Row](), fit_network(rows, hosts, rates)
    if fit is None:
        return fit, list(rows)
    for row in rows:
        written = programs_of(row, hosts, rates)
        model_us = time_s(row, written, fit.network) * 1e6 if written else None
        found.append(replace(row, model_us=model_us, bound_us=bound_us(row, fit.network)))
    return fit, found


def bound_us(row: Row, network: Network) -> float | None:
    """Return the least time of any algorithm; None for unlimited bandwidth.

    o + alpha to begin, o to receive; busbw's bytes must pass one side of some rank's port (Patarasuk and Yuan, 2009).
    Sums are free.
    """
    if row.collective not in COLLECTIVES or row.ranks == 1 or not network.beta:
        return None
    crossing = row.bytes * OPERATIONS[row.collective].factor(row.ranks)
    return (network.alpha + 2 * network.o + crossing * network.beta) * 1e6


def against_peers(rows: Sequence[Row]) -> list[Row]:
    """Add each row's peer: its case's fastest MPI call, or the first candidate without MPI."""
    found = dict[int, Row]()
    for places in grouped(range(len(rows)), lambda place: rows[place].case).values():
        found |= zip(places, in_one_case([rows[place] for place in places]), strict=True)
    return [found[place] for place in range(len(rows))]


def in_one_case(rows: Sequence[Row]) -> list[Row]:
    calls = [place for place, row in enumerate(rows) if candidate(row.algorithm).is_library] or [0]
    calls = [place for place in calls if not rows[place].wrong] or calls  # wrong calls may be fast
    best = min(calls, key=lambda place: rows[place].p50_us)
    peer, found = rows[best], list[Row]()
    cut = in_batches([job_us(row) for row in rows])
    rivals = [call for call in calls if call == best or (cut and cut[call].over(cut[best]).low <= 1)]
    for place, row in enumerate(rows):
        low, high = (1.0, 1.0) if place == best else (None, None)
        if place != best and cut:
            others = [cut[each] for each in rivals if each != place]
            ratios = [cut[place].over(each, len(others)) for each in others]
            low, high = max(each.low for each in ratios), max(each.high for each in ratios)
        found.append(
            replace(
                row, peer=peer.algorithm, over_peer=row.p50_us / peer.p50_us, over_peer_low=low, over_peer_high=high
            )
        )
    return found


def ratio_mark(row: Row) -> str:
    """Return a star if the ratio's interval excludes 1."""
    low, high = row.over_peer_low, row.over_peer_high
    is_clear = low is not None and high is not None and (high < 1 or low > 1)
    return "*" * (is_clear and not row.median_us.is_noisy)


def merit(row: Row) -> tuple[bool, float]:
    """Sort key: right results first, then the fastest."""
    return row.wrong > 0, row.p50_us


def shown(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Return the named rows; ``native-best`` is MPI's best in each case."""
    calls = [row for row in rows if LIBRARY + BEST in names and candidate(row.algorithm).is_library]
    fastest = {id(min(same, key=merit)) for same in grouped(calls, lambda row: row.case).values()}
    return [row for row in rows if row.algorithm in names or id(row) in fastest]
