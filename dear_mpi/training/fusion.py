"""Tensor fusion: which layers share a bucket. Pure functions from the layers' sizes to groups of layers.

Groups hold whole layers that follow each other in forward order. Layers without parameters belong to no group.
"""

from collections.abc import Sequence
from itertools import accumulate

from dear_mpi.reporting.units import parse_bytes

__all__ = ["by_bytes", "by_layers", "equal_buckets", "fuse"]

Groups = list[list[int]]


def fuse(policy: str, nbytes: Sequence[int]) -> Groups:
    """Group layers as a policy says.

    Args:
        policy: ``none`` (one layer per bucket), ``layers:K``, ``buckets:N``, or a size such as ``25MB``.
        nbytes: bytes of parameters of each layer, in forward order.

    Raises:
        ValueError: the policy cannot be read, or asks for more buckets than there are layers.

    >>> fuse("layers:2", [8, 0, 8, 8])
    [[0, 2], [3]]
    """
    kind, _, argument = policy.partition(":")
    if policy == "none":
        return by_layers(1, nbytes)
    if kind in ("layers", "buckets"):
        if not argument.isdecimal() or int(argument) < 1:
            raise ValueError(f"fusion {policy!r} needs a whole number above zero after the colon, as in {kind}:4")
        return (by_layers if kind == "layers" else equal_buckets)(int(argument), nbytes)
    try:
        limit = parse_bytes(policy)
        if limit < 1:
            raise ValueError(f"size {policy!r} must be above zero")
        return by_bytes(limit, nbytes)
    except ValueError as error:
        raise ValueError(f"fusion {policy!r}: {error}. Allowed: none, layers:K, buckets:N, or a size") from None


def trained(nbytes: Sequence[int]) -> list[int]:
    """The layers that have parameters."""
    return [layer for layer, size in enumerate(nbytes) if size]


def by_layers(count: int, nbytes: Sequence[int]) -> Groups:
    """``count`` layers per bucket; the last bucket may have fewer."""
    layers = trained(nbytes)
    return [layers[start : start + count] for start in range(0, len(layers), count)]


def by_bytes(limit: int, nbytes: Sequence[int]) -> Groups:
    """Layers join a bucket while it stays below ``limit`` bytes; one that is larger has a bucket of its own.

    The rule of DeAR's published code, where the limit is 25 MB unless it is tuned.
    """
    groups: Groups = []
    filled = limit
    for layer in trained(nbytes):
        if filled + nbytes[layer] >= limit:
            groups.append([])
            filled = 0
        groups[-1].append(layer)
        filled += nbytes[layer]
    return groups


def equal_buckets(count: int, nbytes: Sequence[int]) -> Groups:
    """Exactly ``count`` buckets; each border is put where the bytes before it are nearest to their equal share."""
    layers = trained(nbytes)
    if count > len(layers):
        raise ValueError(f"fusion buckets:{count} asks for more buckets than the {len(layers)} layers with parameters")
    ends = list(accumulate(nbytes[layer] for layer in layers))
    groups: Groups = []
    begin = 0
    for number in range(1, count + 1):
        goal = ends[-1] * number / count
        last = len(layers) - (count - number)  # each bucket that is to come needs a layer
        end = min(range(begin + 1, last + 1), key=lambda end: abs(ends[end - 1] - goal))
        groups.append(layers[begin:end])
        begin = end
    return groups
