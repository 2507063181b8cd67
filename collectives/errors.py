"""What can go wrong in a collective, by kind. A bad argument is a plain ``ValueError``."""

__all__ = ["CollectiveError", "MismatchError", "ProgramError", "TransportError"]


class CollectiveError(RuntimeError):
    """A broken promise of this layer; the base of the others."""


class ProgramError(CollectiveError):
    """An algorithm is wrong: the message names rank, step and chunk."""


class MismatchError(CollectiveError, ValueError):
    """The ranks do not agree on what they are about to do; raised on all of them alike."""


class TransportError(CollectiveError):
    """Bytes could not be moved, because a peer is gone or the job was aborted."""
