"""Options of schedules: ``bytescheduler:credit=8`` is that schedule with another credit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from dear_mpi.reporting.units import whole_number

T = TypeVar("T")


@dataclass(frozen=True)
class Option(Generic[T]):
    """What may be chosen about a schedule; its default is the attribute of that name.

    Attributes:
        read: makes a value of a text; ValueError if it is not allowed.
        help: what it is.
    """

    read: Callable[[str], T]
    help: str


def whole(text: str) -> int:
    """A whole number above zero.

    >>> whole("8")
    8
    """
    found = whole_number(text)
    if not found:
        raise ValueError(f"must be a whole number above zero, not {text!r}")
    return found


def yes_or_no(text: str) -> bool:
    """``yes`` or ``no``.

    >>> yes_or_no("no")
    False
    """
    if text not in ("yes", "no"):
        raise ValueError(f"must be yes or no, not {text!r}")
    return text == "yes"
