"""Define a collective algorithm as data: a function of (rank, size) that returns a ``Program``.

Meaning. The buffer has ``size * parts`` chunks; rank r owns ``parts`` of them from ``r * parts`` on. All sends of a
step read the buffer's state at its start. A receive replaces chunks or combines them. All contributions that a step
combines into a chunk, the rank's own included, are combined at once in rank order; two-byte numbers in fp32, rounded
once. Messages between two ranks are matched in program order. A message arrives in the chunks that were sent; only
addressed data (``Contract``) may arrive in others of equal length. Both ends of a message are in one step, and all
ranks have equally many. A rank enters a step when its previous step is complete; there is no other synchronization.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dear_mpi.collectives.program.hosts import Rates


@dataclass(frozen=True)
class Send:
    """``chunks``: a ``range`` of step 1, such as ``range(3, 4)``."""

    peer: int
    chunks: range

    def __str__(self) -> str:
        return f"{label(self.chunks)} to rank {self.peer}"


@dataclass(frozen=True)
class Receive:
    """Replace local data, or combine with it."""

    peer: int
    chunks: range
    combine: bool = False

    def __str__(self) -> str:
        verb = "combined with" if self.combine else "replacing"
        return f"{label(self.chunks)} from rank {self.peer}, {verb} local data"


@dataclass(frozen=True)
class Step:
    sends: tuple[Send, ...] = ()
    receives: tuple[Receive, ...] = ()


@dataclass(frozen=True)
class Program:
    """One rank's steps; each rank owns ``parts`` chunks."""

    collective: str
    rank: int
    size: int
    steps: tuple[Step, ...]
    parts: int = 1

    @property
    def chunks(self) -> int:
        return self.size * self.parts

    def owner(self, chunk: int) -> int:
        return chunk // self.parts

    def __str__(self) -> str:
        """
        >>> step = Step((Send(1, range(0, 1)),), (Receive(1, range(1, 2), combine=True),))
        >>> print(Program("reduce_scatter", 0, 2, (step,)))
        rank 0 of 2, reduce_scatter
          step 0: send chunk 0 to rank 1; receive chunk 1 from rank 1, combined with local data
        """
        lines = [f"rank {self.rank} of {self.size}, {self.collective}"]
        for number, step in enumerate(self.steps):
            actions = [f"send {send}" for send in step.sends] + [f"receive {receive}" for receive in step.receives]
            lines.append(f"  step {number}: {'; '.join(actions) or 'nothing'}")
        return "\n".join(lines)


Algorithm = Callable[..., Program]
"""A function of (rank, size). It may also take, by name: ``hosts``, the host number of each rank; ``rates``
(``hosts.py``), or None if unknown; ``pieces``, the number of segments in the buffer.
"""


def write_program(
    algorithm: Algorithm,
    rank: int,
    size: int,
    *,
    hosts: Sequence[int] | None = None,
    rates: Rates | None = None,
    pieces: int = 1,
) -> Program:
    offered = {"hosts": tuple(hosts or [0] * size), "rates": rates, "pieces": pieces}
    return algorithm(rank, size, **{name: value for name, value in offered.items() if asks_for(algorithm, name)})


def asks_for(algorithm: Algorithm, name: str) -> bool:
    return name in inspect.signature(algorithm).parameters


def renamed(program: Program, shift: int) -> Program:
    """Rename rank r to r + shift: moves a tree's root."""
    names = [(rank + shift) % program.size for rank in range(program.size)]
    steps = tuple(
        Step(
            tuple(replace(send, peer=names[send.peer]) for send in step.sends),
            tuple(replace(receive, peer=names[receive.peer]) for receive in step.receives),
        )
        for step in program.steps
    )
    return replace(program, rank=names[program.rank], steps=steps)


def ranges(chunks: Sequence[int]) -> list[range]:
    """Merge ascending chunks: 0, 1, 4, 5, 6 into 0..1 and 4..6."""
    found: list[range] = []
    for chunk in chunks:
        first = found.pop().start if found and found[-1].stop == chunk else chunk
        found.append(range(first, chunk + 1))
    return found


def label(chunks: range) -> str:
    return f"chunk {chunks[0]}" if len(chunks) == 1 else f"chunks {chunks.start}..{chunks.stop - 1}"


Holder = Callable[[int, int], bool]


def everyone(rank: int, owner: int) -> bool:
    return True


def the_owner(rank: int, owner: int) -> bool:
    return rank == owner


def root(rank: int, owner: int) -> bool:
    return rank == 0


@dataclass(frozen=True)
class Contract:
    """Which ranks hold data of a chunk before and after, as functions of (rank, owner).

    Ranks contribute the data before; data after has all contributions. Addressed data is for the chunk's owner and
    ends in the chunk of its sender.
    """

    begins: Holder
    ends: Holder
    addressed: bool = False

    def brings(self, rank: int, owner: int, size: int) -> int:
        """Return initial data as a ``Row`` of ``verify.py``."""
        address = 1 << size + owner if self.addressed else 0
        return 1 << rank | address if self.begins(rank, owner) else 0

    @property
    def reduces(self) -> bool:
        return self.begins is everyone and not self.addressed

    @property
    def rooted(self) -> bool:
        return root in (self.begins, self.ends)


COLLECTIVES = {
    "reduce_scatter": Contract(everyone, the_owner),
    "all_gather": Contract(the_owner, everyone),
    "all_reduce": Contract(everyone, everyone),
    "broadcast": Contract(root, everyone),
    "reduce": Contract(everyone, root),
    "all_to_all": Contract(everyone, everyone, addressed=True),
}
