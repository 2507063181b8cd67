"""How much is measured of each point: until the medians are known well, or its time is over.

    warm-up | 6 turns | as many again, while some median is not known well enough and there is time | ...

All ranks get all samples after each block, so they agree on when to stop; the time is that of rank 0.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from dear_mpi.bench.case import Samples
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.reporting.stats import FEWEST_SAMPLES, median, worth_one
from dear_mpi.reporting.units import parse_percentage, parse_seconds
from dear_mpi.training.declared import Declared, option, parsed

K = TypeVar("K")
MOST_SAMPLES = 10_000  # of each contestant at a point, unless --iterations asks for more
MOST_ASKED = 10**7  # by --iterations: all samples of all ranks are kept
WARM_UP_SHARE = 0.25  # of a point's time, at most
FEWEST_IN_A_BLOCK = 11  # turns, where a block needs one that does not count
MORE_BLOCKS = 3  # at most, if too few samples count; a start by the clock is at a later moment in each
Found = Mapping[K, Samples]


@dataclass(frozen=True, kw_only=True)
class Pace(Declared):
    """How much is measured of each collective at each size."""

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
        """Whether a median is known well; where neighbours are alike, so many samples say less than they seem to."""
        times_s = samples.job_s(cadence)
        if len(times_s) < FEWEST_SAMPLES:
            return False
        found = median(times_s)
        return (found.high - found.low) / 2 * math.sqrt(worth_one(times_s)) <= self.precision * found.value


def paced(
    pace: Pace, run: Callable[[int], dict[K, Samples]], transport: Transport, *, cadence: str, blocks: int
) -> dict[K, Samples]:
    """Collective: the samples of a point, with the wrong results of warm-up, too. ``run`` takes so many turns; it is
    called until ``blocks`` blocks are over or the time is, where some contestants have theirs between."""
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
    for _ in range(MORE_BLOCKS):  # where ranks were late for so many starts that too few count, but not for all
        if not 0 < fewest_of(found) < FEWEST_SAMPLES:
            break
        found, turns = together(found, run(FEWEST_SAMPLES)), turns + FEWEST_SAMPLES
    return after(timed(found, (spent_s() - warm_s) / turns), untimed)


def fewest_of(found: Found[K]) -> int:
    return min((len(samples.times_s[0]) for samples in found.values()), default=FEWEST_SAMPLES)


def timed(found: Found[K], turn_s: float) -> dict[K, Samples]:
    """The same samples, with how long a turn of all took."""
    return {key: replace(samples, turn_s=turn_s) for key, samples in found.items()}


def fixed(turns: int, run: Callable[[int], dict[K, Samples]], blocks: int) -> dict[K, Samples]:
    """So many samples of each, in blocks."""
    sizes = [turns // blocks + (number < turns % blocks) for number in range(blocks)]
    first, *others = [run(size) for size in sizes if size]
    for other in others:
        first = together(first, other)
    return first


def after(found: Found[K], untimed: Found[K]) -> dict[K, Samples]:
    """The same samples, with the wrong results of earlier calls."""
    return {key: samples.after(untimed.get(key)) for key, samples in found.items()}


def together(found: Found[K], later: Found[K]) -> dict[K, Samples]:
    return {key: samples + later[key] for key, samples in found.items()}
