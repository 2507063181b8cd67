"""The loops that time calls. Whatever they need is looked up before they begin: what remains is two readings of the
clock and a call from Python, which ``own_cost`` measures.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import repeat
from statistics import median

from dear_mpi.bench.arrivals.arrival import Wait
from dear_mpi.bench.timing.starts import Start
from dear_mpi.collectives.plans.runners.native import call_alone
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.ranks.streams import Stream

SMALL_BYTES = 64 * 1024
CALLS = 100, 10  # in a row: of small buffers, and of all others
TRIALS, TRIAL_CALLS = 11, 20  # of which the loop's own cost is the median


def calls_in_a_row(nbytes: int) -> int:
    return CALLS[nbytes > SMALL_BYTES]


def isolated(run: Callable[[], object], start: Start, stream: Stream, wait: Wait | None = None) -> tuple[float, bool]:
    """The seconds from a common start to the end of a call's last kernel, and whether this rank was in time for it. The
    rank first ``wait``s, if it is to."""
    mark = stream.mark
    in_time = start()
    begin = mark()
    if wait is not None:
        wait.since(time.perf_counter())
    run()
    return stream.seconds(begin, mark()), in_time


def streaming(run: Callable[[], object], between: Callable[[], object], calls: int, stream: Stream) -> float:
    """The mean seconds of calls in a row, each to the end of its last kernel; what is ``between`` is not timed. A call
    before them, which is not timed either, finds data that another one has just written: the caches are not warm."""
    mark, seconds, elapsed_s = stream.mark, stream.seconds, 0.0
    run()
    for _ in repeat(None, calls):
        between()
        begin = mark()
        run()
        elapsed_s += seconds(begin, mark())
    return elapsed_s / calls


def on_host(run: Callable[[], object], between: Callable[[], object], calls: int) -> float:
    """The same where nothing runs but the host: its clock is read without a call in between."""
    clock, elapsed_s = time.perf_counter, 0.0
    run()
    for _ in repeat(None, calls):
        between()
        begin_s = clock()
        run()
        elapsed_s += clock() - begin_s
    return elapsed_s / calls


@dataclass(frozen=True)
class OwnCost:
    """What the loop adds to a call, in us. ``empty_us`` is the clock, and a call that does nothing; ``self_us``, by
    collective, a call of 4 bytes from Python on a communicator of this rank alone, part of which is the library's.
    A barrier is among them: where ranks share a core, one's time contains the others' calls, and their barriers."""

    empty_us: float
    self_us: dict[str, float]


def own_cost(transport: Transport, collectives: Iterable[str]) -> OwnCost:
    """Collective: the costs on the slowest rank, in the loop that times, with its barriers. Without MPI there is
    only that of a call that does nothing."""
    calls: dict[str, Callable[[], object]] = {"": int}
    if transport.native is not None:
        calls |= {name: call_alone(name) for name in (*collectives, "barrier")}

    def cost_us(run: Callable[[], object]) -> float:
        return 1e6 * median(on_host(run, transport.barrier, TRIAL_CALLS) for _ in range(TRIALS))

    found = transport.gather_values({name: cost_us(run) for name, run in calls.items()})
    most = {name: max(each[name] for each in found) for name in calls}
    return OwnCost(most.pop(""), most)
