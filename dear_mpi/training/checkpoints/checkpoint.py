"""Checkpoints: all that a session needs to go on, in one file, which is there as a whole or not at all.

    value.0, value.1, ...      of each tensor of the line, in its shape
    state.0.0, state.0.1, ...  what the optimiser keeps for it
    state.0@2.1, ...           where ranks differ: of rank 2
    line.residual@2.1, ...     what a route has each rank keep, too
    about                      JSON: names, the optimiser, how far training has come, the loss scale, notes

A checkpoint knows no buckets and schedules, so a run can go on with others, and on another number of ranks. The file is
one of NumPy (npz): its parts have checksums, so one that was damaged is found. The checkpoint before the last stays as
FILE.old.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dear_mpi.collectives.program.user_file import telling
from dear_mpi.collectives.transports.agree import agree, by_rank_0
from dear_mpi.kernels.array import Array, to_host
from dear_mpi.training.checkpoints.file import read, stored, write
from dear_mpi.training.checkpoints.lines import VALUE, fill, fill_own, flat_arrays, own_names
from dear_mpi.training.fabric.loss_scale import LossScale
from dear_mpi.training.fabric.state import state_line
from dear_mpi.training.facts import sha256
from dear_mpi.training.line.arena import Arena

if TYPE_CHECKING:
    from dear_mpi.training.session import Session

FORMAT = 1
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
        "ranks": session.world.size,
        "own": own_names(session),
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
            fill_own(session, f"state.{number}", line, arrays, about, share=1 / about.get("ranks", 1))
    for name, line in arena.lines.items():
        if f"line.{name}" in about.get("own", []):
            fill_own(session, f"line.{name}", line, arrays, about, share=1 / transport.size)
    session.fabric.restored(about["updates"])
    for trainer in session.trainers.values():
        trainer.done = about["iterations"]
    if session.loss_scale is not None and about.get("loss_scale") is not None:
        vars(session.loss_scale).update(about["loss_scale"])
    return about["notes"]


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
    ranks, own = about.get("ranks", 1), about.get("own", [])
    if type(ranks) is not int or ranks < 1 or not isinstance(own, list):
        raise ValueError(f"it must say on how many ranks it was written, and what each had for itself: {about!r:.200}")
    named_here = [*(f"state.{number}" for number in range(arena.optimizer.state_arrays)), *own]
    rows = {name: [f"{name}@{rank}" for rank in range(ranks)] for name in own}
    kept = [VALUE, *(each for name in dict.fromkeys(named_here) for each in rows.get(name, [name]))]
    for name, (number, shape) in product(kept, enumerate(arena.layout.shapes)):
        array, like = f"{name}.{number}", arena.state[0] if name.startswith("state") else arena.values
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


def named(what: str) -> str:
    return "checksum of frozen parameters" if what == "frozen" else what
