"""Loss scaling: gradients are multiplied before they travel, so that small ones do not vanish in fp16.

Source: Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.2; the numbers are PyTorch's.
"""

import math
from dataclasses import dataclass
from numbers import Real

from dear_mpi.kernels.lookup import lookup

LOSS_SCALES = ("none", "dynamic")
LEAST = 1.0


@dataclass
class LossScale:
    """A power of two, which is halved when gradients overflow, and doubled when none has overflowed for long.

    >>> scale = LossScale(8.0, interval=2)
    >>> scale.overflowed(), scale.scale
    (True, 4.0)
    >>> scale.fitted(), scale.fitted(), scale.scale
    (None, None, 8.0)
    """

    scale: float = 2.0**16
    interval: int = 2000
    good: int = 0
    skipped: int = 0

    def __post_init__(self) -> None:
        """See that the numbers, perhaps of a file, have a meaning; ValueError if not."""
        counts = all(type(count) is int and count >= 0 for count in (self.interval, self.good, self.skipped))
        if type(self.scale) is not float or not LEAST <= self.scale < math.inf or not counts:
            raise ValueError(f"a loss scale must be a finite number of at least {LEAST}, with counts, not {self}")

    def overflowed(self) -> bool:
        """Halve the scale, if possible; return whether the iteration is to be skipped for it."""
        if self.scale <= LEAST:
            return False
        self.scale, self.good, self.skipped = self.scale / 2, 0, self.skipped + 1
        return True

    def fitted(self) -> None:
        """Count an iteration in which all gradients were finite."""
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good = self.scale * 2, 0


def is_judged(clip: float | None, loss_scale: str) -> bool:
    """Whether all gradients are looked at before any of them is used.

    Raises:
        ValueError: a value is not allowed.
    """
    lookup("loss_scale", loss_scale, dict.fromkeys(LOSS_SCALES))
    number = isinstance(clip, Real) and not isinstance(clip, bool)
    if clip is not None and (not number or not 0 < clip < math.inf):
        raise ValueError(f"clip must be a norm above zero, not {clip!r}")
    return clip is not None or loss_scale != "none"
