"""The size that is nearest to a wanted one, on a scale of octaves."""

import math
from collections.abc import Sequence


def nearest(sizes: Sequence[int], wanted: float) -> int:
    """
    >>> nearest([1, 4, 16], 9.0)
    16
    """
    return min(sizes, key=lambda size: abs(math.log(size / wanted)))
