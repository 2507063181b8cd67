"""Wrong results of one contestant on one rank: in how many calls, and where in the first of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dear_mpi.collectives.plans.plan import Plan
from dear_mpi.collectives.plans.runners.messages import MessagesRun
from dear_mpi.collectives.program.partition import chunk_bounds
from dear_mpi.kernels.array import Array, to_host

if TYPE_CHECKING:
    from dear_mpi.bench.data import Data


@dataclass(frozen=True, order=True)
class Spot:
    """The first wrong element of a chunk; elements are counted over the full buffer."""

    chunk: int
    element: int
    got: float
    due: float


@dataclass
class Tally:
    """``calls`` were looked at; in ``turns`` the result was wrong, in the first of these at ``spots``."""

    calls: int = 0
    elements: int = 0  # wrong ones, of all calls
    turns: list[int] = field(default_factory=list)
    spots: list[Spot] = field(default_factory=list)

    def look(self, data: Data, turn: int, run: object) -> None:
        """Count what is wrong in the result of a call; ``run`` may be a plan, which knows its chunks."""
        self.calls += 1
        if wrong := data.errors(turn):
            self.spots = self.spots or list(spots_of(data, turn, run))
            self.elements += wrong
            self.turns.append(turn)

    def __add__(self, later: Tally) -> Tally:
        return Tally(
            self.calls + later.calls,
            self.elements + later.elements,
            self.turns + later.turns,
            self.spots or later.spots,
        )


def spots_of(data: Data, turn: int, run: object) -> Iterator[Spot]:
    """What is wrong in each chunk of the result."""
    count, got = data.case.count, to_host(data.result)
    due = np.broadcast_to(to_host(data.due(turn)), got.shape)
    if data.case.window > 1:  # the first wrong one of many messages, each of a whole buffer
        wrong = int((got != due).any(axis=1).argmax())
        got, due = got[wrong], due[wrong]
    got, due = got.ravel(), due.ravel()
    for chunk, (start, stop) in enumerate(pairwise(chunks_of(run, count, data.ranks))):
        mine = slice(max(start - data.first, 0), max(stop - data.first, 0))
        if (at := first_wrong(got[mine], due[mine])) is not None:
            numbers = (array[mine].view(data.dtype)[at].item() for array in (got, due))
            yield Spot(chunk, data.first + mine.start + at, *numbers)


def first_wrong(got: Array, due: Array) -> int | None:
    """Of two arrays of bits, the first place in which they differ."""
    differ = got != due
    return int(differ.argmax()) if differ.any() else None


def chunks_of(run: object, count: int, ranks: int) -> Sequence[int]:
    """The borders of chunks: those of a plan's program, else one chunk for each rank."""
    if isinstance(run, Plan) and isinstance(run.run, MessagesRun):
        return run.run.chunks
    return [*(chunk_bounds(count, ranks, rank)[0] for rank in range(ranks)), count]
