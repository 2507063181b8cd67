"""Tensor fusion: where the line is cut into buckets. Pure functions from the layout.

Most policies fuse whole layers: they are functions from the layers' sizes to groups of layers that follow each other in
forward order, where layers without parameters belong to no group. ``tensors`` and ``cut:SIZE`` look at no layer.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from dear_mpi.reporting.units import parse_bytes, whole_number
from dear_mpi.training.fusion.by_time import BY_TIME, Groups, filled, with_parameters
from dear_mpi.training.line.bucket import Cut, cut
from dear_mpi.training.line.layout import Layout

USUAL = "25MB"  # the default of DeAR's published code, and of PyTorch's DDP
NAMED = ("none", "tensors", "ddp", "own", *BY_TIME)
MOST_BUCKETS = 100_000
DDP_FIRST_BYTES, DDP_BYTES = 1024 * 1024, 25 * 1024 * 1024


def fused(policy: str, layout: Layout) -> Cut:
    """The buckets of a policy. Raises as ``borders``."""
    return cut(layout, borders(policy, layout))


def borders(policy: str, layout: Layout) -> list[int]:
    """Where a policy cuts the line, in elements.

    Args:
        policy: as for ``fuse``; or ``tensors``: each has a bucket (those that are shorter than the grid may share one);
            ``cut:SIZE``: buckets of that size, wherever tensors begin and end; ``ddp``: PyTorch's, and ``ddp:SIZE``
            those that it makes of another ``bucket_cap_mb``;
            ``at:N,N,...``: at these elements.

    Raises:
        ValueError: the policy cannot be read, or asks for more buckets than there are layers, or than a run can handle.

    >>> layout = Layout.of([[("a", (64,))], [("b", (64,))], [("c", (64,))]], itemsize=4, ranks=1)
    >>> borders("layers:2", layout), borders("cut:384B", layout)
    ([0, 128], [0, 96])
    """
    kind, _, argument = policy.partition(":")
    found: Sequence[int]
    if policy == "tensors":
        found = layout.offsets
    elif kind == "cut":  # the grid is as fine as it gets
        found = range(0, layout.count, max(layout.grid, size_of(policy, argument) // layout.itemsize))
    elif policy == "ddp":
        found = ddp_borders(layout, DDP_FIRST_BYTES, DDP_BYTES)
    elif kind == "ddp":
        found = ddp_borders(layout, *[size_of(policy, argument)] * 2)
    elif kind == "at":
        found = elements(policy, argument, layout)
    else:
        found = [layout.begin(group[0]) for group in fuse(policy, layout.owned_bytes)]
    if len(found) > MOST_BUCKETS:
        raise ValueError(f"fusion {policy!r:.80} makes {len(found)} buckets: more than {MOST_BUCKETS} take too long")
    return list(found)


def ddp_borders(layout: Layout, first_bytes: int, most_bytes: int) -> list[int]:
    """From the end of the line, a bucket is closed when it is large enough: the first one early, unless the user asks
    for a size.

    Source: compute_bucket_assignment_by_size in torch/csrc/distributed/c10d/reducer.cpp; DistributedDataParallel.
    """
    found, size, limit = list[int](), 0, first_bytes
    for tensor in reversed(range(len(layout.shapes))):
        size += layout.size(tensor) * layout.itemsize
        if size >= limit:
            found.append(layout.offsets[tensor])
            size, limit = 0, most_bytes
    return found


def elements(policy: str, argument: str, layout: Layout) -> list[int]:
    """Borders that are given; ValueError if they are no elements of the line."""
    last, found = max(1, layout.count) - 1, list[int]()
    for text in argument.split(","):
        number = whole_number(text)
        if number is None or number > last:
            allowed = f"elements of this model, from 0 to {last}"
            raise ValueError(f"fusion {policy!r:.80}: buckets must begin at {allowed}, not at {text!r:.80}")
        found.append(number)
    return found


def fuse(policy: str, nbytes: Sequence[int]) -> Groups:
    """Group layers by the bytes of their parameters, in forward order. Raises as ``borders``.

    Args:
        policy: ``none`` (one layer per bucket), ``layers:K`` (the last bucket may have fewer), ``buckets:N``, or a
            size such as ``25MB``.

    >>> fuse("layers:2", [8, 0, 8, 8])
    [[0, 2], [3]]
    """
    kind, _, argument = policy.partition(":")
    layers = with_parameters(nbytes)
    if policy == "none":
        return [[layer] for layer in layers]
    if kind in ("layers", "buckets"):
        count = whole_number(argument)
        if not count:
            raise ValueError(f"fusion {policy!r} needs a whole number above zero after the colon, as in {kind}:4")
        if kind == "layers":
            return [layers[start : start + count] for start in range(0, len(layers), count)]
        return equal_buckets(count, layers, nbytes)
    # Below the limit, as in DeAR's published code, where it is 25 MB unless it is tuned.
    return filled(layers, nbytes, size_of(policy, policy) - 1)


def size_of(policy: str, size: str) -> int:
    """The bytes that a policy names; ValueError if they cannot be read, or are zero."""
    name, colon, _ = policy.partition(":")
    if colon and name in NAMED and name != "ddp":
        raise ValueError(f"fusion {policy!r}: {name} takes nothing after a colon")
    try:
        if (nbytes := parse_bytes(size)) < 1:
            raise ValueError(f"size {size!r} must be above zero")
    except ValueError as error:
        allowed = "tensors, none, layers:K, buckets:N, a size, cut:SIZE, ddp, ddp:SIZE, at:N,N or FILE.py:FUNCTION"
        allowed += "; of a schedule also own, mgwfbp and horovod; in training also bo and auto"
        raise ValueError(f"fusion {policy!r}: {error}. Allowed: {allowed}") from None
    return nbytes


def in_bytes(policy: str) -> str:
    """The same policy; a size in it is in bytes, however it was written.

    >>> in_bytes("25mb"), in_bytes("cut:4096KB"), in_bytes("none")
    ('26214400B', 'cut:4194304B', 'none')
    """
    kind, colon, size = policy.rpartition(":")
    try:
        return f"{kind}{colon}{parse_bytes(size)}B"
    except ValueError:
        return policy


def equal_buckets(count: int, layers: list[int], nbytes: Sequence[int]) -> Groups:
    """Exactly ``count`` buckets; each border is put where the bytes before it are nearest to their equal share."""
    if count > len(layers):
        raise ValueError(f"fusion buckets:{count} asks for more buckets than the {len(layers)} layers with parameters")
    ends = list(accumulate(nbytes[layer] for layer in layers))
    cuts = [0]
    for number in range(1, count + 1):
        goal = ends[-1] * number / count
        last = len(layers) - (count - number)  # each bucket that is to come needs a layer
        cuts.append(min(range(cuts[-1] + 1, last + 1), key=lambda end: abs(ends[end - 1] - goal)))
    return [layers[begin:end] for begin, end in pairwise(cuts)]
