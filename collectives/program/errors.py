"""Define the errors of collectives, by kind."""

from collections.abc import Collection

__all__ = [
    *("AgreedError", "ArgumentError", "CollectiveError", "MismatchError", "ProgramError", "RanksLost"),
    "TransportError",
]


class CollectiveError(RuntimeError):
    """The base of all errors of collectives."""


class AgreedError(CollectiveError):
    """Raised on all ranks, so each can stop in order. Any other error ends the job.

    Attributes:
        reporter: set if ranks may have died: this rank counted among the survivors. Rank 0 reports.
    """

    reporter: int


class ArgumentError(AgreedError, ValueError):
    """An argument is not allowed on some rank; raised on all ranks."""


class MismatchError(AgreedError, ValueError):
    """The ranks do not agree on their next call; raised on all ranks."""


class ProgramError(CollectiveError):
    """``rank`` errs in ``chunk`` (None: in several)."""

    def __init__(self, message: str, *, rank: int | None = None, chunk: int | None = None) -> None:
        super().__init__(message)
        self.rank, self.chunk = rank, chunk


class TransportError(CollectiveError):
    """Bytes could not be moved: a peer has gone or the job was aborted."""


class RanksLost(TransportError):
    """Ranks have died, or another survivor has noticed it.

    Attributes:
        ranks: numbers of the dead ranks in the whole job; empty while unknown.
        where: what this rank was doing.
        iteration: set once the survivors are ready to repeat training from there.
    """

    def __init__(
        self, message: str, *, ranks: Collection[int] = (), where: str = "", iteration: int | None = None
    ) -> None:
        super().__init__(message)
        self.ranks, self.where, self.iteration = tuple(ranks), where, iteration


def lost_in(error: BaseException | None) -> RanksLost | None:
    """Return the loss of ranks that led to an error, if one did."""
    while error is not None and not isinstance(error, RanksLost):
        error = error.__cause__
    return error


def name_ranks(ranks: Collection[int]) -> str:
    """Format ranks for messages.

    >>> name_ranks([0, 2, 3]), name_ranks([1]), name_ranks([])
    ('ranks 0, 2, 3', 'rank 1', 'no rank')
    """
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}" if ranks else "no rank"
