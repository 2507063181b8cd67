"""How an option is declared: once, as a field of a dataclass. Its flag, its help, its checks and its report follow."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeVar

from dear_mpi.kernels.lookup import lookup

T = TypeVar("T")
BETWEEN = r",(?![^(]*\))"  # a comma, except those of mine.py:Mine(a=1,b=2)
# A comma, except one before a plain number, which goes on with the numbers of at:N,N.
BETWEEN_FUSIONS = r",(?!\d+(?:,|$))"
# Of fields, by the name of their type.
KINDS: dict[str, tuple[Any, str]] = {"str": (str, "a text"), "bool": (bool, "True or False")}


@dataclass(frozen=True, kw_only=True)
class Option:
    """What is said of an option beside its name, its type and its default."""

    help: str
    shown: str | None = None  # what holds if it is not given, in words, where there is no default
    flag: str | None = None  # if it is not made of the name; a switch needs it
    metavar: str | None = None  # what the flag takes, if not its type
    typed: type | None = None  # of what the user types, if it is another type
    parse: Callable[[Any], Any] | None = None  # from what the user types to the value
    between: str | None = None  # what stands between several values
    allowed: Mapping[str, object] | None = None  # the names that it may have
    least: int | None = None  # of a whole number, like the next
    most: int | None = None
    may_be_file: bool = False  # that is read
    reported: bool = False  # by ``train`` and ``compare``, as it is
    decides: bool = False  # whether a run must keep it, to come to the same bits after a break

    @property
    def flags(self) -> list[str]:
        """What Typer is told of the flag's name."""
        return [] if self.flag is None else [self.flag]

    def name(self, name: str) -> str:
        """The parameter of the flag, for a field of this name."""
        return name if self.flag is None else self.flag.removeprefix("--").replace("-", "_")

    def check(self, name: str, kind: str, value: Any) -> None:
        """Raise a ValueError if an option may not have this value."""
        wanted, what = KINDS.get(kind, (object, ""))
        if not isinstance(value, wanted):
            raise ValueError(f"{name} must be {what}, not {value!r}")
        if self.allowed is not None:
            lookup(name, value, self.allowed)
        if self.least is None:
            return
        if type(value) is not int:
            raise ValueError(f"{name} must be a whole number of at least {self.least}, not {value!r}")
        if value < self.least:
            wanted = f"be at least {self.least}" if self.least else "not be negative"
            raise ValueError(f"{name} must {wanted}, not {value}")
        if self.most is not None and value > self.most:
            raise ValueError(f"{name} must be at most {self.most}, not {value}")


def option(help: str, default: Any = MISSING, **said: Any) -> Any:
    """A field that declares an option; without a default it must be given."""
    return field(default=default, metadata={"option": Option(help=help, **said)})


def several(help: str, default: tuple[str, ...], *, flag: str, between: str = BETWEEN, **said: Any) -> Any:
    """A field of several texts, with commas between them, each of which may name a file."""
    parse = partial(listed, flag, between=between)
    how: dict[str, Any] = {"flag": flag, "typed": str, "parse": parse, "between": between, "may_be_file": True}
    return option(f"{help}; several with commas.", default, **how, **said)


def again(kind: type[Declared], name: str, default: Any = MISSING, **said: Any) -> Any:
    """The same option as another kind of options has, with another default; what else differs is ``said``."""
    return field(default=default, metadata={"option": replace(options_of(kind)[name], **said)})


def options_of(kind: type[Declared]) -> dict[str, Option]:
    """What is said of each field that a user may choose."""
    return {each.name: each.metadata["option"] for each in fields(kind) if "option" in each.metadata}


@dataclass(frozen=True, kw_only=True)
class Declared:
    """Options of a user."""

    @classmethod
    def check_names(cls, what: str, given: Mapping[str, Any]) -> None:
        """Raise a ValueError if there is no such option."""
        for name in given:
            lookup(what, name, dict.fromkeys(each.name for each in fields(cls)))

    def check(self) -> None:
        """Raise a ValueError if a value is not allowed; None is, where it is the default."""
        for each in fields(self):
            value = getattr(self, each.name)
            if "option" in each.metadata and (value is not None or each.default is not None):
                each.metadata["option"].check(each.name, str(each.type), value)


def parsed(flag: str, parse: Callable[[str], T], text: str) -> T:
    """What the text of a flag means; if it means nothing, the error names the flag."""
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{flag}: {error}") from None


def listed(flag: str, text: str, between: str = BETWEEN) -> tuple[str, ...]:
    """Split a text at commas outside parentheses, or at what another pattern finds.

    >>> listed("--schedules", "wfbp,mine.py:Mine(a=1,b=2)"), listed("--fusion", "own,at:0,100,25MB", BETWEEN_FUSIONS)
    (('wfbp', 'mine.py:Mine(a=1,b=2)'), ('own', 'at:0,100', '25MB'))
    """
    items = tuple(re.split(between, text))
    if not all(items):
        raise ValueError(f"{flag} takes one or several with commas between them, not {text!r}")
    return items
