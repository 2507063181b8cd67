"""How likely noise alone saves as much as a suspect does, counted exactly, from what all of a kind save by iteration.

Ranks are alike, and so are links. If noise delays all of them alike, each iteration may as well have drawn who of them
saves how much. Layers are not alike. If noise makes each as often quicker as slower than usual, each iteration may as
well have drawn the sign of what it saves beyond the middle of the others.

Savings count by their places among all, so that one disturbed iteration counts no more than another. Sources: Hodges
and Lehmann, Rank methods for combination of independent experiments in analysis of variance (Annals of Mathematical
Statistics, 1962); Wilcoxon, Individual comparisons by ranking methods (Biometrics Bulletin, 1945).
"""

from typing import Any

import numpy as np

INSTANT_S = 1e-9  # savings that differ by less are alike
PLACES = 200


def by_turns(saved_s: Any) -> Any:
    """Of each column: how likely one who draws a column in each row anew has so high places in all.

    >>> by_turns(np.array([[3.0, 0.0], [2.0, 0.0], [5.0, 0.0], [4.0, 0.0]])).tolist()
    [0.0625, 1.0]
    """
    places, ways = places_of(np.round(saved_s / INSTANT_S)), np.ones(1)
    if not places.size:
        return np.ones(places.shape[1])
    for row in places:
        ways = np.convolve(ways, np.bincount(row, minlength=PLACES + 1) / len(row))  # how likely each sum of places is
    return ways[::-1].cumsum()[::-1][places.sum(axis=0)].clip(max=1.0)


def by_sign(saved_s: Any) -> Any:
    """Of each column: how likely its signs, drawn in each row anew, give so high places.

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
    """Of each among all, from 0 to PLACES; those alike share theirs."""
    ordered = np.sort(values, axis=None)
    around = ordered.searchsorted(values, "left") + ordered.searchsorted(values, "right")
    return PLACES * around // (2 * max(1, values.size))
