"""Analyse a running job (``train --blame``): rank 0 replays the last iterations, and all ranks get the result."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dear_mpi.collectives.transports.agree import agree, said_by_rank_0
from dear_mpi.contrib.blame.blamed import FEWEST, BlameError, blame
from dear_mpi.contrib.blame.causes import Usual
from dear_mpi.contrib.blame.output import as_data, show_blame
from dear_mpi.models.layer import layer_name
from dear_mpi.models.synthetic import Synthetic
from dear_mpi.ranks.clock import CommonClock
from dear_mpi.training.events.recorder import record
from dear_mpi.training.events.spans import ClocksError, Recording, merged
from dear_mpi.training.runs.train import Observer
from dear_mpi.training.session import Session

KEPT = 20  # iterations
DECLARED = "what the model declares"


def declared_of(session: Session, parts: int) -> Usual | None:
    """Seconds of synthetic layers, for batches split into ``parts``; None for other layers."""
    found = Usual()
    for number, layer in enumerate(session.layers):
        if not isinstance(layer, Synthetic):
            return None
        name = layer_name(layer, number)
        found |= {("forward", name): parts * layer.forward_s, ("backward", name): parts * layer.backward_s}
    return found


@dataclass(eq=False)
class Blamer(Observer):
    """Record and analyse a job; construct it, collectively, before the iterations.

    Args:
        iterations: of the job; the first ``fill`` do not count. ArgumentError if they are too few.
        clock: of a recorder, if there is one.
    """

    session: Session
    iterations: int
    fill: int
    clock: CommonClock | None = None
    kept: int = field(init=False)
    show = staticmethod(show_blame)

    def __post_init__(self) -> None:
        transport = self.session.world.transport
        agree(transport, "blame", self.check)
        self.kept = min(KEPT, self.iterations - self.fill)
        self.session.engine.log.keep(self.kept)
        self.clock = self.clock or CommonClock(transport)

    def check(self) -> dict[str, Any]:
        if (fewest := FEWEST + self.fill) > self.iterations:
            what = f"at least {fewest} iterations ({self.fill} fill the pipeline)"
            raise ValueError(f"--blame needs {what}, not {self.iterations}")
        return {}

    def found(self, name: str, recordings: Sequence[Recording] = (), *, parts: int = 1) -> dict[str, Any]:
        """Collective: return the result, see ``as_data``, or only ``refused``.

        ``recordings`` come from a recorder after a flush; without them this call begins with a flush.
        """
        recordings = recordings or record(self.session, name, self.clock, kept=self.kept)

        transport = self.session.world.transport

        def say() -> dict[str, Any]:
            try:
                found = blame(merged(recordings), declared_of(self.session, parts), DECLARED)
                return as_data(found, transport.name)
            except (BlameError, ClocksError) as error:
                return {"refused": str(error)}
            except Exception as error:  # a bug here must not cost a run's report
                return {"refused": f"it failed with {type(error).__name__}: {error}; this is a bug in dear-mpi"}

        return said_by_rank_0(transport, "blame", say, asleep=True)
