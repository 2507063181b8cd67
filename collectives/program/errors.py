"""What can go wrong in a collective, by kind."""

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
    """An algorithm is wrong: the message names rank, step and chunk."""


class TransportError(CollectiveError):
    """Bytes could not be moved, because a peer is gone or the job was aborted."""
