"""What each collective promises, as data: which ranks hold data of a chunk when it begins, and when it ends.

A rank that holds data of a chunk at first contributes to it; a rank that holds it at the end holds all contributions.
Data may also be addressed: what a rank holds of a chunk at first is for the chunk's owner alone. There it ends in the
chunk of the rank that it comes from. So it changes its place in the buffer, which all other data keeps.
"""

from collections.abc import Callable
from dataclasses import dataclass

Holder = Callable[[int, int], bool]


def everyone(rank: int, owner: int) -> bool:
    return True


def the_owner(rank: int, owner: int) -> bool:
    return rank == owner


def root(rank: int, owner: int) -> bool:
    return rank == 0  # ``renamed`` gives a program another root


@dataclass(frozen=True)
class Contract:
    """Functions of (rank, owner of the chunk): whether the rank holds data of it; and whether that is addressed."""

    begins: Holder
    ends: Holder
    addressed: bool = False

    def brings(self, rank: int, owner: int, size: int) -> int:
        """What a rank holds of a chunk at first, as a ``Row`` of ``replay.py`` has it."""
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
