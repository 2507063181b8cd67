"""Save and restore the state of training, on the same number of ranks or another one.

    value.0, value.1, ...      of each tensor of the line, in its shape
    state.0.0, state.0.1, ...  what the optimiser keeps for it
    state.0@2.1, ...           where ranks differ: of rank 2
    line.residual@2.1, ...     what a route has each rank keep, too
    about                      JSON: names, the optimiser, how far training has come, the loss scale, notes

The state contains no buckets and no schedules, so training can continue with others. On another number of ranks,
per-rank arrays are shared out: compression errors keep their sum, optimiser states their mean. The file is a NumPy npz,
a zip file whose comment is a checksum of all bytes before it, so any damage is found. The previous checkpoint stays as
FILE.old.
"""

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
import numpy as np

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.program.json_file import in_words
from dear_mpi.collectives.transports.agree import agree, said_by_rank_0
from dear_mpi.kernels.array import Array, array_module, to_host
from dear_mpi.models.layer import Parameter
from dear_mpi.reporting.files import older, replacing, set_aside, tidy
from dear_mpi.reporting.terminal import note
from dear_mpi.training.fabric.statistic import LossScale
from dear_mpi.training.facts import sha256
from dear_mpi.training.group import WorkerGroup
from dear_mpi.training.line.arena import Arena
from dear_mpi.training.line.shards import take_state, whole_state

FORMAT = 1
VALUE = "value"
Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]  # optimisers convert it to float64


@dataclass(frozen=True, kw_only=True)
class About:
    """Describe a state."""

    names: list[str]  # tensors of the flat buffer
    dtype: str  # type of the values
    optimizer: str  # class name
    iterations: Count
    updates: Count
    frozen: str  # SHA-256 of the untrained parameters, which are not saved and must be equal on restore
    notes: Any  # the user's notes
    format: int = FORMAT
    ranks: Annotated[int, msgspec.Meta(ge=1)] = 1
    own: tuple[str, ...] = ()  # per-rank arrays
    equal: tuple[str, ...] = ()  # buffers of a route that are equal on all ranks
    loss_scale: LossScale | None = None


@dataclass(frozen=True)
class TrainingState:
    """Hold the named host arrays of a checkpoint and their description; only rank 0 needs the arrays."""

    about: About
    arrays: Mapping[str, Array]

    def packed(self) -> dict[str, Array]:
        """Return all as arrays, in the format of the file."""
        return {"about": np.frombuffer(msgspec.json.encode(self.about), np.uint8), **self.arrays}

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> "TrainingState":
        """Unpack a packed state. Raises ValueError if it is none."""
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
            raise ValueError(f"its description is wrong: {in_words(str(error), about)}") from None

    def check(self, arena: Arena, parameters: Iterable[Parameter]) -> None:
        """Check that the state belongs to the model trained here. Raises ValueError that names the difference."""
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
        """Return the names of an array's rows: one per rank where ranks differ."""
        return [f"{name}@{rank}" for rank in range(self.about.ranks)] if name in self.about.own else [name]


def frozen_sha256(parameters: Iterable[Parameter]) -> str:
    return sha256(parameter.value for parameter in parameters if not parameter.trained)


def stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of an array in the file: unsigned integers if NumPy's format does not know its own type."""
    return dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")


BLOCK = 1 << 20  # bytes
COMMENT = b"crc32 %08x"


def snapshot(group: WorkerGroup, parameters: Sequence[Parameter], notes: Any, *, keep: bool = True) -> TrainingState:
    """Flush and return the state of training, without arrays unless ``keep``. Collective. Raises ArgumentError if JSON
    cannot hold the notes."""
    agree(group.world.transport, "notes", lambda: {"kind": type(json.dumps(notes)).__name__})
    arena = group.arena
    arena.read()
    about = About(
        names=arena.names,
        dtype=arena.values.dtype.name,
        optimizer=type(arena.optimizer).__name__,
        iterations=next(iter(group.trainers.values())).done,
        updates=group.fabric.updates,
        frozen=frozen_sha256(parameters),
        ranks=group.world.size,
        own=tuple(own_names(group)),
        equal=tuple(equal_names(group)),
        loss_scale=group.loss_scale,
        notes=notes,
    )
    arrays = {}
    for name, line in lines_of(group):
        for tensor in range(len(arena.layout.shapes) if keep else 0):
            array = to_host(arena.view(line, tensor)).copy()
            arrays[f"{name}.{tensor}"] = array.view(stored(array.dtype))
    return TrainingState(about, arrays)


def restore(group: WorkerGroup, parameters: Sequence[Parameter], arrays: dict[str, Array], what: str) -> Any:
    """Continue from a packed state on rank 0 and return its notes. Collective.

    Other ranks' ``arrays`` are ignored. Buffers that this route does not keep are lost: rank 0 names them.

    Args:
        what: what the state is, for messages.

    Raises:
        ArgumentError: the state belongs to another model or optimiser.
    """
    group.flush()
    transport, arena = group.world.transport, group.arena

    def checked() -> bytes:
        found = TrainingState.of(arrays)
        found.check(arena, parameters)
        return msgspec.json.encode(found.about)

    about = msgspec.json.decode(said_by_rank_0(transport, what, checked), type=About)  # each rank decodes its own copy
    state = TrainingState(about, arrays)
    fill(group, VALUE, arena.values, state)
    take_state(arena, filled_states(group, state))
    for name, line in arena.lines.items():
        line[...] = 0
        if f"line.{name}" in (*about.own, *about.equal):
            fill_own(group, f"line.{name}", line, state, share=1 / transport.size)
    group.restored(about.iterations, about.updates, about.loss_scale)
    here = {*own_names(group), *equal_names(group)}
    own = [name for name in about.own if name in here or name.startswith("state.")]
    if own and about.ranks != transport.size:
        note(group.world, f"{what} is of {about.ranks} ranks, and {shared_out(own)}")
    lines = [name for name in (*about.own, *about.equal) if name.startswith("line.") and name not in here]
    if lost := ", ".join(f"line {name.removeprefix('line.')!r}" for name in lines):
        said = f"the route {group.route.name!r} does not keep what {what} has of {lost}: it is lost"
        note(group.world, f"the run goes on, but {said}")
    return about.notes


def shared_out(names: Sequence[str]) -> str:
    """Describe how per-rank arrays of another number of ranks are shared out.

    >>> shared_out(["state.0", "line.error"])
    "each of these ranks gets an equal share of the sum of line 'error', and the mean of the optimiser's states"
    """
    lines = [f"the sum of line {name.removeprefix('line.')!r}" for name in names if name.startswith("line.")]
    if len(lines) < len(names):
        lines.append("the mean of the optimiser's states")
    text = ", and ".join(lines)
    return f"each of these ranks gets {'an equal share of ' if text.startswith('the sum') else ''}{text}"


def filled_states(group: WorkerGroup, state: TrainingState) -> Iterator[Array]:
    """Yield the optimiser's arrays for the whole flat buffer, one by one. Collective."""
    arena = group.arena
    for number, own in enumerate(arena.state):
        line = own if arena.shards.ranks == 1 else array_module(own).zeros(arena.values.shape, own.dtype)
        fill_own(group, f"state.{number}", line, state, share=1 / state.about.ranks)
        yield line


def own_names(group: WorkerGroup) -> list[str]:
    """Return the names of the per-rank arrays."""
    states = [f"state.{number}" for number in range(len(group.arena.state))]
    return [*(states if group.proof.state == "own" else []), *(f"line.{name}" for name in group.route.errors)]


def equal_names(group: WorkerGroup) -> list[str]:
    """Return the names of the buffers that are equal on all ranks and are not values."""
    return [f"line.{name}" for name, kind in group.route.lines.items() if kind == "equal"]


def lines_of(group: WorkerGroup) -> Iterator[tuple[str, Array]]:
    """Yield the arena's saved arrays, each as long as the flat buffer. Collective."""
    arena, transport, own = group.arena, group.world.transport, own_names(group)
    yield VALUE, arena.values
    kinds = group.route.lines
    named = {f"state.{number}": line for number, line in enumerate(whole_state(arena, transport))}
    named |= {f"line.{name}": line for name, line in arena.lines.items() if kinds[name] in ("own", "equal")}
    for name, line in named.items():
        if name not in own:
            yield name, line
            continue
        for rank in range(transport.size):
            row = line.copy()
            with make_plan("broadcast", row, transport, algorithm="binomial", root=rank) as plan:
                plan()
            yield f"{name}@{rank}", row


def fill(group: WorkerGroup, name: str, line: Array, state: TrainingState) -> None:
    """Copy a state's tensors from rank 0 into an array as long as the flat buffer. Collective."""
    arena, transport = group.arena, group.world.transport
    for tensor in range(len(arena.layout.shapes) if transport.rank == 0 else 0):
        arena.view(line, tensor)[...] = group.streams.put(state.arrays[f"{name}.{tensor}"].view(line.dtype))
    with make_plan("broadcast", line, transport, algorithm="binomial") as plan:
        plan()


def fill_own(group: WorkerGroup, name: str, line: Array, state: TrainingState, *, share: float) -> None:
    """Restore an array that each rank may have for itself. Collective.

    On as many ranks as before, each gets its own. Otherwise, or if the array must now be equal on all ranks, each gets
    ``share`` of the sum over ranks.
    """
    if name not in state.about.own:
        fill(group, name, line, state)
        return
    alike = state.about.ranks == group.world.size and name in own_names(group)
    row = line.copy()
    line[...] = 0
    for rank, each in enumerate(state.rows(name)):
        fill(group, each, row, state)
        if not alike:
            line += (share * row).astype(line.dtype)
        elif rank == group.world.rank:
            line[...] = row


def write(path: Path, arrays: dict[str, Array]) -> None:
    """Write arrays; an existing file becomes FILE.old. Raises ValueError if it cannot be written."""
    with replacing("checkpoint", path) as partial:
        tidy(path)
        with partial.open("w+b") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.seek(-2, os.SEEK_END)  # position of the comment's length
            file.write(len(COMMENT % 0).to_bytes(2, "little"))
            file.write(checksum(file, file.tell()))
            file.flush()
            os.fsync(file.fileno())
        set_aside(path)


def checksum(file: IO[bytes], length: int) -> bytes:
    """Return the comment for a zip file with ``length`` bytes before it; leaves the file's position after them."""
    file.seek(0)
    found = 0
    for start in range(0, length, BLOCK):
        found = zlib.crc32(file.read(min(BLOCK, length - start)), found)
    return COMMENT % found


def read(path: Path) -> dict[str, Array]:
    """Read arrays from a file, or from FILE.old if a run ended between the two renames. Raises ValueError."""
    found = path if path.exists() else older(path)
    if not found.exists():
        raise ValueError(f"checkpoint {str(path)!r} is not there: --save FILE --every N writes one")
    try:
        with found.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            length = found.stat().st_size - len(arrays.zip.comment)
            if arrays.zip.comment not in (b"", checksum(file, length)):  # older versions wrote no checksum
                raise ValueError("its checksum is another")
            return {name: arrays[name] for name in arrays.files}
    except PermissionError as error:
        raise ValueError(f"checkpoint {str(found)!r} cannot be read: {error.strerror}") from None
    except Exception as error:  # zipfile and NumPy raise many types on changed bytes
        hint = f": the one before it is {str(older(path))!r}" if found == path and older(path).exists() else ""
        what = "it is no npz file" if "pickled" in str(error) else str(error) or type(error).__name__
        raise ValueError(f"checkpoint {str(found)!r} is damaged ({what}){hint}") from None
