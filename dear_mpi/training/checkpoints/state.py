"""What survives a group of workers: the state of training, which another group, of as many ranks or others, takes on.

    value.0, value.1, ...      of each tensor of the line, in its shape
    state.0.0, state.0.1, ...  what the optimiser keeps for it
    state.0@2.1, ...           where ranks differ: of rank 2
    line.residual@2.1, ...     what a route has each rank keep, too
    about                      JSON: names, the optimiser, how far training has come, the loss scale, notes

It knows no buckets and no schedules, so training can go on with others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import msgspec
import numpy as np

from dear_mpi.collectives.program.json_file import in_words
from dear_mpi.kernels.array import Array
from dear_mpi.models.layer import Parameter
from dear_mpi.training.fabric.statistic import LossScale
from dear_mpi.training.facts import sha256
from dear_mpi.training.line.arena import Arena

FORMAT = 1
VALUE = "value"
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]  # optimisers make float64 of it


@dataclass(frozen=True, kw_only=True)
class About:
    """What a state says of itself."""

    names: list[str]  # of the tensors of the line
    dtype: str  # of values
    optimizer: str  # the name of its class
    iterations: Count
    updates: Count
    frozen: str  # the SHA-256 of the parameters that are not trained: they are not in it, and must be the same again
    notes: Any  # what the user wanted to be kept
    format: int = FORMAT
    ranks: Annotated[int, msgspec.Meta(ge=1)] = 1
    own: tuple[str, ...] = ()  # the arrays that each rank has for itself
    equal: tuple[str, ...] = ()  # lines of a route that all ranks have alike
    loss_scale: LossScale | None = None


@dataclass(frozen=True)
class TrainingState:
    """Arrays of the host by name, as above, and what is said of them; rank 0 alone may have the arrays."""

    about: About
    arrays: Mapping[str, Array]

    def packed(self) -> dict[str, Array]:
        """Arrays alone, as a file has them."""
        return {"about": np.frombuffer(msgspec.json.encode(self.about), np.uint8), **self.arrays}

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> "TrainingState":
        """The state that was packed; ValueError if it is none."""
        if not isinstance(arrays, Mapping):
            raise ValueError(f"it must be a mapping of arrays by name, as state() gives it, not {arrays!r:.99}")
        about = None
        try:
            about = msgspec.json.decode(bytes(arrays["about"])) if "about" in arrays else None
            found = about.get("format") if isinstance(about, dict) else None
            if found != FORMAT:
                raise ValueError(f"it must be of format {FORMAT}, as dear-mpi train --save writes it, not {found}")
            return cls(msgspec.convert(about, About), arrays)
        except msgspec.MsgspecError as error:
            raise ValueError(f"what it says of itself is no good: {in_words(str(error), about)}") from None

    def check(self, arena: Arena, parameters: Iterable[Parameter]) -> None:
        """See that it is of the model that is trained here; else a ValueError names what differs."""
        about, optimizer = self.about, arena.optimizer
        for what, found, due in (
            ("dtype", about.dtype, arena.values.dtype.name),
            ("optimizer", about.optimizer, type(optimizer).__name__),
            ("checksum of frozen parameters", about.frozen, frozen_sha256(parameters)),
        ):
            if found != due:
                raise ValueError(f"it has the {what} {found}, and this run has {due}")
        shapes = [getattr(self.arrays.get(f"{VALUE}.{number}"), "shape", ()) for number in range(len(about.names))]
        theirs = list(zip(about.names, shapes, strict=True))
        mine = list(zip(arena.names, arena.layout.shapes, strict=True))
        for number, (there, here) in enumerate(zip(theirs, mine, strict=False)):
            if there != here:
                raise ValueError(f"it is of another model: its parameter {number} is {there}, and here it is {here}")
        if len(theirs) != len(mine):
            raise ValueError(f"it is of another model: it has {len(theirs)} parameters, and this one has {len(mine)}")
        states = [f"state.{number}" for number in range(optimizer.state_arrays)]
        kept = [row for name in dict.fromkeys([*states, *about.own, *about.equal]) for row in self.rows(name)]
        for name, (number, shape) in product([VALUE, *kept], enumerate(arena.layout.shapes)):
            array, like = f"{name}.{number}", arena.state[0] if name.startswith("state") else arena.values
            given = self.arrays.get(array)
            if given is None or (given.shape, given.dtype) != (shape, stored(like.dtype)):
                raise ValueError(f"it must have the array {array!r} of {like.dtype}{list(shape)} for {optimizer}")
        begun = any(self.arrays[f"{name}.{number}"].any() for name, number in product(kept, range(len(mine))))
        if begun and about.updates == 0:
            raise ValueError("it must have more than 0 updates, because its optimiser state is not zero")

    def rows(self, name: str) -> list[str]:
        """An array, or that of each rank where they differ."""
        return [f"{name}@{rank}" for rank in range(self.about.ranks)] if name in self.about.own else [name]


def frozen_sha256(parameters: Iterable[Parameter]) -> str:
    """The SHA-256 of those that are not trained."""
    return sha256(parameter.value for parameter in parameters if not parameter.trained)


def stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which an array is kept: its own, or unsigned integers where NumPy's files do not know it."""
    return dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")
