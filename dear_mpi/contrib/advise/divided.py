"""Iterations that were watched, divided: what each use of a layer takes forward and backward, the optimiser, the rest.

Whatever lies between two moments belongs to what began at the first of them, so all parts add up to the iteration. In
the forward pass a layer has the time until the next one begins; what its neighbours in a larger module do between them
(a sum, a function) is its own, too. In the backward pass it has the time from the gradient of what it returned to that
of the layer before it.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

from dear_mpi.contrib.advise.observed import BACK, BEGIN, END, INSIDE, OUTSIDE, READY, STEP, STEPPED, USE, Mark

FORWARD, BACKWARD, UPDATE, BEFORE, LOSS, AFTER = "forward", "backward", "update", "before", "loss", "after"
Owner = tuple[str, int]  # what takes the time, and the number of the use


@dataclass
class Divided:
    """An iteration; ``parts`` is how many backward passes it has.

    Attributes:
        order: of the uses, as they began first.
        came: for each tensor whose gradient came, the use in whose backward pass it did.
    """

    seconds: defaultdict[Owner, float] = field(default_factory=lambda: defaultdict(float))
    marks: Counter[Owner] = field(default_factory=Counter)
    order: list[int] = field(default_factory=list)
    came: dict[int, int] = field(default_factory=dict)
    parts: int = 0

    @property
    def alike(self) -> tuple[object, ...]:
        """What iterations have in common that may be put together."""
        return tuple(self.order), self.parts, frozenset(self.came)

    @property
    def length_s(self) -> float:
        return sum(self.seconds.values())


def divide(marks: Sequence[Mark]) -> Divided:
    """The parts of one iteration."""
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
        if mark.kind == INSIDE:  # what a module does before its first layer is that layer's
            pending, owner = seconds, (BEFORE, 0)
            continue
        found.seconds[owner] += seconds + pending
        found.marks[owner] += 1
        pending = 0.0
    # What ran forward before the iteration began has its place from the backward pass.
    found.order[:0] = [use for use in dict.fromkeys(reversed(backs)) if use not in found.order]
    return found


def usual(watched: Sequence[Sequence[Mark]]) -> list[Divided]:
    """The iterations that are like most of them."""
    divided = [divide(marks) for marks in watched]
    most, _ = Counter(each.alike for each in divided).most_common(1)[0]
    return [each for each in divided if each.alike == most]


def means(iterations: Sequence[Divided], hook_s: float) -> dict[Owner, float]:
    """Means over the half of the iterations that are of middle length, so that they add up, without what the hooks
    took: so many seconds for each moment."""
    ordered = sorted(iterations, key=lambda each: each.length_s)
    quarter = len(ordered) // 4
    middle = ordered[quarter : len(ordered) - quarter]
    owners = dict.fromkeys(owner for each in middle for owner in each.seconds)
    return {
        owner: max(0.0, fmean(each.seconds[owner] - hook_s * each.marks[owner] for each in middle)) for owner in owners
    }
