"""What can go wrong in a collective, by kind, and how messages name ranks."""

from collections.abc import Collection

__all__ = ["AgreedError", "ArgumentError", "CollectiveError", "MismatchError", "ProgramError", "TransportError"]


class CollectiveError(RuntimeError):
    """The base of all errors of collectives."""


class AgreedError(CollectiveError):
    """Raised on all ranks alike, so each of them can stop in good order. Any other error ends the job."""


class ArgumentError(AgreedError, ValueError):
    """An argument is not allowed, on this rank or on another one; raised on all of them."""


class MismatchError(AgreedError, ValueError):
    """The ranks do not agree on what they are about to do; raised on all of them."""


class ProgramError(CollectiveError):
    """An algorithm is wrong. ``rank`` errs in ``chunk`` (None: in several); the message also names the step."""

    def __init__(self, message: str, *, rank: int | None = None, chunk: int | None = None) -> None:
        super().__init__(message)
        self.rank, self.chunk = rank, chunk


class TransportError(CollectiveError):
    """Bytes could not be moved, because a peer is gone or the job was aborted."""


def name_ranks(ranks: Collection[int]) -> str:
    """Ranks, for a reader.

    >>> name_ranks([0, 2, 3]), name_ranks([1]), name_ranks([])
    ('ranks 0, 2, 3', 'rank 1', 'no rank')
    """
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}" if ranks else "no rank"
