"""Divide watched iterations into layer calls forward and backward, the optimiser, and the rest.

The time between two events belongs to the activity that began at the first. Forward, a layer's time lasts until the
next one begins; backward, from its output's gradient to that of the layer before it.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

from dear_mpi.contrib.advise.observed import BACK, BEGIN, END, INSIDE, OUTSIDE, READY, STEP, STEPPED, USE, Mark

FORWARD, BACKWARD, UPDATE, BEFORE, LOSS, AFTER = "forward", "backward", "update", "before", "loss", "after"
Owner = tuple[str, int]  # activity and layer call


@dataclass
class Divided:
    """Attributes:
    parts: the number of backward passes.
    order: layer calls by their first begin.
    came: for each tensor with a gradient, the layer call during whose backward pass it came.
    """

    seconds: defaultdict[Owner, float] = field(default_factory=lambda: defaultdict(float))
    marks: Counter[Owner] = field(default_factory=Counter)
    order: list[int] = field(default_factory=list)
    came: dict[int, int] = field(default_factory=dict)
    parts: int = 0

    @property
    def alike(self) -> tuple[object, ...]:
        """The key of iterations that may be averaged."""
        return tuple(self.order), self.parts, frozenset(self.came)

    @property
    def length_s(self) -> float:
        return sum(self.seconds.values())


def divide(marks: Sequence[Mark]) -> Divided:
    found = Divided()
    owner, back, pending, backs = (BEFORE, 0), -1, 0.0, list[int]()
    for mark, after in pairwise(marks):
        if mark.kind == USE:
            owner = (FORWARD, mark.key)
            found.order += [mark.key] * (mark.key not in found.order)
        elif mark.kind == BACK:
            owner, back = (BACKWARD, mark.key), mark.key
            backs.append(mark.key)
        elif mark.kind == READY:
            back = back if back >= 0 else found.order[-1] if found.order else -1
            owner = (BACKWARD, back)
            found.came.setdefault(mark.key, back)
        elif mark.kind == END:
            found.parts += bool(found.came)
            owner, back = (AFTER, 0), -1
        else:
            owner = {BEGIN: (BEFORE, 0), OUTSIDE: (LOSS, 0), STEP: (UPDATE, 0), STEPPED: (AFTER, 0)}.get(
                mark.kind, owner
            )
        seconds = after.at_s - mark.at_s
        if mark.kind == INSIDE:  # a module's earlier work counts for its first layer
            pending, owner = seconds, (BEFORE, 0)
            continue
        found.seconds[owner] += seconds + pending
        found.marks[owner] += 1
        pending = 0.0
    # Calls that ran forward before the iteration, in backward order.
    found.order[:0] = [use for use in dict.fromkeys(reversed(backs)) if use not in found.order]
    return found


def usual(watched: Sequence[Sequence[Mark]]) -> list[Divided]:
    divided = [divide(marks) for marks in watched]
    most, _ = Counter(each.alike for each in divided).most_common(1)[0]
    return [each for each in divided if each.alike == most]


def means(iterations: Sequence[Divided], hook_s: float) -> dict[Owner, float]:
    """Return means over the half of iterations of middle length, less ``hook_s`` seconds per event."""
    ordered = sorted(iterations, key=lambda each: each.length_s)
    quarter = len(ordered) // 4
    middle = ordered[quarter : len(ordered) - quarter]
    owners = dict.fromkeys(owner for each in middle for owner in each.seconds)
    return {
        owner: max(0.0, fmean(each.seconds[owner] - hook_s * each.marks[owner] for each in middle)) for owner in owners
    }
