"""A measured profile: which tensors each use of a layer trains, and how long it takes. As JSON:

    {"model": "mlp", "device": "cpu", "ranks": 2, "rank": 1, "batch": 32, "accumulate": 1, "dtype": "fp32",
     "wire": "fp32", "schedule": "sequential", "iterations": 297, "update_s_per_element": 1.5e-09, "rest_s": 0.0003,
     "uses": [{"name": "dense0", "tensors": [{"key": 0, "shape": [64, 128]}, {"key": 1, "shape": [128]}],
               "forward_s": 2.1e-05, "backward_s": 4.4e-05}, ...]}                              in forward order

Tensors of one key are one and the same. ``profiler.py`` makes a profile; ``dear-mpi simulate --profile`` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from dear_mpi.collectives.program.json_file import read_json
from dear_mpi.collectives.program.user_file import is_in_file
from dear_mpi.kernels.dtypes import DTYPES
from dear_mpi.kernels.lookup import lookup
from dear_mpi.reporting.files import replacing
from dear_mpi.reporting.units import check_seconds, plural
from dear_mpi.training.schedules import SCHEDULES

__all__ = ["Profile", "Tensor", "Use", "read_profile"]

MOST_PARTS = 1000  # of a batch: each is simulated

T = TypeVar("T")
Check = Callable[[str, Any], Any]  # of the name of a value, and the value; returns what it means


@dataclass(frozen=True)
class Tensor:
    """A trained tensor; tied ones have one key."""

    key: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Use:
    """A use of a layer, and the seconds that it takes in an iteration."""

    name: str
    tensors: tuple[Tensor, ...]
    forward_s: float
    backward_s: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a run measured. All seconds are of one rank, and means over iterations, so that they add up.

    Attributes:
        rank: whose seconds these are: the rank that was busy longest, for which the others wait.
        batch: examples of an iteration, of the whole job; None where there are no data.
        accumulate: in how many parts the batch passed; seconds are the sum over parts.
        dtype, wire: the types of the parameters, and of gradients on their way.
        schedule: that of the run: under another one than ``sequential`` communication went on beside compute.
        iterations: how many were measured, without the first ones; half of them count (``profiler.py``).
        update_s_per_element: of the optimiser.
        rest_s: of an iteration, for what is neither a layer, nor an update, nor waiting: the loss, packing, Python.
        uses: in the order of the forward pass.
    """

    model: str
    device: str
    ranks: int
    rank: int
    batch: int | None
    accumulate: int
    dtype: str
    wire: str
    schedule: str
    iterations: int
    update_s_per_element: float
    rest_s: float
    uses: tuple[Use, ...]

    def __str__(self) -> str:
        batch = "" if self.batch is None else f", batch {self.batch}"
        return f"profile of {self.model} on {self.device}, {plural(self.ranks, 'rank')}{batch}, {self.schedule}"

    def write(self, path: Path) -> None:
        """Write it to a file.

        Raises:
            ValueError: it cannot be written.
        """
        with replacing("--profile", path) as file:
            file.write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")


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
    """A profile of one of its ranks, whose tensors of one key have one shape; there must be some."""
    profile: Profile = one(Profile, PROFILE)(name, value)
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
}
