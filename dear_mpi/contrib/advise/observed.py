"""What watching a script of PyTorch gives, before anything is made of it: moments, and what there is to be trained.

An iteration reaches from the end of one step of the optimiser to the end of the next, and its moments divide it without
a gap, so that what belongs to them adds up to it. PyTorch is not needed here.

    begin | inside use 0 use 1 ... outside | back 1 ready 1 ready 0 back 0 ... end | step stepped
            forward                 the loss  backward                               the optimiser
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Kinds of moments.
BEGIN = "begin"  # the iteration before has ended
INSIDE = "inside"  # the outermost module begins
USE = "use"  # a use of a layer begins, whose number is the key
OUTSIDE = "outside"  # the outermost module has ended
BACK = "back"  # the gradient of what this use has returned is there
READY = "ready"  # the gradient of a tensor is there, whose number is the key
END = "end"  # a backward pass has ended
STEP = "step"  # the optimiser begins
STEPPED = "stepped"  # the optimiser has ended

# What torchrun sets in a job of one rank.
JOB = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
JOB |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # any port that is free


class Mark(NamedTuple):
    """A moment; its seconds count from a begin that all moments share."""

    kind: str
    key: int
    at_s: float


@dataclass(frozen=True)
class Seen:
    """A tensor that the script may train.

    Attributes:
        dtype: as ``kernels/dtypes.py`` names it, or PyTorch's name of another.
        uses: the numbers of the uses that take it; empty where no module that ran has it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    uses: tuple[int, ...]


@dataclass(frozen=True)
class Wrapped:
    """What DistributedDataParallel was asked for.

    Attributes:
        bucket_bytes: the size at which a bucket is closed; None where it is PyTorch's own.
        synced: whether gradients travel after each part of a batch that is accumulated; not so under ``no_sync``.
        unlike: what it does otherwise than is predicted here.
    """

    bucket_bytes: int | None = None
    synced: bool = False
    unlike: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A script, as it ran.

    Attributes:
        device: ``cpu`` or ``cuda``.
        names: of the uses, by their numbers.
        watched: the moments of each iteration that was watched.
        plain_s: the seconds of iterations between them, in which nothing but their ends was looked at.
        notes: what could not be seen.
        threads: of PyTorch, on a CPU.
    """

    model: str
    device: str
    names: Sequence[str]
    tensors: Sequence[Seen]
    watched: Sequence[Sequence[Mark]]
    plain_s: Sequence[float]
    wrapped: Wrapped | None = None
    notes: Sequence[str] = ()
    threads: int = 1


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a script ended, as its process reports it.

    Attributes:
        failed: a sentence about why nothing can be predicted; "" with ``watched``.
        trace: the script's own traceback, if it has failed with one.
        iterations: how many have ended.
        missed: variables of a launcher that the script asked for and that were not set.
    """

    watched: Watched | None = None
    failed: str = ""
    trace: str = ""
    iterations: int = 0
    missed: Sequence[str] = ()
