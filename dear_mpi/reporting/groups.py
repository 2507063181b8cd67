"""Things by what they have in common."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


def grouped(things: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The things of each key, in the order in which keys come up first.

    >>> grouped(["ring", "native", "ruler"], lambda name: name[0])
    {'r': ['ring', 'ruler'], 'n': ['native']}
    """
    found: dict[K, list[T]] = {}
    for thing in things:
        found.setdefault(key(thing), []).append(thing)
    return found
