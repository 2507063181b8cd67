"""Fusion by time: where peers merge gradients, from when layers are ready and what the network costs.

Both go through the layers as the backward pass does, from the last to the first. A layer's gradients are ready
together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import ceil

from dear_mpi.reporting.units import parse_bytes
from dear_mpi.training.line.layout import Layout

__all__ = ["BY_TIME", "Groups", "by_time"]

Cost = Callable[[float], float]  # seconds of an all-reduce of so many bytes
Groups = list[list[int]]  # of layers

CYCLE_S, CYCLE_BYTES = 1e-3, parse_bytes("128MiB")  # HOROVOD_CYCLE_TIME, HOROVOD_FUSION_THRESHOLD since 0.21


def by_time(policy: str, layout: Layout, itemsize: int, backward_s: Sequence[float], cost: Cost) -> str:
    """What a policy of ``BY_TIME`` makes of measured times: ``at:`` and elements of the line, as ``borders`` reads
    it. It is a text, so that ranks can compare it, and a user can give it again.

    Args:
        itemsize: bytes of an element on the wire.
        backward_s: of each use of a layer.
    """
    nbytes = [owned * itemsize for owned in layout.owned]
    ready_s = list(accumulate(reversed(backward_s)))[::-1]
    groups = BY_TIME[policy](nbytes, ready_s, cost)
    return "at:" + ",".join(str(layout.begin(group[0])) for group in groups)


def mg_wfbp(nbytes: Sequence[int], ready_s: Sequence[float], cost: Cost) -> Groups:
    """Layers that follow each other, merged where waiting costs less than another start-up.

    A layer joins the group before it if it is ready before that group's all-reduce would be over, and either that has
    not begun by then, or it would wait for less than the start-up latency, ``cost(0)``.

    Source: MG-WFBP, algorithm 1.

    >>> mg_wfbp([10, 0, 10, 10], [3.6, 2.5, 2.0, 1.0], lambda nbytes: 1.5 + 0.01 * nbytes)
    [[0], [2, 3]]
    """
    free_s = 0.0  # when the wire is free for the group
    groups: Groups = []
    size = 0
    for layer in (layer for layer in reversed(range(len(nbytes))) if nbytes[layer]):
        if groups:
            begin_s = max(free_s, ready_s[groups[0][0]])
            end_s = begin_s + cost(size)
            if ready_s[layer] < end_s and ready_s[layer] - begin_s < cost(0):
                groups[0].insert(0, layer)
                size += nbytes[layer]
                continue
            free_s = end_s
        groups.insert(0, [layer])
        size = nbytes[layer]
    return groups


def in_cycles(nbytes: Sequence[int], ready_s: Sequence[float], cost: Cost) -> Groups:
    """What is ready when a cycle begins goes in one buffer, or in several that are full.

    A cycle begins on a beat of a millisecond, or at once when the one before it took longer.

    Source: Horovod, horovod/common/operations.cc (RunLoopOnce) and controller.cc (FuseResponses).

    >>> in_cycles([10, 0, 10, 10], [0.3, 0.2, 0.1002, 0.1001], lambda nbytes: 0.15)
    [[0], [2, 3]]
    """
    layers = [layer for layer in reversed(range(len(nbytes))) if nbytes[layer]]
    groups: Groups = []
    now_s = 0.0
    while layers:
        now_s = max(now_s, ceil(ready_s[layers[0]] / CYCLE_S) * CYCLE_S)
        ready = [layer for layer in layers if ready_s[layer] <= now_s]
        del layers[: len(ready)]
        buffers = filled(ready, nbytes)
        groups = [group[::-1] for group in reversed(buffers)] + groups
        now_s += max(CYCLE_S, sum(cost(sum(nbytes[layer] for layer in group)) for group in buffers))
    return groups


def filled(layers: Sequence[int], nbytes: Sequence[int]) -> Groups:
    """Layers in buffers of up to 128 MiB, in their order; one that is larger has a buffer of its own."""
    groups: Groups = []
    size = CYCLE_BYTES
    for layer in layers:
        if size + nbytes[layer] > CYCLE_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(layer)
        size += nbytes[layer]
    return groups


BY_TIME: Mapping[str, Callable[[Sequence[int], Sequence[float], Cost], Groups]] = {
    "mgwfbp": mg_wfbp,
    "horovod": in_cycles,
}
