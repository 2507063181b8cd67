"""Find the causes of lost time in a recorded run: replay suspects at their usual speed, one at a time.

A suspect stands out if an iteration without it is at least 3 % shorter, and it saves more than noise does, with a 5 %
chance of error for all (Bonferroni). It then counts as fixed, and the others are tried again.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Any

import numpy as np

from dear_mpi.contrib.blame.causes import KINDS, Compared, Suspect, Suspects, Usual
from dear_mpi.contrib.blame.graph import iterations_s, replay
from dear_mpi.contrib.blame.messages import Messages
from dear_mpi.contrib.blame.threads import JOINING, Threads
from dear_mpi.training.events import middle
from dear_mpi.training.events.spans import WIRE, Iteration, Rank, Run

FEWEST = 10  # iterations: with fewer, chance may explain any suspect
LEAST, CHANCE, FAR = 0.03, 0.05, 0.10  # of an iteration; of an error; of the replay from the measurement
MOST = 3  # causes
TRIM = 0.2  # at either end
OWN = "the middle of its own iterations"  # the default reference
KEPT = "train --blame keeps the last 20 of its --iterations, also for --timeline"


class BlameError(ValueError):
    """A run lacks necessary data."""


@dataclass(frozen=True)
class Finding:
    """A suspect; ``chance``: that noise saves as much."""

    kind: str
    name: str
    seen: int  # iterations
    over_s: float  # beyond the usual in each of these; 0 for a link
    ratio: float  # to the usual seconds, of a link or a layer
    now_s: float
    without_s: float
    share: float  # of now, saved
    chance: float
    messages: Compared | None = None  # slowest on a link


@dataclass(frozen=True)
class Blame:
    """Causes in the order of removal, each without the earlier ones.

    ``most``: the remaining suspect that saves most. Seconds are trimmed means over iterations.
    """

    iterations: int
    ranks: int
    measured_s: float
    replayed_s: float
    off: float  # relative, of the replay
    causes: tuple[Finding, ...]
    most: Finding | None
    reference: str  # for a layer's usual time
    suspects: Mapping[str, int]  # how many, by kind


def blame(run: Run, usual_s: Usual | None = None, reference: str = "") -> Blame:
    """Args:
        usual_s: of layers, see ``Suspects``; ``reference`` names its source.

    Raises:
        BlameError: a rank is missing, or there are too few iterations.
    """
    trial = Trial(checked(run), usual_s)
    suspects = sum(trial.count.values())
    check_enough(trial.iterations, suspects)
    causes, found = list[Finding](), trial.round()
    off = trial.replayed_s / trial.measured_s - 1
    while abs(off) <= FAR and len(causes) < MOST and (cause := next_cause(found, suspects)):
        causes.append(cause)
        trial.mend(cause)
        found = trial.round()
    return Blame(
        iterations=trial.iterations,
        ranks=len(run.ranks),
        measured_s=trial.measured_s,
        replayed_s=trial.replayed_s,
        off=off,
        causes=tuple(causes),
        most=found[0] if found else None,
        reference=OWN if usual_s is None else reference,
        suspects=trial.count,
    )


def checked(run: Run) -> Run:
    if len(run.ranks) not in (1, run.size):
        raise BlameError(f"blame needs all {run.size} ranks of a run, and has {len(run.ranks)}")
    whole = set.intersection(*({each.number for each in rank.iterations if is_whole(rank, each)} for rank in run.ranks))
    if len(whole) < FEWEST:
        raise BlameError(f"blame needs {FEWEST} iterations at least, and has {len(whole)}: {KEPT}")
    kept = (tuple(each for each in rank.iterations if each.number in whole) for rank in run.ranks)
    return replace(run, ranks=tuple(map(lambda rank, its: replace(rank, iterations=its), run.ranks, kept)))


def check_enough(iterations: int, suspects: int) -> None:
    """Check that a layer could stand out."""
    if (fewest := ceil(log2(max(1, suspects) / CHANCE))) > iterations:
        raise BlameError(
            f"blame needs {fewest} iterations at least for {suspects} suspects, and has {iterations}: {KEPT}"
        )


def is_whole(rank: Rank, iteration: Iteration) -> bool:
    """Whether all notes of its collectives are kept: later ones may push them out."""
    ended = (span.end_s for span in rank.spans if span.lane == WIRE and span.kind in JOINING)
    return not rank.noted or not any(iteration.begin_s < end_s < rank.noted[0].begin_s for end_s in ended)


class Trial:
    def __init__(self, run: Run, usual_s: Usual | None) -> None:
        threads = Threads(run)
        self.graph, self.iterations = threads.graph, len(run.ranks[0].iterations)
        every = Suspects(Messages(threads), usual_s)
        self.suspects, self.count = every.tried, every.count
        self.left, self.mended, self.order = list(self.suspects), list[Suspect](), self.graph.order()
        self.measured = np.array(self.graph.times)[:, None]
        both = self.measured, replay(self.graph, self.order, {}, 1)
        self.measured_s, self.replayed_s = (trimmed_mean(iterations_s(self.graph, times)[:, 0]) for times in both)

    def mend(self, finding: Finding) -> None:
        place = [(each.kind, each.name) for each in self.left].index((finding.kind, finding.name))
        self.mended.append(self.left.pop(place))

    def times(self, suspects: Sequence[Suspect]) -> Any:
        """Return event times with all fixed suspects at their usual speed; then also with each of ``suspects``."""
        count = 1 + len(suspects)
        more_s = defaultdict[Any, Any](lambda: np.zeros(count))
        for columns, each in [(slice(None), each) for each in self.mended] + list(enumerate(suspects, 1)):
            for cause, seconds in each.more_s.items():
                more_s[cause][columns] += seconds
        return replay(self.graph, self.order, more_s, count)

    def round(self) -> list[Finding]:
        """Return all remaining suspects by savings, largest first."""
        spent_s = iterations_s(self.graph, self.times(self.left))
        now_s, saved_s, found = trimmed_mean(spent_s[:, 0]), spent_s[:, :1] - spent_s[:, 1:], list[Finding]()
        for kind in KINDS:
            places = [place for place, each in enumerate(self.left) if each.kind == kind]
            its_s = saved_s[:, places]
            chances = by_sign(its_s) if kind == "layer" else by_turns(its_s)
            for place, chance in zip(places, chances, strict=True):
                found.append(self.finding(self.left[place], saved_s[:, place], float(chance), now_s))
        return sorted(found, key=lambda each: each.without_s)

    def finding(self, suspect: Suspect, saved_s: Any, chance: float, now_s: float) -> Finding:
        over_s, mean_s = suspect.over_s if suspect.over_s.any() else saved_s, trimmed_mean(saved_s)
        seen = over_s > max(0.0, over_s.mean() / 2)
        return Finding(
            suspect.kind,
            suspect.name,
            seen=int(seen.sum()),
            over_s=float(suspect.over_s[seen].mean()) if seen.any() else 0.0,
            ratio=suspect.ratio,
            now_s=now_s,
            without_s=now_s - mean_s,
            share=mean_s / now_s,
            chance=chance,
            messages=suspect.messages,
        )


def next_cause(found: Sequence[Finding], suspects: int) -> Finding | None:
    """The suspect that saves most among those that stand out."""
    return next((each for each in found if each.share >= LEAST and each.chance <= CHANCE / suspects), None)


def trimmed_mean(values: Any) -> float:
    """Return the mean without the lowest and highest fifth.

    >>> trimmed_mean(np.array([100.0, 3.0, 1.0, 2.0, -7.0]))
    2.0
    """
    return float(middle(values[:, None], int(TRIM * len(values)), by=0)[0])


# How likely noise saves as much as a suspect, exactly.
#
# Ranks are alike, and so are links: if noise delays all equally, an iteration assigned savings to them at random.
# Layers differ: if noise makes each as often quicker as slower, an iteration drew the sign of a layer's savings beyond
# the median of the others. Savings count by rank order, so that no disturbed iteration counts more. Sources: Hodges and
# Lehmann (Annals of Mathematical Statistics, 1962); Wilcoxon (Biometrics Bulletin, 1945).
INSTANT_S = 1e-9  # closer savings are equal
PLACES = 200


def by_turns(saved_s: Any) -> Any:
    """Return how likely, for each column, random columns in each row reach a rank sum as high.

    >>> by_turns(np.array([[3.0, 0.0], [2.0, 0.0], [5.0, 0.0], [4.0, 0.0]])).tolist()
    [0.0625, 1.0]
    """
    places, ways = places_of(np.round(saved_s / INSTANT_S)), np.ones(1)
    if not places.size:
        return np.ones(places.shape[1])
    for row in places:
        ways = np.convolve(ways, np.bincount(row, minlength=PLACES + 1) / len(row))  # probability of each rank sum
    return ways[::-1].cumsum()[::-1][places.sum(axis=0)].clip(max=1.0)


def by_sign(saved_s: Any) -> Any:
    """Return how likely random signs reach it.

    >>> by_sign(np.array([[1.0], [2.0], [3.0], [4.0]])).tolist(), by_sign(np.array([[-1.0], [1.0]])).tolist()
    ([0.0625], [0.75])
    """
    chances = []
    for place, its_s in enumerate(saved_s.T):
        others_s = np.delete(saved_s, place, axis=1)
        beyond_s = its_s - (np.maximum(0.0, np.median(others_s, axis=1)) if others_s.size else 0.0)
        chances.append(by_turns(np.stack([beyond_s, -beyond_s], axis=1))[0])
    return np.array(chances)


def places_of(values: Any) -> Any:
    """Rank values from 0 to PLACES, equal ones equally."""
    ordered = np.sort(values, axis=None)
    around = ordered.searchsorted(values, "left") + ordered.searchsorted(values, "right")
    return PLACES * around // (2 * max(1, values.size))
