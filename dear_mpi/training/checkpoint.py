"""Save and restore the state of training, on the same number of ranks or another one.

    value.0, value.1, ...      of each tensor of the flat buffer, in its shape
    state.0.0, state.0.1, ...  the optimiser's arrays for it
    state.0@2.1, ...           of rank 2, if ranks differ
    line.residual@2.1, ...     the buffers of a route that each rank keeps
    about                      JSON: names, the optimiser, how far training has come, the loss scale, notes

On another number of ranks, compression errors keep their sum, optimiser states their mean. The file is a NumPy npz with
checksums; the previous one stays as FILE.old.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.program.json_file import in_words
from dear_mpi.collectives.transports.agree import agree, said_by_rank_0
from dear_mpi.collectives.transports.transport import Transport
from dear_mpi.kernels.array import Array, array_module, to_host
from dear_mpi.models.layer import Parameter
from dear_mpi.reporting.files import older, replacing, set_aside, tidy
from dear_mpi.training.buckets.arena import Arena
from dear_mpi.training.buckets.layout import sha256
from dear_mpi.training.fabric.statistic import LossScale
from dear_mpi.training.group import WorkerGroup

FORMAT = 1
VALUE = "value"
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]  # optimisers convert it to float64


@dataclass(frozen=True, kw_only=True)
class About:
    names: list[str]  # tensors of the flat buffer
    dtype: str  # of the values
    optimizer: str  # class name
    iterations: Count
    updates: Count
    frozen: str  # SHA-256 of the untrained parameters, which are not saved
    notes: Any
    format: int = FORMAT
    ranks: Annotated[int, msgspec.Meta(ge=1)] = 1
    own: tuple[str, ...] = ()  # per-rank arrays
    equal: tuple[str, ...] = ()  # buffers of a route
    loss_scale: LossScale | None = None

    def rows(self, name: str) -> list[str]:
        """Name an array's rows: one per rank if ranks differ."""
        return [f"{name}@{rank}" for rank in range(self.ranks)] if name in self.own else [name]


def about_of(arrays: Mapping[str, Array]) -> About:
    """Unpack the description of a state. Raises ValueError."""
    if not isinstance(arrays, Mapping):
        raise ValueError(f"it must be a mapping of arrays by name, as state() gives it, not {arrays!r:.99}")
    about = None
    try:
        about = msgspec.json.decode(bytes(arrays["about"])) if "about" in arrays else None
        found = about.get("format") if isinstance(about, dict) else None
        if found != FORMAT:
            raise ValueError(f"it must be of format {FORMAT}, as dear-mpi train --save writes it, not {found}")
        return msgspec.convert(about, About)
    except msgspec.MsgspecError as error:
        raise ValueError(f"its description is wrong: {in_words(str(error), about)}") from None


def check(about: About, arrays: Mapping[str, Array], arena: Arena, parameters: Iterable[Parameter]) -> None:
    """Check that a state belongs to this model. Raises ValueError."""
    optimizer, shapes = arena.optimizer, arena.layout.shapes
    for what, found, due in (
        ("dtype", about.dtype, arena.values.dtype.name),
        ("optimizer", about.optimizer, type(optimizer).__name__),
        ("checksum of frozen parameters", about.frozen, frozen_sha256(parameters)),
    ):
        if found != due:
            raise ValueError(f"it has the {what} {found}, and this run has {due}")
    theirs = [(name, getattr(arrays.get(f"{VALUE}.{at}"), "shape", ())) for at, name in enumerate(about.names)]
    for number, (there, here) in enumerate(zip(theirs, zip(arena.names, shapes, strict=True), strict=False)):
        if there != here:
            raise ValueError(f"it is of another model: its parameter {number} is {there}, and here it is {here}")
    if len(theirs) != len(shapes):
        raise ValueError(f"it is of another model: it has {len(theirs)} parameters, and this one has {len(shapes)}")
    states = [f"state.{number}" for number in range(optimizer.state_arrays)]
    kept = [row for name in dict.fromkeys([*states, *about.own, *about.equal]) for row in about.rows(name)]
    begun = False
    for name, (number, shape) in product([VALUE, *kept], enumerate(shapes)):
        dtype = (arena.state[0] if name.startswith("state") else arena.values).dtype
        array = arrays.get(f"{name}.{number}")
        if array is None or (array.shape, array.dtype) != (shape, stored(dtype)):
            raise ValueError(f"it must have the array '{name}.{number}' of {dtype}{list(shape)} for {optimizer}")
        begun |= name != VALUE and bool(array.any())
    if begun and about.updates == 0:
        raise ValueError("it must have more than 0 updates, because its optimiser state is not zero")


def frozen_sha256(parameters: Iterable[Parameter]) -> str:
    return sha256(parameter.value for parameter in parameters if not parameter.trained)


def stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of an array in the file, which knows no bf16."""
    return dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")


def saved_by(group: WorkerGroup) -> dict[str, bool]:
    """Name the saved arrays except values, and tell whether each rank has its own."""
    own = group.proof.state == "own"
    return {f"state.{number}": own for number in range(len(group.arena.state))} | {
        f"line.{name}": kind == "own" for name, kind in group.route.buffers.items() if kind in ("own", "equal")
    }


def broadcast(array: Array, transport: Transport, root: int = 0) -> None:
    with make_plan("broadcast", array, transport, algorithm="binomial", root=root) as plan:
        plan()


def snapshot(group: WorkerGroup, parameters: Sequence[Parameter], notes: Any, *, keep: bool = True) -> dict[str, Array]:
    """Return the packed state after a flush, only its description unless ``keep``. Collective.

    Raises ArgumentError if JSON cannot hold the notes.
    """
    arena, saved, transport = group.arena, saved_by(group), group.world.transport
    agree(transport, "notes", lambda: {"kind": type(json.dumps(notes)).__name__})
    arena.read()
    about = About(
        names=arena.names,
        dtype=arena.values.dtype.name,
        optimizer=type(arena.optimizer).__name__,
        iterations=group.done,
        updates=group.fabric.updates,
        frozen=frozen_sha256(parameters),
        ranks=transport.size,
        own=tuple(name for name, own in saved.items() if own),
        equal=tuple(name for name, own in saved.items() if name.startswith("line.") and not own),
        loss_scale=group.loss_scale,
        notes=notes,
    )
    arrays = {"about": np.frombuffer(msgspec.json.encode(about), np.uint8)}
    flat = {VALUE: arena.values} | {f"line.{name}": buffer for name, buffer in arena.buffers.items()}
    flat |= {f"state.{number}": buffer for number, buffer in enumerate(arena.whole_state(transport))}
    for name in (VALUE, *saved):
        for rank, row in enumerate(about.rows(name)):
            buffer = flat[name]
            if name in about.own:
                buffer = buffer.copy()
                broadcast(buffer, transport, rank)
            for tensor in range(len(arena.layout.shapes) if keep else 0):
                array = to_host(arena.view(buffer, tensor)).copy()
                arrays[f"{row}.{tensor}"] = array.view(stored(array.dtype))
    return arrays


def restore(group: WorkerGroup, parameters: Sequence[Parameter], arrays: dict[str, Array], what: str) -> Any:
    """Continue from a packed state on rank 0, named ``what``, and return its notes. Collective.

    Buffers that this route does not keep are lost: rank 0 names them. Raises ArgumentError for another model's state.
    """
    group.flush()
    transport, arena, saved = group.world.transport, group.arena, saved_by(group)

    def checked() -> bytes:
        about = about_of(arrays)
        check(about, arrays, arena, parameters)
        return msgspec.json.encode(about)

    about = msgspec.json.decode(said_by_rank_0(transport, what, checked), type=About)  # each rank decodes its own copy

    def fill(name: str, buffer: Array, share: float = 1.0) -> None:
        """Fill an array as long as the flat buffer, from rank 0. Collective.

        If ranks were others and had their own, each gets ``share`` of the sum.
        """
        if name not in about.own:
            for tensor in range(len(arena.layout.shapes) if transport.rank == 0 else 0):
                arena.view(buffer, tensor)[...] = group.streams.put(arrays[f"{name}.{tensor}"].view(buffer.dtype))
            return broadcast(buffer, transport)
        row = buffer.copy()
        buffer[...] = 0
        for rank, each in enumerate(about.rows(name)):
            fill(each, row)
            if about.ranks != transport.size or not saved.get(name):
                buffer += (share * row).astype(buffer.dtype)
            elif rank == transport.rank:
                buffer[...] = row
        return None

    def states() -> Iterator[Array]:
        for number, own in enumerate(arena.state):
            buffer = array_module(own).zeros(arena.values.shape, own.dtype) if arena.sharded else own
            fill(f"state.{number}", buffer, 1 / about.ranks)
            yield buffer

    fill(VALUE, arena.values)
    arena.take_state(states())
    kept = [name for name in (*about.own, *about.equal) if name.startswith("line.")]
    for name, buffer in arena.buffers.items():
        buffer[...] = 0
        if f"line.{name}" in kept:
            fill(f"line.{name}", buffer, 1 / transport.size)
    group.restored(about.iterations, about.updates, about.loss_scale)
    from dear_mpi.reporting.terminal import note  # the rest prints nothing

    own = [name for name in about.own if name in saved]
    if own and about.ranks != transport.size:
        sums = [f"an equal share of the sum of {name.replace('.', ' ')}" for name in own if name in kept]
        shares = [*sums, *["the mean of the optimiser's states"] * (len(sums) < len(own))]
        note(group.world, f"{what} is of {about.ranks} ranks: each of these ranks gets {' and '.join(shares)}")
    if lost := ", ".join(name.replace(".", " ") for name in kept if name not in saved):
        said = f"the route {group.route.name!r} does not keep what {what} has of {lost}: it is lost"
        note(group.world, f"the run goes on, but {said}")
    return about.notes


def write(path: Path, arrays: dict[str, Array]) -> None:
    """Write arrays; an existing file becomes FILE.old. Raises ValueError."""
    with replacing("checkpoint", path) as partial:
        tidy(path)
        with partial.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        set_aside(path)


def read(path: Path) -> dict[str, Array]:
    """Read arrays from a file, or from FILE.old if a run ended between two renames. Raises ValueError."""
    found = path if path.exists() else older(path)
    if not found.exists():
        raise ValueError(f"checkpoint {str(path)!r} is not there: --save FILE --every N writes one")
    try:
        with found.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except PermissionError as error:
        raise ValueError(f"checkpoint {str(found)!r} cannot be read: {error.strerror}") from None
    except Exception as error:  # zipfile and NumPy raise many types on changed bytes
        hint = f": the one before it is {str(older(path))!r}" if found == path and older(path).exists() else ""
        what = "it is no npz file" if "pickled" in str(error) else str(error) or type(error).__name__
        raise ValueError(f"checkpoint {str(found)!r} is damaged ({what}){hint}") from None
