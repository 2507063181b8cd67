"""A list that a user gave, in which nothing may be there twice."""

from collections.abc import Callable, Hashable, Sequence


def check_distinct(what: str, given: Sequence[object], meaning: Callable[[str], Hashable] = str) -> None:
    """See that no two values mean the same.

    Args:
        what: how the user named the list.
        meaning: from the text of a value to something that is equal for values that mean the same.

    Raises:
        ValueError: two do.

    >>> check_distinct("ranks", [2, 3])
    >>> check_distinct("fusion", ["25MB", "25mb"], str.lower)
    Traceback (most recent call last):
    ValueError: fusion must be different ones, not 25MB, 25mb
    """
    texts = list(map(str, given))
    if len(set(map(meaning, texts))) < len(texts):
        raise ValueError(f"{what} must be different ones, not {', '.join(texts)}")
