"""What a session can do with its state: hand it out and take it back, in memory or in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dear_mpi.collectives.program.errors import MismatchError
from dear_mpi.collectives.transports.agree import agree
from dear_mpi.kernels.array import Array
from dear_mpi.models.layer import Layer, Parameter
from dear_mpi.training.checkpoints.checkpoint import restore, resume, save, snapshot
from dear_mpi.training.facts import checksum, sha256

if TYPE_CHECKING:
    from dear_mpi.training.session import Session


class Checkpointed:
    """The base of ``Session``. All methods are collective unless they say that they are not."""

    layers: tuple[Layer, ...]

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters of all layers, in order; not collective."""
        return [parameter for layer in self.layers for parameter in layer.parameters]

    def parameters_sha256(self) -> str:
        """The SHA-256 of the bytes of this rank's parameters; not collective."""
        return sha256(parameter.value for parameter in self.parameters)

    def state(self, notes: Any = None) -> dict[str, Array]:
        """All that ``load`` needs, as arrays of the host, with anything that JSON can hold; ends with a flush."""
        return snapshot(cast("Session", self), notes)

    def load(self, state: dict[str, Array]) -> Any:
        """Go on from a state that rank 0 has; the notes in it. Raises ArgumentError if it is another model's."""
        return restore(cast("Session", self), state)

    def save(self, path: str | Path, notes: Any = None) -> None:
        """Write the state to a file of rank 0, which replaces an older one; ArgumentError if it cannot be written."""
        save(cast("Session", self), Path(path), notes)

    def resume(self, path: str | Path) -> Any:
        """Go on from such a file; the notes in it. Raises ArgumentError if it is not there, damaged, or another's."""
        return resume(cast("Session", self), Path(path))

    def check_alike(self) -> None:
        """Flush, and see that all ranks have the same parameters; MismatchError with the name of one that differs."""
        session = cast("Session", self)
        session.flush()
        done, period = session.fabric.iteration % session.route.period, session.route.period
        if done:
            said = (
                f"{done} of the {period} iterations of a round are done, and until its end ranks have different values"
            )
            raise MismatchError(f"route {session.route.name!r}: {said}")
        what = "the ranks no longer train one model, as where forward changes a parameter in place"
        named = [(f"parameter {number} ({each.name})", each) for number, each in enumerate(self.parameters)]
        agree(session.world.transport, what, lambda: {name: f"checksum {checksum(each.value)}" for name, each in named})
