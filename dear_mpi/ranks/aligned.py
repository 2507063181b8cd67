"""From the clock of a rank to that of rank 0, for times that were noted before: by how much, and give or take what.

    offset |      o------------------------o ....      o  found by messages there and back (clock.py)
           |   first look                last look
           +---------------------------------------> time

Between two looks the offset goes along a line. The farther a time is from a look, the less is known: without a second
look a clock may drift by ``DRIFT``, with one by what the looks leave open and by ``WANDER``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

APART_S = 0.5  # two looks that are closer do not tell a drift: their uncertainties are all that is seen
DRIFT = 200e-6  # s/s: more than two clocks drift by themselves, 100 us a second each
WANDER = 1e-6  # s/s: how much a drift changes, as the temperature does


@dataclass(frozen=True)
class Look:
    """This rank's clock showed ``at_s``, and ``offset_s`` more than that of rank 0, give or take ``uncertainty_s``."""

    at_s: float
    offset_s: float
    uncertainty_s: float


@dataclass(frozen=True)
class Aligned:
    """``looks``: the first and the last one; none where all ranks have one clock."""

    looks: tuple[Look, ...] = ()

    @property
    def seconds(self) -> float:
        """Between the looks."""
        return self.looks[-1].at_s - self.looks[0].at_s if self.looks else 0.0

    @property
    def drift(self) -> float:
        if self.seconds < APART_S:
            return 0.0
        return (self.looks[-1].offset_s - self.looks[0].offset_s) / self.seconds

    def offset_s(self, at_s: float) -> float:
        """By how much this rank's clock was ahead when it showed ``at_s``."""
        if not self.looks:
            return 0.0
        last = self.looks[-1]
        return last.offset_s + self.drift * (at_s - last.at_s)

    def uncertainty_s(self, at_s: float) -> float:
        """By which that may be wrong."""
        if not self.looks:
            return 0.0
        found_s = [look.uncertainty_s for look in self.looks]
        known = self.seconds >= APART_S
        rate = min(DRIFT, sum(found_s) / self.seconds + WANDER) if known else DRIFT
        return max(found_s) + rate * min(abs(at_s - look.at_s) for look in self.looks)

    def doubt(self) -> str:
        """Why the offset cannot be known; nothing if it can."""
        if not all(isfinite(look.uncertainty_s) for look in self.looks):
            return "no message came back from rank 0 without its clock being set meanwhile"
        if not self.looks:
            return ""
        first, last = self.looks[0], self.looks[-1]
        moved_s = abs(last.offset_s - first.offset_s) - first.uncertainty_s - last.uncertainty_s
        if moved_s > DRIFT * self.seconds:
            return f"its clock moved by {moved_s:.3g} s in {self.seconds:.3g} s, so it was set meanwhile"
        return ""

    def as_dict(self) -> dict[str, Any]:
        """For a file."""
        return {"looks": [asdict(look) for look in self.looks]}


def aligned_of(content: Mapping[str, Sequence[Mapping[str, float]]]) -> Aligned:
    """What ``as_dict`` gave."""
    return Aligned(tuple(Look(**look) for look in content["looks"]))
