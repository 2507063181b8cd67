"""Run the benchmark, from a suite to a ``Report``. Candidates are our plans, MPI calls, and gloo."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any, TypeAlias, TypeVar, cast

from dear_mpi.bench.arrivals import AT_ONCE, TOGETHER, Arrival
from dear_mpi.bench.backends import BEST, CANDIDATES, LIBRARY, candidate, named
from dear_mpi.bench.case import OPERATIONS, Case, Prepared, Samples, row_of
from dear_mpi.bench.fit import Fit, modelled
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.overlap import Effort, Overlap, overlap_of
from dear_mpi.bench.peers import against_peers
from dear_mpi.bench.steps import Steps, steps_of
from dear_mpi.bench.suite import Suite
from dear_mpi.bench.timing import LATE, AtBarrier, Context, OwnCost, decided_start, own_cost
from dear_mpi.bench.turns import Interleaved, Key, needed_bytes, paced
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.collectives.plans.tuning import default_segment
from dear_mpi.collectives.program.errors import AgreedError, ArgumentError
from dear_mpi.collectives.program.network import Network
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.collectives.transports.agree import agree, said_by_rank_0
from dear_mpi.kernels.dtypes import TYPES
from dear_mpi.ranks.host import available_bytes
from dear_mpi.ranks.world import World
from dear_mpi.reporting.stats import FEWEST_SAMPLES
from dear_mpi.reporting.terminal import note
from dear_mpi.reporting.units import format_bytes, grouped, plural

T = TypeVar("T")
BLOCKS = 4  # the fewest, if some candidates do not alternate call by call
BALANCED_TURNS = 11  # before late arrivals: their median sets the default delay
NONBLOCKING = "native-nonblocking"
PROBE_BYTES = 2**20  # from this size on, times are proportional to bytes
WORTH_SAYING_S = 10.0
MANY = 50  # fewer iterations take less time than an estimate
Cases: TypeAlias = Mapping[Case, Sequence[Key]]  # with each case's candidates
ByArrival: TypeAlias = dict[tuple[Arrival, Key], Samples]


class LateStarts(Exception):
    """On all ranks: some rank was late for most start moments."""


@dataclass(frozen=True)
class Report:
    """The results of a run.

    Attributes:
        fits: the networks that explain the rows, by number of ranks.
        names: the requested candidates.
        left_out: the reasons why candidates have no row; by collective, the sizes.
        own_cost: the cost of the loop.
        clock: facts about the clocks.
        asleep: whether late ranks slept through their delays.
    """

    rows: list[Row]
    fits: dict[int, Fit | None]
    names: tuple[str, ...]
    left_out: dict[str, dict[str, list[int]]]
    steps: list[Steps] = field(default_factory=list)
    overlap: list[Overlap] = field(default_factory=list)
    own_cost: OwnCost | None = None
    clock: dict[str, Any] | None = None
    asleep: bool = False

    def __add__(self, more: Report) -> Report:
        """Add the results on another number of ranks."""
        left_out = {why: {**places} for why, places in self.left_out.items()}
        for why, places in more.left_out.items():
            for name, sizes in places.items():
                known = left_out.setdefault(why, {}).setdefault(name, [])
                left_out[why][name] = list(dict.fromkeys([*known, *sizes]))
        return replace(
            more,
            rows=self.rows + more.rows,
            fits=self.fits | more.fits,
            left_out=left_out,
            steps=self.steps + more.steps,
            overlap=self.overlap + more.overlap,
            asleep=self.asleep or more.asleep,
        )

    @property
    def closer(self) -> dict[str, list[dict[str, Any]]]:
        """Return the results of ``--steps`` and ``--overlap`` for ``--json``, if there are any."""
        found = {"steps": [each.as_row() for each in self.steps], "overlap": [each.as_row() for each in self.overlap]}
        return {name: rows for name, rows in found.items() if rows}


def agreed(suite: Suite, world: World) -> Suite:
    """Collective: check that these ranks can measure a suite, and settle its segments; raises like ``agree``."""
    suite = replace(suite, segments=suite.segments or (default_segment(world.transport.hosts),))

    def facts() -> Mapping[str, object]:
        suite.check_for(world)
        return asdict(suite)

    agree(world.transport, "bench", facts)
    return suite


def bench(suite: Suite, world: World, progress: Callable[[str], object] = lambda note: None) -> Report:
    """Collective: measure a suite on each number of ranks; return a row per case and candidate, in order.

    All samples start in one way, which ``decided_start`` chooses on the most ranks. If many starts are late
    nevertheless, the whole run is measured again, from barriers.

    Raises:
        ArgumentError: on all ranks: something is not allowed, or a candidate is not available.
    """
    suite = agreed(suite, world)
    most = max(suite.ranks, default=world.size)
    suite = replace(suite, start=on_first(world, most, lambda here: decided_start(here, suite)))

    def of_all(suite: Suite) -> Report:
        first, *others = (
            on_first(world, ranks, lambda here: bench_here(suite, here, progress))
            for ranks in suite.ranks or (world.size,)
        )
        return sum(others, first)

    try:
        return of_all(suite)
    except LateStarts:
        note(world, f"{LATE}; all points are measured again")
        return of_all(replace(suite, start=AtBarrier.name))


def on_first(world: World, ranks: int, act: Callable[[World], T]) -> T:
    """Collective: call ``act`` on the first ranks of a world; all ranks get the result.

    The others sleep meanwhile, and raise the first ranks' error.
    """
    if ranks == world.size:
        return act(world)
    found: T | None = None
    fault: AgreedError | LateStarts | None = None
    with world.part(ranks) as here:
        try:
            found = None if here is None else act(here)
        except (AgreedError, LateStarts) as error:  # outside of the block it would leave the others asleep
            fault = error
    found, fault = world.transport.gather_values((found, fault) if world.rank == 0 else None)[0]
    if isinstance(fault, AgreedError):
        raise ArgumentError(str(fault))
    if fault is not None:
        raise fault
    return cast(T, found)


def bench_here(suite: Suite, world: World, progress: Callable[[str], object]) -> Report:
    """Collective: return the report of all ranks of a world."""
    context, rows, left_out = Context.of(world, suite), list[Row](), dict[str, dict[str, list[int]]]()
    # Ranks sleep through their delays if they share cores, or one process's interpreter.
    asleep = context.crowded or not world.transport.spins
    suite = replace(suite, arrival=tuple(replace(each, asleep=asleep) for each in suite.arrival))
    with ExitStack() as stack, context.streams.compute.use():
        check_plans(suite, context)
        libraries = {
            name: stack.enter_context(session(world))
            for name in suite.names
            if (session := candidate(name).session) is not None and world.transport.native is not None
        }
        room = float(min(world.transport.gather_values(available_bytes() / world.ranks_here)))
        too_large = {"all": f"more memory than the {room / 2**30:.3g} GiB that each rank can have"}
        cases, own = suite.cases(world.size), own_cost(world.transport, programs(suite))
        fits = {case: needed_bytes(case, suite.names, world.transport.hosts) <= room for case in cases}
        announce([case for case in cases if fits[case]], suite, context)
        for case in cases:
            progress(f"{case.collective}, {format_bytes(case.nbytes)}")
            samples, missing = measured(case, suite, context) if fits[case] else ([], too_large)
            for name, why in missing.items():
                left_out.setdefault(f"{name}: {why}", {}).setdefault(case.collective, []).append(case.nbytes)
            for arrival, (name, cut), found in samples:
                library = libraries.get(name, world.transport.name)
                row = row_of(case, name, found, backend=library, hosts=world.ranks_per_host, segment_bytes=cut)
                rows.append(replace(row, **arrival.as_row()))
        if not rows:
            raise ArgumentError(f"bench: nothing can be measured here: {'; '.join(left_out)}")
        done = {(row.collective, row.bytes) for row in rows}
        keys = {case: suite.keys(case, world.size) for case in cases if (case.collective, case.nbytes) in done}
        steps = recorded(keys, context, suite.budget_s) if suite.steps else []
        overlap = overlapped(keys, context, Effort(suite.tests, suite.budget_s)) if suite.overlap else []
    model = partial(modelled, rows, world.transport.hosts, world.transport.rates)
    fit, models_us = said_by_rank_0(world.transport, "bench", model, asleep=True)
    rows = [
        replace(row, model_us=us, bound_us=None if fit is None else bound_us(row, fit.network))
        for row, us in zip(against_peers(rows), models_us, strict=True)
    ]
    facts: dict[str, Any] = {"own_cost": own, "clock": context.start.report(), "asleep": asleep and bool(suite.arrival)}
    return Report(rows, {world.size: fit}, suite.names, left_out, steps, overlap, **facts)


def bound_us(row: Row, network: Network) -> float | None:
    """Return the least time of any algorithm: one message's latency, and busbw's bytes at full bandwidth.

    None for unlimited bandwidth, and after late arrivals, because messages may end before the last rank arrives.

    Nothing moves before a message has begun, o + alpha, and the last message costs its receiver o. In between, those
    bytes must pass one side of some rank's port (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for
    clusters of workstations, 2009). The bound has no more rounds: a rank may send to several ranks at once, so some
    algorithms have one round. Sums are free.
    """
    if row.collective not in COLLECTIVES or row.ranks == 1 or not network.beta or not row.is_balanced:
        return None
    crossing = row.bytes * OPERATIONS[row.collective].factor(row.ranks)
    return (network.alpha + 2 * network.o + crossing * network.beta) * 1e6


def programs(suite: Suite, otherwise: Iterable[str] = ("all_reduce",)) -> list[str]:
    """Return the collectives of a suite that have programs; ``otherwise`` if none has."""
    return [each for each in suite.collectives if each in COLLECTIVES] or list(otherwise)


def check_plans(suite: Suite, context: Context) -> None:
    """Collective: raise an ArgumentError, before the work, if one of our algorithms has no program for this suite.

    If no collective of the suite has programs, a program for any collective is enough.
    """
    plans = [(name, min(suite.segments)) for name in suite.algorithms if candidate(name).is_plan]
    size, first = context.world.size, suite.cases(context.world.size)[0]
    least = replace(first, nbytes=size * TYPES[first.dtype].itemsize, placement="in", memory="private")
    tried = [Interleaved(replace(least, collective=each), plans, context) for each in programs(suite, COLLECTIVES)]
    for each in tried:
        each.free()
    for name, _ in plans:
        if all(name in each.left_out for each in tried):
            others = (LIBRARY, LIBRARY + BEST, *(other for other, who in CANDIDATES.items() if not who.is_library))
            raise ArgumentError(f"{tried[0].left_out[name]}; the benchmark also has {', '.join(others)}")


def measured(case: Case, suite: Suite, context: Context) -> tuple[list[tuple[Arrival, Key, Samples]], dict[str, str]]:
    """Collective: return all candidates' samples in the order of rows, and the reasons why some are missing.

    Raises:
        LateStarts: ranks were late for too many starts.
    """
    keys = suite.keys(case, context.world.size)
    interleaved = Interleaved(case, keys, context)
    try:
        found = samples_of(interleaved, suite)
    except LateStarts:
        interleaved.free()
        raise
    interleaved.free()
    names = [name for name, _ in keys]
    in_order = sorted({key for _, key in found}, key=lambda key: (names.index(key[0]), key[1]))
    arrivals = dict.fromkeys(arrival for arrival, _ in found)
    return [(arrival, key, found[arrival, key]) for arrival in arrivals for key in in_order], interleaved.left_out


def samples_of(interleaved: Interleaved, suite: Suite) -> ByArrival:
    """Collective: return a case's samples by arrival and candidate.

    Raises:
        LateStarts: ranks were late for too many starts.
    """
    arrivals, taken = [TOGETHER], 0
    untimed: Mapping[Key, Samples] = {}  # only their wrong results count
    if suite.arrival:
        untimed = interleaved.run(BALANCED_TURNS)
        check_starts(untimed)
        arrivals = [AT_ONCE, *(scaled(each, untimed) for each in suite.arrival)]

    def run(turns: int) -> ByArrival:
        nonlocal taken
        found: ByArrival = {}
        for arrival in arrivals:
            samples = interleaved.run(turns, replace(arrival, first=taken))
            found |= {(arrival, key): each for key, each in samples.items()}
        taken += turns
        return found

    blocks, cadence = BLOCKS if suite.in_blocks else 1, interleaved.case.cadence
    found = paced(suite, run, interleaved.transport, cadence=cadence, blocks=blocks)
    check_starts(found)
    return found | {(arrivals[0], key): found[arrivals[0], key].after(each) for key, each in untimed.items()}


def scaled(arrival: Arrival, balanced: Mapping[Any, Samples]) -> Arrival:
    """Set the longest delay, unless the user gave one, to the median of balanced calls."""
    if arrival.scale_s is not None:
        return arrival
    calls = [median(samples.job_s("isolated")) for samples in balanced.values() if samples.times_s[0]]
    return replace(arrival, scale_s=median(calls) if calls else 0.0)


def check_starts(found: Mapping[Any, Samples]) -> None:
    """Raise a LateStarts if ranks were late for most starts of a candidate, or too few of its samples count."""
    for each in found.values():
        counted = len(each.times_s[0])
        if counted < each.late or counted < FEWEST_SAMPLES <= counted + each.late:
            raise LateStarts


def announce(cases: Sequence[Case], suite: Suite, context: Context) -> None:
    """Collective: announce the duration of these cases if it is long."""
    if len(cases) * suite.budget_s < WORTH_SAYING_S or (suite.iterations or MANY) < MANY:
        return
    seconds = estimated_s(cases, suite, context)
    if seconds >= WORTH_SAYING_S:
        more = suite.steps or suite.overlap or suite.in_blocks
        text = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
        on = f"{plural(len(cases), 'point')} on {plural(context.world.size, 'rank')}"
        note(context.world, f"{on} take about {text}{'' if more else ' at most'}")


def estimated_s(cases: Sequence[Case], suite: Suite, context: Context) -> float:
    """Collective: estimate the maximum seconds of these cases' samples, from two turns of the first case.

    A point takes at most its ``--budget``, unless the fewest samples take longer: so large sizes decide.
    """
    transport, first = context.world.transport, cases[0]
    grain = TYPES[first.dtype].itemsize * transport.size  # whole elements of each rank; a barrier has no size
    probe = replace(first, nbytes=PROBE_BYTES // grain * grain) if first.nbytes else first
    interleaved = Interleaved(probe, suite.keys(probe, transport.size), context)
    interleaved.run(1)
    begin_s = time.perf_counter()
    interleaved.run(1)
    mine_s = time.perf_counter() - begin_s
    interleaved.free()
    turn_s = float(transport.gather_values(mine_s)[0])
    turns = suite.iterations or FEWEST_SAMPLES
    longest_s = 0.0 if suite.iterations else suite.budget_s
    return sum(max((1 + turns) * turn_s * max(1.0, case.nbytes / PROBE_BYTES), longest_s) for case in cases)


def recorded(cases: Cases, context: Context, seconds: float) -> list[Steps]:
    """Collective: record our plans at each collective's largest size; ``seconds`` for each size."""
    by_collective, found = grouped(cases, lambda case: case.collective).values(), list[Steps]()
    for case in (max(each, key=lambda case: case.nbytes) for each in by_collective):  # the first of several
        with ready(case, ours(cases[case]), context) as plans:
            for name, each in plans.items():
                assert isinstance(each.run, Plan), "``ours`` has kept only plans"
                found += steps_of(name, case, each.run, context.world, seconds / len(plans))
    return found


def overlapped(cases: Cases, context: Context, effort: Effort) -> list[Overlap]:
    """Collective: run our plans and MPI's non-blocking call during compute; ``effort`` is for each case."""
    found = list[Overlap]()
    for case, keys in cases.items():
        theirs = [(NONBLOCKING, keys[0][1])] * (context.world.transport.native is not None)
        with ready(case, [*ours(keys), *theirs], context) as calls:
            part = effort._replace(seconds=effort.seconds / max(len(calls), 1))
            for name, each in calls.items():
                found += overlap_of(name, case, each, context.world.transport, part)
    return found


def ours(keys: Sequence[Key]) -> list[Key]:
    return [key for key in keys if candidate(key[0]).is_plan]


@contextmanager
def ready(case: Case, keys: Sequence[Key], context: Context) -> Iterator[dict[str, Prepared]]:
    """Prepare candidates on buffers of zeros, which stay zeros; by label, without those that cannot run."""
    several = len({cut for _, cut in keys}) > 1
    interleaved = Interleaved(case, keys, context)
    found = {}
    for (name, cut), (each, data) in interleaved.ready.items():
        data.clear()
        found[named(name, each.chosen, cut if several else None)] = each
    yield found
    interleaved.free()
