"""A profile from a file: each value is checked, and an error says which one is wrong, such as uses[3].forward_s."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dear_mpi.collectives.program.json_file import read_json
from dear_mpi.collectives.program.user_file import is_in_file
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.units import check_seconds
from dear_mpi.training.profiles.profile import Profile, Tensor, Use
from dear_mpi.training.schedules import SCHEDULES

MOST_PARTS = 1000  # of a batch: each is simulated

T = TypeVar("T")
Check = Callable[[str, Any], Any]  # of the name of a value, and the value; returns what it means


def read_profile(path: Path) -> Profile:
    """The profile in a file.

    Raises:
        ValueError: there is none, or something in it is missing or has no meaning.
    """
    content = read_json("profile", path)
    try:
        return read("", content)
    except ValueError as error:
        raise ValueError(f"profile {str(path)!r}: {error}") from None


def read(name: str, value: Any) -> Profile:
    """A profile: its rank is below ``ranks``, tensors of one key have one shape, and there are some tensors."""
    known = {"forward_flops": None, **value} if isinstance(value, dict) else value  # older profiles do not have them
    profile: Profile = one(Profile, PROFILE)(name, known)
    if profile.rank >= profile.ranks:
        raise ValueError(f"rank must be below ranks, {profile.ranks}, not {profile.rank}")
    shapes: dict[int, tuple[int, ...]] = {}
    for tensor in (tensor for use in profile.uses for tensor in use.tensors):
        if shapes.setdefault(tensor.key, tensor.shape) != tensor.shape:
            both = f"{shapes[tensor.key]} and {tensor.shape}"
            raise ValueError(f"tensors of key {tensor.key} must have one shape, not {both}")
    if not any(map(all, shapes.values())):  # none of its lengths is 0
        raise ValueError("uses must be a list in which some use has tensors")
    return profile


def text(name: str, value: Any) -> str:
    """A text that can be shown."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"{name} must be a printable text, not {value!r:.200}")
    return value


def model(name: str, value: Any) -> str:
    """The name of a model."""
    if not text(name, value):
        raise ValueError(f"{name} must not be empty")
    return text(name, value)


def schedule(name: str, value: Any) -> str:
    """A schedule of ours, perhaps with options, or of a user's file."""
    if not is_in_file(text(name, value)):
        lookup(name, value.partition(":")[0], SCHEDULES)
    return text(name, value)


def device(name: str, value: Any) -> str:
    """Where the model was."""
    lookup(name, text(name, value), dict.fromkeys(("cpu", "cuda")))
    return text(name, value)


def dtype(name: str, value: Any) -> str:
    """The name of a type."""
    lookup(name, text(name, value), DTYPES)
    return text(name, value)


def whole(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """A whole number that is large enough, and not too large."""
    if type(value) is not int or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    if most is not None and value > most:
        raise ValueError(f"{name} must be at most {most}, not {value}")
    return value


def many(check: Callable[[str, Any], T]) -> Callable[[str, Any], tuple[T, ...]]:
    """Reads a list, each item of which is checked."""

    def read_many(name: str, value: Any) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise ValueError(f"{name} must be a list, not {value!r}")
        return tuple(check(f"{name}[{number}]", each) for number, each in enumerate(value))

    return read_many


def one(kind: Callable[..., T], checks: Mapping[str, Check]) -> Callable[[str, Any], T]:
    """Reads an object of this kind, which must have all that is to be checked, and may have more."""

    def read_one(name: str, value: Any) -> T:
        missing = [each for each in checks if not isinstance(value, dict) or each not in value]
        if missing:
            raise ValueError(f"{name or 'it'} must have {', '.join(missing)}")
        return kind(**{each: check(f"{name}.{each}".lstrip("."), value[each]) for each, check in checks.items()})

    return read_one


def flops(name: str, value: Any) -> float | None:
    """A number of operations, or None where nothing has counted them."""
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a number above zero, or null, not {value!r}")
    return float(value)


def index(name: str, value: Any) -> int:
    """A whole number from 0 on."""
    return whole(name, value, least=0)


TENSOR: dict[str, Check] = {"key": index, "shape": many(index)}
USE: dict[str, Check] = {
    "name": text,
    "tensors": many(one(Tensor, TENSOR)),
    "forward_s": check_seconds,
    "backward_s": check_seconds,
}
PROFILE: dict[str, Check] = {
    "model": model,
    "device": device,
    "ranks": whole,
    "rank": index,
    "batch": lambda name, value: None if value is None else whole(name, value),
    "accumulate": lambda name, value: whole(name, value, most=MOST_PARTS),
    "dtype": dtype,
    "wire": dtype,
    "schedule": schedule,
    "iterations": whole,
    "update_s_per_element": check_seconds,
    "rest_s": check_seconds,
    "uses": many(one(Use, USE)),
    "forward_flops": flops,
}
