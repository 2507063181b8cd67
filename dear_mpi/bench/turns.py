"""Run a case's candidates in turns, call by call and with equal data, so disturbances hit all of them.

A sample is one call with a checked result, or (``streaming``) the mean over calls in sequence after such a call.

Each candidate works in the memory of a user's program. Our plans share memory among a host's ranks if they use it, as
in training, unless told otherwise. All others have private memory.

A point is measured until the medians are known well, or its time is over:

    warm-up | 6 turns | as many again, while some median is not known well enough and there is time | ...

All ranks get all samples after each block, so they agree on the end; rank 0's clock decides.
"""

import itertools
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TypeVar

from dear_mpi.bench.arrivals import TOGETHER, Arrival, Wait, after_last
from dear_mpi.bench.backends import candidate, prepare
from dear_mpi.bench.case import CannotRun, Case, Prepared, Samples, Setup
from dear_mpi.bench.data import Data
from dear_mpi.bench.timing import Context, calls_in_a_row, isolated, on_host, quick_barrier, streaming
from dear_mpi.collectives.plans.tuning import wants_shared
from dear_mpi.collectives.program.program import COLLECTIVES
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.ranks.host import page_faults
from dear_mpi.reporting.stats import FEWEST_SAMPLES, median, worth_one
from dear_mpi.reporting.units import parse_percentage, parse_seconds
from dear_mpi.training.declared import Declared, option, parsed

Key = tuple[str, int]  # a candidate and its segment_bytes


def wanted_memory(name: str, case: Case, hosts: Sequence[int]) -> str:
    """Return the kind of memory for a candidate's buffers."""
    if case.device != "cpu":
        return "device"
    shared = candidate(name).is_plan and case.memory != "private" and case.collective in COLLECTIVES
    if shared and case.memory == "auto":
        shared = wants_shared(name, hosts, case.collective, case.nbytes)
    return "shared" if shared else "private"


def needed_bytes(case: Case, names: Sequence[str], hosts: Sequence[int]) -> int:
    """Return a rank's least memory: buffer, data, expected result and second buffer, for each kind of memory."""
    homes = {wanted_memory(name, case, hosts) for name in names}
    received = case.window if case.placement == "out" else 0
    return (3 + received) * case.nbytes * len(homes)


class Interleaved:
    """Collective: the prepared candidates of a case; ``left_out`` has the reasons why others are missing."""

    def __init__(self, case: Case, keys: Sequence[Key], context: Context) -> None:
        world, self.turn = context.world, 0
        self.case, self.transport, self.stream, self.start = (
            case,
            world.transport,
            context.streams.compute,
            context.start,
        )
        # Calls in sequence: messages of a pair synchronise the ranks, and OSU has no barriers there.
        self.between: Callable[[], object] = int if case.operation.pair else quick_barrier(self.transport)
        self.data = cache(partial(Data, case, world, context.streams))  # by memory
        self.ready: dict[Key, tuple[Prepared, Data]] = {}
        self.left_out: dict[str, str] = {}
        for name, segment_bytes in keys:
            memory = wanted_memory(name, case, world.transport.hosts)
            if memory == "shared" and world.transport.reach(self.data(memory).x) is None:
                memory = "private"
            data = self.data(memory)
            try:
                prepared = prepare(name, Setup(case, data.x, data.out, world.transport, segment_bytes))
            except CannotRun as error:
                self.left_out[name] = str(error)
                continue
            self.ready[name, prepared.segment_bytes or segment_bytes] = prepared, data

    def run(self, turns: int, arrival: Arrival = TOGETHER) -> dict[Key, Samples]:
        """Collective: take ``turns`` samples of each candidate."""
        mine: dict[Key, list[tuple[float, float]]] = {key: [] for key in self.ready}
        wrong, faults = dict.fromkeys(self.ready, 0), dict.fromkeys(self.ready, 0.0)
        # A backend's threads that still work would disturb others: these backends take turns separately.
        alone = [key for key in self.ready if candidate(key[0]).session]
        groups = [key for key in self.ready if key not in alone], alone
        skipped = int(all(groups))  # the first turn after another group does not count
        self.start.prepare()
        for group, number in itertools.product(groups, range(-skipped, turns)):
            self.turn += 1
            wait = arrival.wait(number, self.transport)
            # In another order each turn, so that none always follows the slowest; all ranks use one order.
            for key in random.Random(self.turn).sample(group, len(group)):
                elapsed_s, faulted, errors = self.sample(*self.ready[key], wait)
                wrong[key] += errors
                if number >= 0:
                    faults[key] += faulted / turns
                    mine[key].append((elapsed_s, 0.0 if wait is None else wait.came_s))
        answers = self.transport.gather_values((mine, wrong, faults))
        return {
            key: Samples(
                *self.in_time(after_last([times_s[key] for times_s, _, _ in answers])),
                memory=data.memory,
                chosen=prepared.chosen,
                start=self.start.name,
                wrong=sum(errors[key] for _, errors, _ in answers),
                page_faults=max(faulted[key] for _, _, faulted in answers),
            )
            for key, (prepared, data) in self.ready.items()
        }

    def sample(self, prepared: Prepared, data: Data, wait: Wait | None) -> tuple[float, float, int]:
        """Measure one sample.

        Returns:
            The seconds from the common start (NaN if this rank was late), or the mean of several calls in sequence; a
                call's page faults; and the result's wrong elements.
        """
        data.fill(self.turn)
        faults = page_faults()
        elapsed_s, was_in_time = isolated(prepared.run, self.start, self.stream, wait)
        faults = page_faults() - faults
        prepared.untimed()
        errors = data.errors(self.turn)
        if self.case.cadence == "isolated":
            return elapsed_s if was_in_time else math.nan, faults, errors
        data.clear()
        self.transport.barrier()
        loop = on_host if self.case.device == "cpu" else partial(streaming, stream=self.stream)
        calls, faults = calls_in_a_row(self.case.nbytes), page_faults()
        elapsed_s = loop(prepared.run, self.between, calls)
        return elapsed_s, (page_faults() - faults) / calls, errors

    def in_time(self, times_s: list[list[float]]) -> tuple[list[list[float]], int]:
        """Keep samples with all ranks in time, of the timed ranks, for one part of a call.

        Returns:
            The samples, a list per rank; and the number of dropped samples.
        """
        kept = [sample for sample in zip(*times_s, strict=True) if not any(map(math.isnan, sample))]
        found = [list(mine) for mine in zip(*kept, strict=True)] or [[] for _ in times_s]
        counted = found[: self.case.operation.clocks]
        each_part = [[elapsed_s / self.case.parts for elapsed_s in mine] for mine in counted]
        return each_part, len(times_s[0]) - len(kept)

    def free(self) -> None:
        for prepared, _ in self.ready.values():
            prepared.free()


K = TypeVar("K")
MOST_SAMPLES = 10_000  # per candidate at a point, unless --iterations asks for more
MOST_ASKED = 10**7  # by --iterations: all samples of all ranks are kept
WARM_UP_SHARE = 0.25  # the most of a point's time
FEWEST_IN_A_BLOCK = 11  # turns, if each block has an extra, uncounted one
MORE_BLOCKS = 3  # the most, if too few samples count; a clock start's lead grows with each
Found = Mapping[K, Samples]


@dataclass(frozen=True, kw_only=True)
class Pace(Declared):
    """The effort for each collective at each size."""

    budget_s: float = option(
        f"Time for each collective at each size; {FEWEST_SAMPLES} samples are taken at least.",
        1.0,
        shown="1s",
        flag="--budget",
        typed=str,
        parse=lambda text: parsed("--budget", parse_seconds, text),
    )
    precision: float = option(
        "A size ends before its --budget is over when all medians are known this well: half of the 95 % interval is at "
        "most this part of the median.",
        0.01,
        shown="1%",
        typed=str,
        parse=lambda text: parse_percentage("--precision", text, 1.0),
    )
    iterations: int | None = option(
        "Samples of each at each size, however long that takes.",
        None,
        shown="by --budget and --precision",
        least=1,
        most=MOST_ASKED,
    )
    warmup: int = option(
        "Turns at each size before those that count; they take at most a quarter of --budget.",
        3,
        least=0,
        most=MOST_ASKED,
    )

    def check_pace(self) -> None:
        if not self.budget_s > 0:
            raise ValueError(f"budget must be above 0 s, not {self.budget_s:g} s")

    def enough(self, found: Found[K], cadence: str) -> bool:
        return all(self.is_known(samples, cadence) for samples in found.values())

    def is_known(self, samples: Samples, cadence: str) -> bool:
        """Return whether a median is known well. Similar neighbouring samples count less."""
        times_s = samples.job_s(cadence)
        if len(times_s) < FEWEST_SAMPLES:
            return False
        found = median(times_s)
        return (found.high - found.low) / 2 * math.sqrt(worth_one(times_s)) <= self.precision * found.value


def paced(
    pace: Pace, run: Callable[[int], dict[K, Samples]], transport: Transport, *, cadence: str, blocks: int
) -> dict[K, Samples]:
    """Collective: return a point's samples, including warm-up's wrong results.

    Args:
        run: takes this number of turns.
        blocks: the fewest blocks, if candidates do not alternate call by call.
    """
    begin_s = time.perf_counter()

    def spent_s() -> float:
        return float(transport.gather_values(time.perf_counter() - begin_s)[0])

    untimed = dict[K, Samples]()
    for _ in range(pace.warmup):
        untimed = after(run(1), untimed)
        if pace.iterations is None and spent_s() > pace.budget_s * WARM_UP_SHARE:
            break
    warm_s = spent_s()
    if pace.iterations is not None:
        return after(timed(fixed(pace.iterations, run, blocks), (spent_s() - warm_s) / pace.iterations), untimed)
    turns = FEWEST_SAMPLES if blocks == 1 else FEWEST_IN_A_BLOCK
    fewest, found = blocks * turns, run(turns)
    while turns < MOST_SAMPLES and not (turns >= fewest and pace.enough(found, cadence)):
        now_s = spent_s()
        more = min(int((pace.budget_s - now_s) / (now_s - warm_s) * turns), turns, MOST_SAMPLES - turns)
        if more < 1:
            break
        found, turns = together(found, run(more)), turns + more
    for _ in range(MORE_BLOCKS):  # late starts left too few samples that count, but some
        if not 0 < fewest_of(found) < FEWEST_SAMPLES:
            break
        found, turns = together(found, run(FEWEST_SAMPLES)), turns + FEWEST_SAMPLES
    return after(timed(found, (spent_s() - warm_s) / turns), untimed)


def fewest_of(found: Found[K]) -> int:
    return min((len(samples.times_s[0]) for samples in found.values()), default=FEWEST_SAMPLES)


def timed(found: Found[K], turn_s: float) -> dict[K, Samples]:
    """Add the mean time of a turn of all candidates."""
    return {key: replace(samples, turn_s=turn_s) for key, samples in found.items()}


def fixed(turns: int, run: Callable[[int], dict[K, Samples]], blocks: int) -> dict[K, Samples]:
    """Take ``turns`` samples of each candidate, in blocks."""
    sizes = [turns // blocks + (number < turns % blocks) for number in range(blocks)]
    first, *others = [run(size) for size in sizes if size]
    for other in others:
        first = together(first, other)
    return first


def after(found: Found[K], untimed: Found[K]) -> dict[K, Samples]:
    """Add the wrong results of earlier calls."""
    return {key: samples.after(untimed.get(key)) for key, samples in found.items()}


def together(found: Found[K], later: Found[K]) -> dict[K, Samples]:
    return {key: samples + later[key] for key, samples in found.items()}
