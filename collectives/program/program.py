"""Define a collective algorithm as data: a function of (rank, size) that returns a ``Program``.

Meaning. The buffer has ``size * parts`` chunks; rank r owns ``parts`` of them from ``r * parts`` on. All sends of a
step read the buffer's state at its start. A receive replaces chunks or combines them. All contributions that a step
combines into a chunk, the rank's own included, are combined at once in rank order; two-byte numbers in fp32, rounded
once. Transfers between two ranks are matched in program order; in one step they travel together. Data arrives in
the chunks that were sent; only addressed data (``Contract``) may arrive in others of equal length. Both ends of a
transfer are in one step, and all ranks have equally many. A rank enters a step when its previous step is complete;
there is no other synchronization.

Scratch. With ``scratch``, each rank has further copies of all chunks, undefined at first and dropped at the end. Chunk
``k * chunks + c`` is copy k of chunk c, and as long. Data may go from any copy to any other one, also on one rank: a
send and a receive whose peer is the rank itself copy or combine without a message.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any, TypeVar

from dear_mpi.collectives.program.hosts import Rates

__all__ = ["Partition", "chunk_bounds"]  # in ``dear_mpi.collectives``

T = TypeVar("T")


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


Transfer = TypeVar("Transfer", bound=Send | Receive)


def by_peer(transfers: Iterable[Transfer]) -> dict[int, list[Transfer]]:
    found: dict[int, list[Transfer]] = {}
    for transfer in transfers:
        found.setdefault(transfer.peer, []).append(transfer)
    return found


@dataclass(frozen=True)
class Program:
    """One rank's steps; each rank owns ``parts`` chunks, and has ``scratch`` further copies of all chunks."""

    collective: str
    rank: int
    size: int
    steps: tuple[Step, ...]
    parts: int = 1
    scratch: int = 0

    @property
    def chunks(self) -> int:
        return self.size * self.parts

    @property
    def places(self) -> int:
        return self.chunks * (1 + self.scratch)

    def owner(self, chunk: int) -> int:
        return chunk % self.chunks // self.parts

    def label(self, *runs: range) -> str:
        """Name chunks.

        >>> Program("reduce", 0, 4, (), scratch=1).label(range(0, 2), range(3, 4), range(7, 8))
        'chunks 0..1, 3, scratch 1 of chunk 3'
        """
        named = []
        for copy, of_copy in itertools.groupby(runs, lambda run: run.start // self.chunks):
            chunks = label(*(range(run.start % self.chunks, run[-1] % self.chunks + 1) for run in of_copy))
            named.append(f"scratch {copy} of {chunks}" if copy else chunks)
        return ", ".join(named)

    def actions(self, step: Step) -> Iterator[str]:
        """Describe a step: its messages, then its local copies and sums."""
        sends, receives = by_peer(step.sends), by_peer(step.receives)
        own = zip(sends.pop(self.rank, ()), receives.pop(self.rank, ()), strict=False)
        for peer, group in sends.items():
            yield f"send {self.label(*(each.chunks for each in group))} to rank {peer}"
        for peer, arriving in receives.items():
            for combine, alike in itertools.groupby(arriving, lambda each: each.combine):
                verb = "combined with" if combine else "replacing"
                yield f"receive {self.label(*(each.chunks for each in alike))} from rank {peer}, {verb} local data"
        for send, receive in own:
            verb = "combine" if receive.combine else "copy"
            yield f"{verb} {self.label(send.chunks)} into {self.label(receive.chunks)}"

    def __str__(self) -> str:
        """
        >>> step = Step((Send(1, range(0, 1)),), (Receive(1, range(1, 2), combine=True),))
        >>> print(Program("reduce_scatter", 0, 2, (step,)))
        rank 0 of 2, reduce_scatter
          step 0: send chunk 0 to rank 1; receive chunk 1 from rank 1, combined with local data
        """
        lines = [f"rank {self.rank} of {self.size}, {self.collective}"]
        for number, step in enumerate(self.steps):
            lines.append(f"  step {number}: {'; '.join(self.actions(step)) or 'nothing'}")
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


def label(*runs: range) -> str:
    named = [f"{run[0]}" if len(run) == 1 else f"{run.start}..{run.stop - 1}" for run in runs]
    return f"chunk{'s' * (sum(map(len, runs)) != 1)} {', '.join(named)}"


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


@dataclass(frozen=True)
class Partition:
    """Split a buffer over ranks; no other module knows how. ``borders``: of shards, from 0 to the count.

        count 10 over 4 ranks                   [0 1 2|3 4 5|6 7|8 9]          a shard for each rank
        with weights 1 1 2 1                    [0 1|2 3|4 5 6 7|8 9]          a slow rank owns less
        with counts 1 0 6 3                     [0||1 2 3 4 5 6|7 8 9]         exact counts
        cut into 2 chunks per shard             [0|1|2|3|4 5|6 7|8|9]          for algorithms that send halves two ways

    The first ``count % size`` even shards have one more element. Shards and chunks may be empty.
    """

    borders: tuple[int, ...]

    @classmethod
    def of(cls, count: int, size: int, weights: Sequence[float] | None = None) -> Partition:
        """Split evenly or by weights. Remainders go to the largest fractions, lower ranks first.

        >>> Partition.of(10, 4).borders, Partition.of(10, 4, [1, 1, 2, 1]).borders
        ((0, 3, 6, 8, 10), (0, 2, 4, 8, 10))
        """
        if weights is None:
            return cls((*(chunk_bounds(count, size, rank)[0] for rank in range(size)), count))
        given = all_as(float, weights, size)
        if given is None:
            raise ValueError(f"weights must be {size} numbers, one for each rank, not {weights!r}")
        if not all(0 <= weight < math.inf for weight in given) or not any(given):
            raise ValueError(f"weights must be finite numbers >= 0, not all of them 0, not {weights!r}")
        from fractions import Fraction  # slow to import

        shares = list(map(Fraction, given))  # exact: all ranks round alike
        total = sum(shares)
        exact = [count * share / total for share in shares]
        counts = [int(part) for part in exact]
        by_remainder = sorted(range(size), key=lambda rank: counts[rank] - exact[rank])
        for rank in by_remainder[: count - sum(counts)]:
            counts[rank] += 1
        return cls((0, *itertools.accumulate(counts)))

    @classmethod
    def exactly(cls, count: int, size: int, counts: Sequence[int]) -> Partition:
        """
        >>> Partition.exactly(10, 4, [1, 0, 6, 3]).borders
        (0, 1, 1, 7, 10)
        """
        given = all_as(index, counts, size)
        if given is None or min(given) < 0 or sum(given) != count:
            due = f"{size} whole numbers >= 0, one for each rank, with the sum {count}"
            raise ValueError(f"counts must be {due}, not {counts!r}")
        return cls((0, *itertools.accumulate(given)))

    @property
    def count(self) -> int:
        return self.borders[-1]

    @property
    def counts(self) -> list[int]:
        return [stop - start for start, stop in itertools.pairwise(self.borders)]

    def shard(self, rank: int) -> slice:
        return slice(self.borders[rank], self.borders[rank + 1])

    def chunks(self, parts: int = 1) -> tuple[int, ...]:
        """Return the borders of all chunks, ``parts`` even ones per shard."""
        shards = itertools.pairwise(self.borders)
        firsts = (start + chunk_bounds(stop - start, parts, part)[0] for start, stop in shards for part in range(parts))
        return (*firsts, self.count)


def all_as(kind: Callable[[Any], T], values: Sequence[Any], size: int) -> list[T] | None:
    try:
        found = list(map(kind, values))
    except (TypeError, ValueError):
        return None
    return found if len(found) == size else None


def chunk_bounds(count: int, size: int, index: int) -> tuple[int, int]:
    """
    >>> [chunk_bounds(10, 4, index) for index in range(4)]
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    small, larger = divmod(count, size)
    start = index * small + min(index, larger)
    return start, start + small + (index < larger)
