"""The lines of a session as a checkpoint has them: those that are alike on all ranks once, the others for each rank.

What each rank has for itself is shared out on another number of ranks: of what codes have lost the sum stays the same,
of the optimiser's state the mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dear_mpi.collectives import make_plan
from dear_mpi.kernels.array import Array
from dear_mpi.training.fabric.state import whole_state

if TYPE_CHECKING:
    from dear_mpi.training.session import Session

VALUE = "value"


def flat_arrays(session: Session) -> Iterator[tuple[str, Array]]:
    """Collective: what is kept of the arena, each array as long as the line."""
    arena, transport = session.arena, session.world.transport
    named = {f"state.{number}": line for number, line in enumerate(whole_state(arena, session.buckets, transport))}
    own = own_names(session)
    yield VALUE, arena.values
    for name, line in (named | {f"line.{name}": line for name, line in arena.lines.items()}).items():
        if name not in own:
            yield name, line
            continue
        for rank in range(transport.size):
            row = line.copy()
            with make_plan("broadcast", row, transport, algorithm="binomial", root=rank) as plan:
                plan()
            yield f"{name}@{rank}", row


def own_names(session: Session) -> list[str]:
    """The arrays that each rank has for itself."""
    states = [f"state.{number}" for number in range(len(session.arena.state))]
    return [*(states if session.proof.state == "own" else []), *(f"line.{name}" for name in session.arena.lines)]


def fill(session: Session, name: str, line: Array, arrays: dict[str, Array]) -> None:
    """Collective: bring the tensors of a snapshot, which rank 0 has, into an array as long as the line."""
    arena, transport = session.arena, session.world.transport
    for tensor in range(len(arena.layout.shapes) if transport.rank == 0 else 0):
        arena.view(line, tensor)[...] = session.streams.put(arrays[f"{name}.{tensor}"].view(line.dtype))
    with make_plan("broadcast", line, transport, algorithm="binomial") as plan:
        plan()


def fill_own(
    session: Session, name: str, line: Array, arrays: dict[str, Array], about: dict[str, Any], *, share: float
) -> None:
    """Collective: the same for an array that each rank may have had for itself: its own on as many ranks as before, or
    else a share of all ranks' sum, as where ranks are to have the same now."""
    if name not in about.get("own", []):
        fill(session, name, line, arrays)
        return
    alike = about["ranks"] == session.world.size and name in own_names(session)
    row = line.copy()
    line[...] = 0
    for rank in range(about["ranks"]):
        fill(session, f"{name}@{rank}", row, arrays)
        if not alike:
            line += (share * row).astype(line.dtype)
        elif rank == session.world.rank:
            line[...] = row
