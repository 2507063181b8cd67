"""Fusion by time: where peers merge gradients, from when layers are ready and what the network costs; or a user's file.

Both of ours go through the layers as the backward pass does, from the last to the first. A layer's gradients are ready
together.

A user's is a pure function in a file, ``--fusion mine.py:cut``. It returns the elements of the line where buckets
begin, here one at each fourth layer:

    def cut(layout, times, network):
        return [layout.begin(use) for use in layout.begins if use % 4 == 0]

``layout`` says where the tensors of each use of a layer lie, ``times`` what it takes forward and backward, and
``network(nbytes)`` what an all-reduce of so many bytes takes.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import ceil
from operator import index
from typing import NamedTuple

from dear_mpi.collectives.program.user_file import is_in_file, load, source_of, telling
from dear_mpi.reporting.units import parse_bytes
from dear_mpi.training.line.layout import Layout

Cost = Callable[[float], float]  # seconds of an all-reduce of so many bytes
Groups = list[list[int]]  # of layers

CYCLE_S, CYCLE_BYTES = 1e-3, parse_bytes("128MiB")  # HOROVOD_CYCLE_TIME, HOROVOD_FUSION_THRESHOLD since 0.21


class PassTimes(NamedTuple):
    """Seconds of each use of a layer, in the order of the forward pass."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]


def is_by_time(policy: str) -> bool:
    """Whether a policy has to know times."""
    return policy in BY_TIME or is_in_file(policy)


def check_file(policy: str) -> None:
    """See that a user's function can be loaded, if the policy is one; else ValueError."""
    if is_in_file(policy):
        load(source_of(policy, "fusion", "cut"))


def by_time(policy: str, layout: Layout, times: PassTimes, cost: Cost) -> str:
    """What a policy by time makes of measured times: ``at:`` and elements of the line, as ``borders`` reads it. It is
    a text, so that ranks can compare it, and a user can give it again. ValueError if a user's function fails, or
    returns no elements of the line."""
    if is_in_file(policy):
        call = load(source_of(policy, "fusion", "cut"))
        with telling(f"fusion {policy!r} fails"):
            begins = [index(each) for each in list(call(layout, times, cost))]
        if wrong := [each for each in begins if not 0 <= each < max(1, layout.count)]:
            allowed = f"elements of the line, from 0 to {layout.count - 1}"
            raise ValueError(f"fusion {policy!r} must return a list of {allowed}, not {wrong[0]}")
        begins = sorted({0, *begins})
    else:
        ready_s = list(accumulate(reversed(times.backward_s)))[::-1]
        groups = BY_TIME[policy](layout.owned_bytes, ready_s, cost)
        begins = [layout.begin(group[0]) for group in groups]
    return "at:" + ",".join(map(str, begins))


def mg_wfbp(nbytes: Sequence[int], ready_s: Sequence[float], cost: Cost) -> Groups:
    """Layers that follow each other, merged where waiting costs less than another start-up.

    A layer joins the group before it if it is ready before that group's all-reduce would be over, and if that
    all-reduce has not begun by then, or would be delayed by less than the start-up latency, ``cost(0)``.

    Source: MG-WFBP, algorithm 1.

    >>> mg_wfbp([10, 0, 10, 10], [3.6, 2.5, 2.0, 1.0], lambda nbytes: 1.5 + 0.01 * nbytes)
    [[0], [2, 3]]
    """
    free_s = 0.0  # when the wire is free for the group
    groups: Groups = []
    size = 0
    for layer in reversed(with_parameters(nbytes)):
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
    layers = with_parameters(nbytes)[::-1]
    groups: Groups = []
    now_s = 0.0
    while layers:
        now_s = max(now_s, ceil(ready_s[layers[0]] / CYCLE_S) * CYCLE_S)
        ready = [layer for layer in layers if ready_s[layer] <= now_s]
        del layers[: len(ready)]
        buffers = filled(ready, nbytes, CYCLE_BYTES)
        groups = [group[::-1] for group in reversed(buffers)] + groups
        now_s += max(CYCLE_S, sum(cost(sum(nbytes[layer] for layer in group)) for group in buffers))
    return groups


def with_parameters(nbytes: Sequence[int]) -> list[int]:
    return [layer for layer, size in enumerate(nbytes) if size]


def filled(layers: Sequence[int], nbytes: Sequence[int], most: int) -> Groups:
    """Layers in groups of at most so many bytes, in their order; one that is larger has a group of its own."""
    groups: Groups = []
    size = most
    for layer in layers:
        if size + nbytes[layer] > most:
            groups.append([])
            size = 0
        groups[-1].append(layer)
        size += nbytes[layer]
    return groups


BY_TIME: Mapping[str, Callable[[Sequence[int], Sequence[float], Cost], Groups]] = {
    "mgwfbp": mg_wfbp,
    "horovod": in_cycles,
}
