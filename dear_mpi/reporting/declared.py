"""Declare an option once, as a field of a dataclass; its flag, help, checks and report follow."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeVar

from dear_mpi.kernels.lookup import lookup

T = TypeVar("T")
# Separators: a comma, except inside mine.py:Mine(a=1,b=2), or before a plain number, as in at:N,N.
BETWEEN, BETWEEN_FUSIONS = r",(?![^(]*\))", r",(?!\d+(?:,|$))"
BETWEEN_ALGORITHMS = r",(?!\d)"  # not in synth:fattree:4x8,2,10gbit,50us


@dataclass(frozen=True, kw_only=True)
class Option:
    help: str
    shown: str | None = None  # in words, if it has no default
    flag: str | None = None  # if not made of the name
    metavar: str | None = None  # the flag's argument, if not its type
    typed: type | None = None  # the type that the user enters, if different
    parse: Callable[[Any], Any] | None = None  # from the user's text to the value
    between: str | None = None  # separator of several values
    allowed: Mapping[str, object] | None = None
    least: int | None = None  # whole number
    most: int | None = None
    may_be_file: bool = False

    def name(self, name: str) -> str:
        """Return the name of the flag, in Python's spelling."""
        return (self.flag or name).removeprefix("--").replace("-", "_")

    def check(self, name: str, kind: str, value: Any) -> None:
        if (kind == "str" and not isinstance(value, str)) or (kind == "bool" and not isinstance(value, bool)):
            raise ValueError(f"{name} must be {'a text' if kind == 'str' else 'True or False'}, not {value!r}")
        if self.allowed is not None:
            lookup(name, value, self.allowed)
        if self.least is not None:
            if type(value) is not int:
                raise ValueError(f"{name} must be a whole number of at least {self.least}, not {value!r}")
            if value < self.least:
                limit = f"be at least {self.least}" if self.least else "not be negative"
                raise ValueError(f"{name} must {limit}, not {value}")
            if self.most is not None and value > self.most:
                raise ValueError(f"{name} must be at most {self.most}, not {value}")


def option(help: str, default: Any = MISSING, **said: Any) -> Any:
    """Declare an option as a field; without a default it is required."""
    return field(default=default, metadata={"option": Option(help=help, **said)})


def several(help: str, default: tuple[str, ...], *, flag: str, between: str = BETWEEN, **said: Any) -> Any:
    """Declare a field of several texts with commas; each may name a file."""
    parse = partial(listed, flag, between=between)
    how: dict[str, Any] = {"flag": flag, "typed": str, "parse": parse, "between": between, "may_be_file": True}
    return option(f"{help}; several with commas.", default, **how, **said)


def again(kind: type[Declared], name: str, default: Any = MISSING, **said: Any) -> Any:
    """Repeat an option of another class with these changes."""
    return field(default=default, metadata={"option": replace(options_of(kind)[name], **said)})


def options_of(kind: type[Declared]) -> dict[str, Option]:
    return {each.name: each.metadata["option"] for each in fields(kind) if "option" in each.metadata}


@dataclass(frozen=True, kw_only=True)
class Declared:
    @classmethod
    def check_names(cls, what: str, given: Mapping[str, Any]) -> None:
        """Raise ValueError for an unknown option."""
        for name in given:
            lookup(what, name, dict.fromkeys(each.name for each in fields(cls)))

    def check(self) -> None:
        """Raise ValueError for a wrong value; None is allowed as a default."""
        for each in fields(self):
            value = getattr(self, each.name)
            if "option" in each.metadata and (value is not None or each.default is not None):
                each.metadata["option"].check(each.name, str(each.type), value)


def parsed(flag: str, parse: Callable[[str], T], text: str) -> T:
    """Parse a text; an error names the flag."""
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from None


def listed(flag: str, text: str, between: str = BETWEEN) -> tuple[str, ...]:
    """Split a text at commas outside parentheses, or at another pattern.

    >>> listed("--schedules", "wfbp,mine.py:Mine(a=1,b=2)"), listed("--fusion", "own,at:0,100,25MB", BETWEEN_FUSIONS)
    (('wfbp', 'mine.py:Mine(a=1,b=2)'), ('own', 'at:0,100', '25MB'))
    """
    items = tuple(re.split(between, text))
    if not all(items):
        raise ValueError(f"{flag} takes one or several with commas between them, not {text!r}")
    return items
