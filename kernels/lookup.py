import difflib
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")
ELSEWHERE = dict.fromkeys(("float", "single", "float32", "f4"), "fp32") | dict.fromkeys(("avg", "mean"), "average")
ELSEWHERE |= dict.fromkeys(("double", "float64", "f8"), "fp64") | dict.fromkeys(("half", "float16", "f2"), "fp16")
ELSEWHERE |= {"bfloat16": "bf16", "int": "int32", "char": "int8"}


def lookup(what: str, name: str, table: Mapping[str, T]) -> T:
    """Return ``table[name]``; the ValueError suggests the nearest name.

    >>> lookup("op", "smu", {"sum": 1, "max": 2})
    Traceback (most recent call last):
        ...
    ValueError: op 'smu' is unknown: did you mean 'sum'? Allowed: sum, max
    """
    if isinstance(name, str) and name in table:
        return table[name]
    meant = ELSEWHERE.get(str(name).removeprefix("torch."), "")
    near = [meant] if meant in table else difflib.get_close_matches(str(name), table, n=2)
    hint = f": did you mean {' or '.join(map(repr, near))}?" if near else "."
    raise ValueError(f"{what} {name!r} is unknown{hint} Allowed: {', '.join(table)}")
