"""What a run of the benchmark is held against: it is read, and must have a point of the run, before the run begins."""

from collections.abc import Sequence

from dear_mpi.bench.case import Samples, row_of
from dear_mpi.bench.contest import Contest
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.makers.contestants import contestant
from dear_mpi.bench.runs.saved import Run, check_comparable, read_runs
from dear_mpi.collectives.transports.agree import said_by_rank_0
from dear_mpi.ranks.world import World, ranks_per_host

THIS_RUN = "this run"


def baseline_before(files: Sequence[str], contest: Contest, world: World) -> list[Run]:
    """Collective: the launches of the baseline; an ArgumentError if they cannot be read, or compared with each other or
    with this run."""

    def read() -> list[Run]:
        runs = read_runs("--baseline", files)
        for other in (*runs[1:], planned(contest, world, runs[0].rows)):
            check_comparable(runs[0], other)
        return runs

    return said_by_rank_0(world.transport, "baseline", read)


def planned(contest: Contest, world: World, before: Sequence[Row]) -> Run:
    """The points that a run may have; its times are made up. Where its buffers will be, how samples start, and how
    large messages of ``auto`` are, is not known yet: all that these rows have of it is taken to be possible."""
    found = {(row.memory, row.start) for row in before}
    name, hosts = world.transport.name, world.transport.hosts
    rows = [
        row_of(case, who, instant(ranks, *how), backend=name, hosts=ranks_per_host(hosts[:ranks]), segment_bytes=size)
        for ranks in contest.ranks or (world.size,)
        for case in contest.cases(ranks)
        for who, cut in contest.keys(case, ranks)
        for size in segments(who, cut, before)
        for how in found
    ]
    return Run(THIS_RUN, rows)


def segments(name: str, given: int, before: Sequence[Row]) -> set[int]:
    """How large messages of a contestant may be: as given, unless it has a table that says so."""
    if contestant(name).segments or not contestant(name).is_plan:
        return {given}
    return {row.segment_bytes for row in before if row.algorithm == name} or {given}


def instant(ranks: int, memory: str, start: str) -> Samples:
    return Samples([[1e-6]] * ranks, memory=memory, start=start)
