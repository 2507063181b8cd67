"""A collective algorithm as data, what one rank sends and receives, step by step; and what each collective promises.

An algorithm is a function of (rank, size) that returns a ``Program``. The code that reads programs (``verify``,
``cost``, ``explain``, ``messages``) knows no algorithm by name, and an algorithm needs nothing but ``Send``,
``Receive``, ``Step`` and ``Program``.

Meaning. The buffer has ``size * parts`` chunks, of which rank r owns those from ``r * parts`` on. All sends of a step
read what the buffer held when the step began; a receive either replaces chunks or combines what arrives with what is
there. All contributions that a step combines into a chunk are combined at once, in rank order, the rank's own among
them. Two-byte numbers are combined in fp32 and rounded once. Between one pair of ranks, messages are matched in
program order. A message is received in the chunks that were sent; only where data is addressed (``Contract``) may it be
in others, as many and as long. Both ends of a message are in the same step, and all ranks have equally many steps
(some may be empty). A rank enters a step when its previous one is complete; nothing else synchronises.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dear_mpi.collectives.program.hosts import Rates


@dataclass(frozen=True)
class Send:
    """Chunks that go to a peer; ``chunks`` is a ``range`` of step 1, such as ``range(3, 4)`` for chunk 3."""

    peer: int
    chunks: range

    def __str__(self) -> str:
        return f"{label(self.chunks)} to rank {self.peer}"


@dataclass(frozen=True)
class Receive:
    """Chunks that come from a peer, to replace what is there or to be combined with it by the reduction's op."""

    peer: int
    chunks: range
    combine: bool = False

    def __str__(self) -> str:
        verb = "combined with" if self.combine else "replacing"
        return f"{label(self.chunks)} from rank {self.peer}, {verb} what is there"


@dataclass(frozen=True)
class Step:
    """One round: all of its transfers may be under way at the same time."""

    sends: tuple[Send, ...] = ()
    receives: tuple[Receive, ...] = ()


@dataclass(frozen=True)
class Program:
    """What one rank does in one collective; ``parts`` is the number of chunks that each rank owns."""

    collective: str
    rank: int
    size: int
    steps: tuple[Step, ...]
    parts: int = 1

    @property
    def chunks(self) -> int:
        """The number of chunks of the whole buffer."""
        return self.size * self.parts

    def owner(self, chunk: int) -> int:
        return chunk // self.parts

    def __str__(self) -> str:
        """
        >>> step = Step((Send(1, range(0, 1)),), (Receive(1, range(1, 2), combine=True),))
        >>> print(Program("reduce_scatter", 0, 2, (step,)))
        rank 0 of 2, reduce_scatter
          step 0: send chunk 0 to rank 1; receive chunk 1 from rank 1, combined with what is there
        """
        lines = [f"rank {self.rank} of {self.size}, {self.collective}"]
        for number, step in enumerate(self.steps):
            actions = [f"send {send}" for send in step.sends] + [f"receive {receive}" for receive in step.receives]
            lines.append(f"  step {number}: {'; '.join(actions) or 'nothing'}")
        return "\n".join(lines)


Algorithm = Callable[..., Program]
"""A function of (rank, size) that returns that rank's program.

It may ask for more by the names of its arguments: ``hosts``, the number of the host of each rank; ``rates``, how fast a
rank sends inside its host and between hosts (``hosts.py``), or None where nobody has said it; and ``pieces``, into how
many portions of about a segment the whole buffer would split.
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
    """Call an algorithm with what it asks for; without ``hosts`` all ranks are on one."""
    offered = {"hosts": tuple(hosts or [0] * size), "rates": rates, "pieces": pieces}
    return algorithm(rank, size, **{name: value for name, value in offered.items() if asks_for(algorithm, name)})


def asks_for(algorithm: Algorithm, name: str) -> bool:
    """Whether an algorithm has an argument of this name."""
    return name in inspect.signature(algorithm).parameters


def renamed(program: Program, shift: int) -> Program:
    """The same program with every rank r called r + shift: how a tree whose root is rank 0 gets another root."""
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
    """Ascending chunks as the fewest ranges: 0, 1, 4, 5, 6 as 0..1 and 4..6."""
    found: list[range] = []
    for chunk in chunks:
        first = found.pop().start if found and found[-1].stop == chunk else chunk
        found.append(range(first, chunk + 1))
    return found


def label(chunks: range) -> str:
    """``chunk 3``, or ``chunks 2..5`` with both ends included."""
    return f"chunk {chunks[0]}" if len(chunks) == 1 else f"chunks {chunks.start}..{chunks.stop - 1}"


Holder = Callable[[int, int], bool]


def everyone(rank: int, owner: int) -> bool:
    return True


def the_owner(rank: int, owner: int) -> bool:
    return rank == owner


def root(rank: int, owner: int) -> bool:
    return rank == 0  # ``renamed`` gives a program another root


@dataclass(frozen=True)
class Contract:
    """Which ranks hold data of a chunk when a collective begins, and when it ends, as functions of (rank, owner).

    A rank that holds data of a chunk at first contributes to it; a rank that holds it at the end holds all
    contributions. Data may also be addressed: what a rank holds of a chunk at first is for the chunk's owner alone.
    There it ends in the chunk of the rank that it comes from. So it changes its place in the buffer, which all other
    data keeps.
    """

    begins: Holder
    ends: Holder
    addressed: bool = False

    def brings(self, rank: int, owner: int, size: int) -> int:
        """What a rank holds of a chunk at first, as a ``Row`` of ``verify.py`` has it."""
        address = 1 << size + owner if self.addressed else 0
        return 1 << rank | address if self.begins(rank, owner) else 0

    @property
    def reduces(self) -> bool:
        """Whether contributions are combined."""
        return self.begins is everyone and not self.addressed

    @property
    def rooted(self) -> bool:
        """Whether one rank, the root, differs from the others."""
        return root in (self.begins, self.ends)


# What begins where, and ends where.
COLLECTIVES = {
    "reduce_scatter": Contract(everyone, the_owner),
    "all_gather": Contract(the_owner, everyone),
    "all_reduce": Contract(everyone, everyone),
    "broadcast": Contract(root, everyone),
    "reduce": Contract(everyone, root),
    "all_to_all": Contract(everyone, everyone, addressed=True),
}
