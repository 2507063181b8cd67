"""Time collectives of several makers in one run: our plans, MPI libraries, gloo."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar, cast

from dear_mpi.bench.arrivals.lateness import decided
from dear_mpi.bench.bound import bound_us
from dear_mpi.bench.case import row_of
from dear_mpi.bench.contest import Contest
from dear_mpi.bench.estimate import announce
from dear_mpi.bench.fit import modelled
from dear_mpi.bench.found.findings import Findings
from dear_mpi.bench.judged.peers import against_peers
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.makers.contestants import CONTESTANTS, LIBRARIES, contestant
from dear_mpi.bench.makers.native import OTHERS
from dear_mpi.bench.makers.other_mpi import OtherMpi
from dear_mpi.bench.point import LateStarts, measured
from dear_mpi.bench.report import Report
from dear_mpi.bench.stand import LATE, Stand, decided_start
from dear_mpi.bench.timing.interleaved import Interleaved, needed_bytes
from dear_mpi.bench.timing.loops import own_cost
from dear_mpi.bench.timing.starts import AtBarrier
from dear_mpi.collectives.plans.tuning import default_segment
from dear_mpi.collectives.program.errors import AgreedError, ArgumentError
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.collectives.transports.agree import agree, said_by_rank_0
from dear_mpi.kernels.dtypes import TYPES
from dear_mpi.ranks.host import available_bytes
from dear_mpi.ranks.world import World
from dear_mpi.reporting.terminal import note
from dear_mpi.reporting.units import format_bytes

T = TypeVar("T")


def agreed(contest: Contest, world: World) -> Contest:
    """Collective: the contest with its segments, if these ranks can measure it; raises as ``agree`` if not."""
    contest = replace(contest, segments=contest.segments or (default_segment(world.transport.hosts),))

    def facts() -> Mapping[str, object]:
        contest.check_for(world)
        return asdict(contest)

    agree(world.transport, "bench", facts)
    return contest


def bench(contest: Contest, world: World, progress: Callable[[str], object] = lambda note: None) -> Report:
    """Collective: a row per case and contestant, in the order of the contest, on each number of ranks.

    All samples start in one way, as ``decided_start`` finds on the most ranks; if they are late all the same, the whole
    run is measured again, from barriers.

    Raises:
        ArgumentError: something is not allowed, or a contestant cannot be had; on all ranks alike.
    """
    contest = agreed(contest, world)
    most = max(contest.ranks, default=world.size)
    contest = replace(contest, start=on_first(world, most, lambda here: decided_start(here, contest)))
    try:
        return bench_all(contest, world, progress)
    except LateStarts:
        note(world, f"{LATE}; all points are measured again")
        return bench_all(replace(contest, start=AtBarrier.name), world, progress)


def bench_all(contest: Contest, world: World, progress: Callable[[str], object]) -> Report:
    first, *others = (
        on_first(world, ranks, lambda here: bench_here(contest, here, progress))
        for ranks in contest.ranks or (world.size,)
    )
    return sum(others, first)


def on_first(world: World, ranks: int, act: Callable[[World], T]) -> T:
    """Collective: call ``act`` on the first ranks of a world; all ranks get the result. The others sleep meanwhile, and
    raise the error that the first ranks raise alike."""
    if ranks == world.size:
        return act(world)
    found: T | None = None
    fault: AgreedError | LateStarts | None = None
    with world.part(ranks) as here:
        try:
            found = None if here is None else act(here)
        except (AgreedError, LateStarts) as error:  # beyond the block it would leave the others asleep
            fault = error
    found, fault = world.transport.gather_values((found, fault) if world.rank == 0 else None)[0]
    if isinstance(fault, AgreedError):
        raise ArgumentError(str(fault))
    if fault is not None:
        raise fault
    return cast(T, found)


def bench_here(contest: Contest, world: World, progress: Callable[[str], object]) -> Report:
    """Collective: the report of all ranks of a world."""
    stand, rows, seen = Stand.of(world, contest), list[Row](), Findings()
    contest = replace(contest, arrival=decided(contest.arrival, stand))
    left_out: dict[str, dict[str, list[int]]] = {}
    with ExitStack() as stack, stand.streams.compute.use():
        check_plans(contest, stand)
        libraries, others = dict[str, str](), dict[str, OtherMpi]()
        for name in contest.names:
            who = contestant(name)
            if who.maker in OTHERS and who.maker not in others:
                other = stack.enter_context(closing(OtherMpi(who.maker, world, contest.other_mpi)))
                others[who.maker], libraries[who.maker] = other, other.library
            elif who.session is not None and world.transport.native is not None:
                libraries[name] = stack.enter_context(who.session(world))
        room = float(min(world.transport.gather_values(available_bytes() / world.ranks_here)))
        too_large = {"all": f"more memory than the {room / 2**30:.3g} GiB that each rank can have"}
        cases, own = contest.cases(world.size), own_cost(world.transport, programs(contest))
        fits = {case: needed_bytes(case, contest.names, world.transport.hosts) <= room for case in cases}
        announce([case for case in cases if fits[case]], contest, stand)
        for case in cases:
            progress(f"{case.collective}, {format_bytes(case.nbytes)}")
            samples, missing = measured(case, contest, stand, others, seen) if fits[case] else ([], too_large)
            for name, why in missing.items():
                left_out.setdefault(f"{name}: {why}", {}).setdefault(case.collective, []).append(case.nbytes)
            for arrival, (name, cut), found in samples:
                library = libraries.get(name) or libraries.get(contestant(name).maker, world.transport.name)
                row = row_of(case, name, found, backend=library, hosts=world.ranks_per_host, segment_bytes=cut)
                rows.append(replace(row, **arrival.as_row()))
        if not rows:
            raise ArgumentError(f"bench: nothing can be measured here: {'; '.join(left_out)}")
        done = {(row.collective, row.bytes) for row in rows}
        keys = {case: contest.keys(case, world.size) for case in cases if (case.collective, case.used_bytes) in done}
        where = contest.where(keys, stand, contest.budget_s)
    model = partial(modelled, rows, world.transport.hosts, world.transport.rates)
    fit, models_us = said_by_rank_0(world.transport, "bench", model, asleep=True)
    rows = [
        replace(row, model_us=us, bound_us=None if fit is None else bound_us(row, fit.network))
        for row, us in zip(against_peers(rows), models_us, strict=True)
    ]
    asleep, clock = any(each.asleep for each in contest.arrival), stand.start.report()
    facts: dict[str, Any] = {"findings": seen, "own_cost": own, "clock": clock, "asleep": asleep}
    return Report(rows, {world.size: fit}, contest.names, left_out, where, **facts)


def programs(contest: Contest, otherwise: Iterable[str] = ("all_reduce",)) -> list[str]:
    """The collectives of a contest that have programs; if none has, others."""
    return [each for each in contest.collectives if each in COLLECTIVES] or list(otherwise)


def check_plans(contest: Contest, stand: Stand) -> None:
    """Collective: an ArgumentError, before the work, if an algorithm serves none of the contest's collectives that have
    programs; or, if none of these has, no collective at all."""
    plans = [(name, min(contest.segments)) for name in contest.algorithms if contestant(name).is_plan]
    size, first = stand.world.size, contest.cases(stand.world.size)[0]
    least = replace(first, nbytes=size * TYPES[first.dtype].itemsize, placement="in", memory="private")
    tried = [Interleaved(replace(least, collective=each), plans, stand) for each in programs(contest, COLLECTIVES)]
    for each in tried:
        each.free()
    for name, _ in plans:
        if all(name in each.left_out for each in tried):
            others = (*LIBRARIES, "native-best", *(other for other, who in CONTESTANTS.items() if not who.is_library))
            raise ArgumentError(f"{tried[0].left_out[name]}; the benchmark also has {', '.join(others)}")
