"""Hold the raw observations of a PyTorch script: events and trainable tensors. PyTorch is not needed here.

An iteration reaches from the end of one optimiser step to the end of the next; events divide it without gaps:

    begin | inside use 0 use 1 ... outside | back 1 ready 1 ready 0 back 0 ... end | step stepped
            forward                 the loss  backward                               the optimiser
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Kinds of events.
BEGIN = "begin"  # the previous iteration ended
INSIDE = "inside"  # the outermost module begins
USE = "use"  # a layer call begins: the key
OUTSIDE = "outside"  # the outermost module ended
BACK = "back"  # a layer call's output gradient is ready
READY = "ready"  # a tensor's gradient is ready: the key
END = "end"  # a backward pass ended
STEP = "step"  # the optimiser begins
STEPPED = "stepped"  # the optimiser ended

# As torchrun sets for one rank.
JOB = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
JOB |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # any free port


class Mark(NamedTuple):
    """An event; its seconds count from a common origin."""

    kind: str
    key: int
    at_s: float


@dataclass(frozen=True)
class Seen:
    """Attributes:
    dtype: as ``kernels/dtypes.py`` names it, or PyTorch's name of another.
    uses: the layer calls that read it; empty if no module that ran owns it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    uses: tuple[int, ...]


@dataclass(frozen=True)
class Wrapped:
    """Attributes:
    bucket_bytes: the size that closes a bucket; None for PyTorch's default.
    synced: whether gradients are sent after each part of an accumulated batch; False under ``no_sync``.
    unlike: settings that the prediction does not model.
    """

    bucket_bytes: int | None = None
    synced: bool = False
    unlike: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Watched:
    """Attributes:
    device: ``cpu`` or ``cuda``.
    names: of layer calls, by number.
    watched: the events of each watched iteration.
    plain_s: the seconds of the iterations between them.
    notes: facts that could not be observed.
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
    """Attributes:
    failed: why no prediction is possible; "" with ``watched``.
    trace: the script's traceback, if it failed with one.
    iterations: how many ended.
    missed: unset launcher variables that the script asked for.
    """

    watched: Watched | None = None
    failed: str = ""
    trace: str = ""
    iterations: int = 0
    missed: Sequence[str] = ()
