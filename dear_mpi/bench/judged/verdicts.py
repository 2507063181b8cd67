"""What the interval of a row's time over its peer's says, in words: faster, slower, alike, or that it cannot tell."""

import math
from collections.abc import Iterator, Sequence

from dear_mpi.bench.judged.compared import is_noisy
from dear_mpi.bench.machine_file import Row
from dear_mpi.bench.makers.contestants import label
from dear_mpi.bench.timing.pace import MOST_SAMPLES
from dear_mpi.reporting.units import format_bytes

LEAST = 0.03  # a difference that is worth being told apart; an interval that is no wider tells it
LONGEST_S = 600  # of which it is of use to say how many


def verdicts(rows: Sequence[Row], *, cuts: bool) -> Iterator[str]:
    """A line for each row but the peers, sizes from the least to the greatest."""
    peers = {row.case: label(row, cuts=cuts) for row in rows if is_peer(row)}
    for row in sorted(rows, key=lambda row: row.bytes):
        if not is_peer(row):
            yield verdict(row, label(row, cuts=cuts), peers.get(row.case, row.peer))


def is_peer(row: Row) -> bool:
    return (row.over_peer_low, row.over_peer_high) == (1, 1)


def verdict(row: Row, name: str, peer: str) -> str:
    low, high, at = row.over_peer_low, row.over_peer_high, f"{peer} at {format_bytes(row.bytes)}"
    if row.wrong:
        return f"{name} or {at}: cannot tell: the results of {name} are wrong"
    if low is None or high is None:
        return f"{name} or {at}: cannot tell: too few samples for an interval, {row.samples}"
    if is_noisy(row):
        return f"{name} or {at}: cannot tell: the interval of {name} is wider than its median"
    if high < 1:
        return f"{name} is faster by {percent(1 / row.over_peer, 1 / high, 1 / low)} than {at}"
    if low > 1:
        return f"{name} is slower by {percent(row.over_peer, low, high)} than {at}"
    interval = f"the interval is {low:.3f} to {high:.3f}"
    if low >= 1 / (1 + LEAST) and high <= 1 + LEAST:
        return f"{name} takes as long as {at}, within {LEAST:.0%}: {interval}"
    return f"{name} or {at}: cannot tell: {interval}; {more_samples(row, math.log(high / low))}"


def percent(ratio: float, low: float, high: float) -> str:
    """
    >>> percent(1.0312, 1.02, 1.044), percent(12.0, 11.0, 14.0)
    ('3.1 % (2.0 to 4.4 %)', '1100 % (1000 to 1300 %)')
    """
    most, *ends = (f"{100 * each - 100:{'.1f' if high < 2 else '.0f'}}" for each in (ratio, low, high))
    return f"{most} % ({' to '.join(ends)} %)"


def more_samples(row: Row, width: float) -> str:
    """How many make the interval as narrow as ``LEAST``, so that it excludes 1 or says that they take as long: its
    width goes with one over the root of their number."""
    needed = row.samples * (width / math.log1p(LEAST)) ** 2
    more, text = needed - row.samples, f"would be needed for {LEAST:.0%}"
    if row.turn_us is None:
        return f"about {two_digits(more)} more samples {text}"
    took_s, seconds = more * row.turn_us / 1e6, needed * row.turn_us / 1e6
    if seconds > LONGEST_S:
        return f"over {LONGEST_S // 60} minutes of samples {text}, or a machine that is less busy"
    flags = f"--budget {math.ceil(seconds)}s --precision 0%"
    if needed > MOST_SAMPLES:
        flags = f"--iterations {math.ceil(needed)}"
    return f"about {two_digits(more)} more samples ({two_digits(took_s)} s; {flags}) {text}"


def two_digits(number: float) -> str:
    """
    >>> two_digits(1234.0), two_digits(0.0321), two_digits(7.46)
    ('1200', '0.032', '7.5')
    """
    return f"{float(f'{number:.2g}'):g}"
