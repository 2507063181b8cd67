"""Look a name up in a table of variants, and help the user who mistyped it."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def lookup(what: str, name: str, table: Mapping[str, T]) -> T:
    """``table[name]``, or a ValueError that says what is allowed and what was probably meant.

    >>> lookup("op", "smu", {"sum": 1, "max": 2})
    Traceback (most recent call last):
        ...
    ValueError: op 'smu' is unknown: did you mean 'sum'? Allowed: sum, max
    """
    if isinstance(name, str) and name in table:
        return table[name]
    near = difflib.get_close_matches(str(name), table, n=2)
    hint = f": did you mean {' or '.join(map(repr, near))}?" if near else "."
    raise ValueError(f"{what} {name!r} is unknown{hint} Allowed: {', '.join(table)}")
