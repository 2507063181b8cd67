"""How long a run will take, before it begins: from a turn of its contestants at one size.

A point takes its time (``--budget``) at most, unless the fewest samples take longer: so large sizes decide. What
else is done at a point, or beyond all of them, is not in it.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

from dear_mpi.bench.case import Case
from dear_mpi.bench.contest import Contest
from dear_mpi.bench.stand import Stand
from dear_mpi.bench.timing.interleaved import Interleaved
from dear_mpi.kernels.dtypes import TYPES
from dear_mpi.reporting.stats import FEWEST_SAMPLES
from dear_mpi.reporting.terminal import note
from dear_mpi.reporting.units import plural

PROBE_BYTES = 2**20  # from here on, and not below, times go with bytes
WORTH_SAYING_S = 10.0
MANY = 50  # iterations; fewer are over before an estimate would be


def announce(cases: Sequence[Case], contest: Contest, stand: Stand) -> None:
    """Collective: say how long these cases will take, if it is long."""
    if len(cases) * contest.budget_s < WORTH_SAYING_S or (contest.iterations or MANY) < MANY:
        return
    seconds = estimated_s(cases, contest, stand)
    if seconds >= WORTH_SAYING_S:
        more = contest.steps or contest.overlap or contest.in_blocks
        on = f"{plural(len(cases), 'point')} on {plural(stand.world.size, 'rank')}"
        note(stand.world, f"{on} take about {in_words(seconds)}{'' if more else ' at most'}")


def estimated_s(cases: Sequence[Case], contest: Contest, stand: Stand) -> float:
    """Collective: the longest that the samples of these cases will take, about, in s. It makes two turns of the first
    one."""
    transport = stand.world.transport
    probe = sized(cases[0], transport.size)
    interleaved = Interleaved(probe, contest.keys(probe, transport.size), stand)
    interleaved.run(1)
    begin_s = time.perf_counter()
    interleaved.run(1)
    mine_s = time.perf_counter() - begin_s
    interleaved.free()
    turn_s = float(transport.gather_values(mine_s)[0])
    turns = contest.iterations or FEWEST_SAMPLES
    longest_s = 0.0 if contest.iterations else contest.budget_s
    return sum(max((1 + turns) * turn_s * max(1.0, case.nbytes / PROBE_BYTES), longest_s) for case in cases)


def sized(case: Case, ranks: int) -> Case:
    """The same of ``PROBE_BYTES``, in whole elements of each rank; a barrier stays as it is."""
    grain = TYPES[case.dtype].itemsize * ranks
    return replace(case, nbytes=PROBE_BYTES // grain * grain) if case.nbytes else case


def in_words(seconds: float) -> str:
    """
    >>> in_words(42.3), in_words(100.0)
    ('42 s', '2 min')
    """
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
