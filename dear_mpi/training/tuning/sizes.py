"""Bucket sizes that are worth a trial: one of all that cut the line at the same places; and sizes as text, to be typed.

    size      1MB    1.05MB  1.09MB   1.14MB ...                   200MB   256MB
    buckets   65 ------------------|  63 ---| ...                  |-- 1 -------|      a trial each, not eight

A bucket takes whole layers, so most sizes that are near each other are one and the same choice.
"""

import math
from itertools import groupby

from dear_mpi.reporting.units import parse_bytes
from dear_mpi.training.fusion.policies import USUAL, borders
from dear_mpi.training.line.layout import Layout

START = parse_bytes(USUAL)
PER_OCTAVE = 32
UNITS = {"GB": 1 << 30, "MB": 1 << 20, "KB": 1 << 10}
DIGITS = 3


def first_size(low: int, high: int) -> int:
    """The size to begin with: 25 MB, or the middle of a range that does not have it."""
    return START if low <= START <= high else min(max(readable(round((low * high) ** 0.5)), low), high)


def distinct_sizes(layout: Layout, low: int, high: int, *, per_octave: int = PER_OCTAVE) -> list[int]:
    """Sizes in bytes from low to high, ascending, of which no two cut the line the same.

    The first to be tried stands for those that cut as it does; for other sizes that cut alike, the middle one does.

    Args:
        per_octave: how many sizes are looked at from each power of two to the next.

    >>> layout = Layout.of([[("a", (64,))], [("b", (64,))], [("c", (64,))]], itemsize=4, ranks=1)
    >>> distinct_sizes(layout, 200, 1000), first_size(200, 1000)
    ([447, 624, 879], 447)
    """
    start = first_size(low, high)
    steps = max(1, math.ceil(per_octave * math.log2(high / low)))
    spread = {readable(round(low * (high / low) ** (step / steps))) for step in range(steps + 1)}
    sizes = sorted({low, start, high} | {size for size in spread if low < size < high})
    groups = [list(group) for _, group in groupby(sizes, lambda size: cut_by(layout, size))]
    return [start if start in group else group[(len(group) - 1) // 2] for group in groups]


def cut_by(layout: Layout, size: int) -> tuple[int, ...]:
    """Where buckets of this size begin, in elements of the line."""
    return tuple(layout.point(border) for border in borders(size_text(size), layout))


def readable(nbytes: int) -> int:
    """The nearest size that is written with three digits.

    >>> readable(39_000_000)
    39007027
    """
    unit = next((unit for unit, factor in UNITS.items() if nbytes >= factor), None)
    if unit is None:
        return nbytes
    value = nbytes / UNITS[unit]
    return parse_bytes(f"{value:.{max(0, DIGITS - len(str(int(value))))}f}{unit}")


def size_text(nbytes: int) -> str:
    """The shortest text that ``parse_bytes`` reads as this size.

    >>> size_text(26214400), size_text(39007027), size_text(1537)
    ('25MB', '37.2MB', '1537B')
    """
    for unit, factor in UNITS.items():
        for digits in range(DIGITS):
            text = f"{nbytes / factor:.{digits}f}{unit}"
            if nbytes >= factor and parse_bytes(text) == nbytes:
                return text
    return f"{nbytes}B"
