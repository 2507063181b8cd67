"""Compute how likely noise saves as much as a suspect, exactly, from the savings of its kind by iteration.

Ranks are alike, and so are links. If noise delays all of them equally, each iteration may have assigned the savings to
them at random. Layers differ. If noise makes each as often quicker as slower than usual, each iteration may have drawn
the sign of a layer's savings beyond the median of the others.

Savings count by rank order, so that one disturbed iteration counts no more than another. Sources: Hodges and Lehmann,
Rank methods for combination of independent experiments in analysis of variance (Annals of Mathematical Statistics,
1962); Wilcoxon, Individual comparisons by ranking methods (Biometrics Bulletin, 1945).
"""

from typing import Any

import numpy as np

INSTANT_S = 1e-9  # savings that differ by less are equal
PLACES = 200


def by_turns(saved_s: Any) -> Any:
    """Return, for each column, how likely random columns in each row reach a rank sum as high.

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
    """Return, for each column, how likely random signs in each row reach a rank sum as high.

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
    """Rank each value among all, from 0 to PLACES; equal values share a rank."""
    ordered = np.sort(values, axis=None)
    around = ordered.searchsorted(values, "left") + ordered.searchsorted(values, "right")
    return PLACES * around // (2 * max(1, values.size))
