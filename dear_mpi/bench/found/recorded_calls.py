"""More calls of a plan, recorded as for ``--steps``: in the slow ones, who was late?

own      outside of waits for messages no other rank can keep a rank: it was late itself, before or in the call
traced   nobody was: the longest wait leads back to a rank that began late, or slept while it waited
         (inside/steps_table.py)
alone    nobody waited: the one rank that took longer
"""

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from dear_mpi.bench.found.late import Blame, Slow, excess, only_one, slow_calls
from dear_mpi.bench.inside.steps import WARM_UP, Run, Watch
from dear_mpi.bench.inside.steps_table import traced
from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.collectives.plans.steps import StepSpan
from dear_mpi.kernels.array import Array
from dear_mpi.ranks.world import World

BLOCK = 20  # calls, after each of which it is looked whether there are enough
MOST, ENOUGH = 200, 60  # calls, and slow ones


def recorded_calls(plan: Plan, world: World, seconds: float) -> tuple[list[Slow], int]:
    """Collective: record calls of a plan that sends messages, for about so many seconds; the slow ones, and the number
    of all. Its buffer must hold zeros, as for ``steps_of``."""
    transport = world.transport
    watch = Watch(plan, world)
    with watch.common_clock():
        runs, by_rank = enough(watch, seconds)
    slow = slow_calls(by_rank[:, :, 0]).tolist()
    picked = [runs[call] for call in slow]
    mine = [watch.spans_of(ranks) for ranks in watch.gathered(picked)]
    spans = list(zip(*transport.gather_values(mine), strict=True))
    late_s = excess(by_rank)
    found = [blamed(late_s[:, call, 0], late_s[:, call, 1], each) for call, each in zip(slow, spans, strict=True)]
    return found, len(runs)


def enough(watch: Watch, seconds: float) -> tuple[list[Run], Array]:
    """Recorded runs of this rank, and of all ranks (rows) their times: whole, and outside of waits."""
    runs, over, begin_s = list[Run](), False, perf_counter()
    by_rank = np.zeros((watch.transport.size, 1, 2))
    for _ in range(WARM_UP):
        watch.record()
    while len(runs) < MOST and not over and len(slow_calls(by_rank[:, :, 0])) < ENOUGH:
        runs += [watch.record() for _ in range(BLOCK)]
        mine = [(run.end_s - run.begin_s, own_s(run)) for run in runs]
        answers = watch.transport.gather_values((mine, perf_counter() - begin_s > seconds))
        by_rank, over = np.array([times for times, _ in answers]), answers[0][1]
    return runs, by_rank


def own_s(run: Run) -> float:
    """What a run took outside of waits for messages."""
    waits_s = (end_s - begin_s for part, begin_s, end_s in run.noted.calls() if part.kind == "ending")
    return run.end_s - run.begin_s - sum(waits_s)


def blamed(late_s: Array, own_late_s: Array, spans: Sequence[Sequence[StepSpan]]) -> Slow:
    """Who was late in a slow call: by how much each rank took longer than mostly, in all and outside of waits."""
    due_s = float(late_s.max())
    if (2 * own_late_s >= due_s).any():  # by several: all of the host stood still
        return Slow(due_s, only_one(own_late_s, due_s))
    chain = traced(spans)
    if chain and 2 * chain[0][1].seconds >= due_s:
        last = chain[-1][1].peer
        assert last is not None, "it is a wait for a message"
        return Slow(due_s, Blame(last, chain[0][1].seconds))
    return Slow(due_s, only_one(late_s, due_s))
