"""Checkpoints: all that a session needs to go on, in one file, which is there as a whole or not at all.

    value.0, value.1, ...      of each tensor of the line, in its shape
    state.0.0, state.0.1, ...  what the optimiser keeps for it
    about                      JSON: names, the optimiser, how far training has come, the loss scale, notes

A checkpoint knows no buckets, schedules or ranks, so a run can go on with others. The file is one of NumPy (npz): its
parts have checksums, so one that was damaged is found. The checkpoint before the last stays as FILE.old.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dear_mpi.collectives import make_plan
from dear_mpi.collectives.program.user_file import telling
from dear_mpi.collectives.transports.agree import agree, by_rank_0
from dear_mpi.kernels.array import Array, to_host
from dear_mpi.reporting.files import older, replacing, set_aside, tidy
from dear_mpi.training.fabric.loss_scale import LossScale
from dear_mpi.training.fabric.state import state_line, whole_state
from dear_mpi.training.facts import sha256
from dear_mpi.training.line.arena import Arena

if TYPE_CHECKING:
    from dear_mpi.training.session import Session

FORMAT = 1
VALUE = "value"
MOST = 2**53  # iterations and updates, of which optimisers make float64


def snapshot(session: Session, notes: Any = None, *, keep: bool = True) -> dict[str, Array]:
    """Collective: the state of a session after a flush, as arrays of the host, or nothing if not to ``keep``.

    Raises:
        ArgumentError: the notes are something that JSON cannot hold.
        MismatchError: the ranks' parameters differ.
    """
    agree(session.world.transport, "notes", lambda: {"kind": type(json.dumps(notes)).__name__})
    session.check_alike()
    arena, trainer = session.arena, next(iter(session.trainers.values()))
    arena.read()
    about = {
        "format": FORMAT,
        "names": names_of(arena),
        "dtype": arena.values.dtype.name,
        "optimizer": type(arena.optimizer).__name__,
        "iterations": trainer.done,
        "updates": session.fabric.updates,
        "frozen": frozen_sha256(session),
        "loss_scale": None if session.loss_scale is None else asdict(session.loss_scale),
        "notes": notes,
    }
    arrays = {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)}
    for name, flat in flat_arrays(session):
        for tensor in range(len(arena.layout.shapes) if keep else 0):
            array = to_host(arena.view(flat, tensor)).copy()
            arrays[f"{name}.{tensor}"] = array.view(stored(array.dtype))
    return arrays


def frozen_sha256(session: Session) -> str:
    """The SHA-256 of the parameters that are not trained: no checkpoint has them, and they must be the same again."""
    return sha256(parameter.value for parameter in session.parameters if not parameter.trained)


def names_of(arena: Arena) -> list[str]:
    """The name of each tensor of the line in its first use."""
    found: dict[int, str] = {}
    for places, tensors in zip(arena.places, arena.layout.uses, strict=True):
        for place, tensor in zip(places, tensors, strict=True):
            found.setdefault(tensor, place.parameter.name)
    return [found[tensor] for tensor in range(len(found))]


def flat_arrays(session: Session) -> Iterator[tuple[str, Array]]:
    """Collective: what is kept of the arena, each array as long as the line."""
    yield VALUE, session.arena.values
    for number, line in enumerate(whole_state(session.arena, session.buckets, session.world.transport)):
        yield f"state.{number}", line


def restore(session: Session, arrays: dict[str, Array]) -> Any:
    """Collective: go on from a snapshot that rank 0 has, whatever the others have; returns its notes.

    Raises:
        ArgumentError: it belongs to another model or optimiser.
    """
    session.flush()
    transport, arena = session.world.transport, session.arena
    about: dict[str, Any] = {}
    by_rank_0(transport, "checkpoint", lambda: about.update(check(session, arrays)))
    about = json.loads(transport.gather_values(json.dumps(about))[0])  # each rank its own
    fill(session, VALUE, arena.values, arrays)
    for number in range(len(arena.state)):
        with state_line(arena, session.buckets, number) as line:
            fill(session, f"state.{number}", line, arrays)
    session.fabric.restored(about["updates"])
    for trainer in session.trainers.values():
        trainer.done = about["iterations"]
    if session.loss_scale is not None and about.get("loss_scale") is not None:
        vars(session.loss_scale).update(about["loss_scale"])
    return about["notes"]


def fill(session: Session, name: str, line: Array, arrays: dict[str, Array]) -> None:
    """Collective: bring the tensors of a snapshot, which rank 0 has, into an array as long as the line."""
    arena, transport = session.arena, session.world.transport
    for tensor in range(len(arena.layout.shapes) if transport.rank == 0 else 0):
        arena.view(line, tensor)[...] = session.streams.put(arrays[f"{name}.{tensor}"].view(line.dtype))
    with make_plan("broadcast", line, transport, algorithm="binomial") as plan:
        plan()


def check(session: Session, arrays: dict[str, Array]) -> dict[str, Any]:
    """See that a snapshot is one of this session's model.

    Raises:
        ValueError: it is not; the message names what differs.
    """
    if not isinstance(arrays, Mapping):
        raise ValueError(f"it must be a mapping of arrays by name, as state() gives it, not {arrays!r:.99}")
    about: dict[str, Any] = json.loads(bytes(arrays["about"])) if "about" in arrays else {}
    if about.get("format") != FORMAT:
        raise ValueError(f"it must be of format {FORMAT}, not {about.get('format')}")
    counts = [about.get(name) for name in ("iterations", "updates")]
    if not all(type(count) is int and 0 <= count < MOST for count in counts) or "notes" not in about:
        raise ValueError(f"it must have notes and numbers of iterations and updates, not {about!r:.200}")
    arena = session.arena
    here = {"dtype": arena.values.dtype.name, "optimizer": type(arena.optimizer).__name__}
    here["frozen"] = frozen_sha256(session)
    for what, due in here.items():
        if about.get(what) != due:
            raise ValueError(f"it has the {named(what)} {about.get(what)}, and this run has {due}")
    names = about.get("names", [])
    theirs = [(name, tuple(getattr(arrays.get(f"{VALUE}.{number}"), "shape", ()))) for number, name in enumerate(names)]
    mine = list(zip(names_of(arena), arena.layout.shapes, strict=True))
    for number, (there, due_here) in enumerate(zip(theirs, mine, strict=False)):
        if there != due_here:
            raise ValueError(f"it is of another model: its parameter {number} is {there}, and here it is {due_here}")
    if len(theirs) != len(mine):
        raise ValueError(f"it is of another model: it has {len(theirs)} parameters, and this one has {len(mine)}")
    kept = [VALUE, *(f"state.{number}" for number in range(arena.optimizer.state_arrays))]
    for name, (number, shape) in product(kept, enumerate(arena.layout.shapes)):
        array, like = f"{name}.{number}", arena.values if name == VALUE else arena.state[0]
        found = arrays.get(array)
        if found is None or (found.shape, found.dtype) != (shape, stored(like.dtype)):
            raise ValueError(f"it must have the array {array!r} of {like.dtype}{list(shape)} for {arena.optimizer}")
    begun = any(arrays[f"{name}.{number}"].any() for name, number in product(kept[1:], range(len(mine))))
    if begun and about["updates"] == 0:
        raise ValueError("it must have more than 0 updates, because its optimiser state is not zero")
    if about.get("loss_scale") is not None:
        with telling("its loss scale is no good"):
            LossScale(**about["loss_scale"])
    return about


def save(session: Session, path: Path, notes: Any = None) -> None:
    """Collective: write a snapshot to a file of rank 0.

    Raises:
        ArgumentError: it cannot be written.
    """
    arrays = snapshot(session, notes, keep=session.world.rank == 0)
    by_rank_0(session.world.transport, "save", lambda: write(path, arrays))


def resume(session: Session, path: Path) -> Any:
    """Collective: go on from a file of rank 0; returns the notes in it.

    Raises:
        ArgumentError: there is none, it is damaged, or it belongs to another model or optimiser.
    """
    arrays: dict[str, Array] = {}
    by_rank_0(session.world.transport, "resume", lambda: arrays.update(read(path)))
    return restore(session, arrays)


def stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which an array is kept: its own, or unsigned integers where NumPy's files do not know it."""
    return dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")


def named(what: str) -> str:
    return "checksum of frozen parameters" if what == "frozen" else what


def write(path: Path, arrays: dict[str, Array]) -> None:
    """Write a snapshot; the file that was there becomes FILE.old.

    Raises:
        ValueError: it cannot be written.
    """
    with replacing("checkpoint", path) as partial:
        tidy(path)
        with partial.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        set_aside(path)


def read(path: Path) -> dict[str, Array]:
    """A snapshot from a file, or from FILE.old where a run was ended before the new file was in place.

    Raises:
        ValueError: there is no file, or it is damaged.
    """
    found = path if path.exists() else older(path)
    if not found.exists():
        raise ValueError(f"checkpoint {str(path)!r} is not there: --save FILE --every N writes one")
    try:
        with found.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        hint = f": the one before it is {str(older(path))!r}" if found == path and older(path).exists() else ""
        what = "it is no npz file" if "pickled" in str(error) else error
        raise ValueError(f"checkpoint {str(found)!r} is damaged ({what}){hint}") from None
