"""Fuse tensors: decide where to cut the flat buffer into buckets, by pure functions of the layout.

Most policies group consecutive layers with parameters by size. Fusion by time (``BY_TIME``) uses the times when layers
are ready, from last to first, and the network's cost. Your function in a file, ``--fusion mine.py:cut``, returns the
elements of the flat buffer where buckets begin, for example one at each fourth layer:

    def cut(layout, times, network):
        return [layout.begin(call) for call in layout.begins if call % 4 == 0]

``times`` has the forward and backward times of layer calls; ``network(nbytes)`` returns an all-reduce's seconds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil
from operator import index
from typing import NamedTuple

from dear_mpi.collectives.program.user_file import is_in_file, load, source_of, telling
from dear_mpi.reporting.units import parse_bytes, whole_number
from dear_mpi.training.buckets.layout import Cut, Layout, cut

USUAL = "25MB"  # as in DeAR's published code and PyTorch's DDP
MOST_BUCKETS = 100_000
DDP_FIRST_BYTES, DDP_BYTES = 1024 * 1024, 25 * 1024 * 1024
Cost = Callable[[float], float]  # bytes of an all-reduce -> seconds
Groups = list[list[int]]  # of layers

CYCLE_S, CYCLE_BYTES = 1e-3, parse_bytes("128MiB")  # HOROVOD_CYCLE_TIME, HOROVOD_FUSION_THRESHOLD since 0.21


class PassTimes(NamedTuple):
    """Hold the seconds of layer calls, in forward order."""

    forward_s: Sequence[float]
    backward_s: Sequence[float]


def is_by_time(policy: str) -> bool:
    return policy in BY_TIME or is_in_file(policy)


def check_file(policy: str) -> None:
    if is_in_file(policy):
        load(source_of(policy, "fusion", "cut"))


def by_time(policy: str, layout: Layout, times: PassTimes, cost: Cost) -> str:
    """Return the cut that a policy by time chooses, as ``at:`` and elements. Raises ValueError."""
    if is_in_file(policy):
        call = load(source_of(policy, "fusion", "cut"))
        with telling(f"fusion {policy!r} fails"):
            begins = [index(each) for each in list(call(layout, times, cost))]
        if wrong := [each for each in begins if not 0 <= each < max(1, layout.count)]:
            allowed = f"elements of the flat buffer, from 0 to {layout.count - 1}"
            raise ValueError(f"fusion {policy!r} must return a list of {allowed}, not {wrong[0]}")
        begins = sorted({0, *begins})
    else:
        ready_s = list(accumulate(reversed(times.backward_s)))[::-1]
        groups = BY_TIME[policy](layout.owned_bytes, ready_s, cost)
        begins = [layout.begin(group[0]) for group in groups]
    return "at:" + ",".join(map(str, begins))


def mg_wfbp(nbytes: Sequence[int], ready_s: Sequence[float], cost: Cost) -> Groups:
    """Merge consecutive layers if waiting costs less than another start-up.

    A layer joins a group if it is ready before its all-reduce would end, and delays it by less than ``cost(0)``.

    Source: MG-WFBP, algorithm 1.

    >>> mg_wfbp([10, 0, 10, 10], [3.6, 2.5, 2.0, 1.0], lambda nbytes: 1.5 + 0.01 * nbytes)
    [[0], [2, 3]]
    """
    free_s, size = 0.0, 0  # when the link is free for the group
    groups: Groups = []
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
    """Fuse the layers that are ready when a cycle begins, into one buffer or several full ones.

    Cycles begin each millisecond, or after a longer cycle.

    Source: Horovod, horovod/common/operations.cc (RunLoopOnce) and controller.cc (FuseResponses).

    >>> in_cycles([10, 0, 10, 10], [0.3, 0.2, 0.1002, 0.1001], lambda nbytes: 0.15)
    [[0], [2, 3]]
    """
    layers, now_s = with_parameters(nbytes)[::-1], 0.0
    groups: Groups = []
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
    """Group layers in order, at most ``most`` bytes per group, unless one layer has more."""
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
NAMED = ("none", "tensors", "ddp", "own", *BY_TIME)


def fused(policy: str, layout: Layout) -> Cut:
    return cut(layout, borders(policy, layout))


def borders(policy: str, layout: Layout) -> list[int]:
    """Return where a policy cuts the flat buffer, in elements. Raises ValueError.

    ``fuse`` lists policies of layers. ``tensors``: a bucket per tensor, unless it is shorter than the grid;
    ``cut:SIZE``: buckets of that size, regardless of tensors; ``ddp``, ``ddp:SIZE``: PyTorch's; ``at:N,N,...``.
    """
    kind, _, argument = policy.partition(":")
    found: Sequence[int]
    if policy == "tensors":
        found = layout.offsets
    elif kind == "cut":  # the finest grid
        found = range(0, layout.count, max(layout.grid, size_of(policy, argument) // layout.itemsize))
    elif policy == "ddp":
        found = ddp_borders(layout, DDP_FIRST_BYTES, DDP_BYTES)
    elif kind == "ddp":  # a script's bucket_cap_mb
        found = ddp_borders(layout, *[size_of(policy, argument)] * 2)
    elif kind == "at":
        found = elements(policy, argument, layout)
    else:
        found = [layout.begin(group[0]) for group in fuse(policy, layout.owned_bytes)]
    if len(found) > MOST_BUCKETS:
        raise ValueError(f"fusion {policy!r:.80} makes {len(found)} buckets: more than {MOST_BUCKETS} take too long")
    return list(found)


def ddp_borders(layout: Layout, first_bytes: int, most_bytes: int) -> list[int]:
    """Close buckets from the end of the flat buffer when they are large enough; the first one early.

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
    """Parse borders. Raises ValueError if the flat buffer has no such elements."""
    last, found = max(1, layout.count) - 1, list[int]()
    for text in argument.split(","):
        number = whole_number(text)
        if number is None or number > last:
            allowed = f"elements of this model, from 0 to {last}"
            raise ValueError(f"fusion {policy!r:.80}: buckets must begin at {allowed}, not at {text!r:.80}")
        found.append(number)
    return found


def fuse(policy: str, nbytes: Sequence[int]) -> Groups:
    """Group layers by the bytes of their parameters, in forward order. Raises ValueError.

    The policy is ``none``, ``layers:K``, ``buckets:N``, or a size such as ``25MB``.

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
    # Below the limit, as in DeAR's published code.
    return filled(layers, nbytes, size_of(policy, policy) - 1)


def size_of(policy: str, size: str) -> int:
    """Return the bytes that a policy names. Raises ValueError."""
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


def equal_buckets(count: int, layers: list[int], nbytes: Sequence[int]) -> Groups:
    """Make ``count`` buckets, each border nearest to its equal share of bytes."""
    if count > len(layers):
        raise ValueError(f"fusion buckets:{count} asks for more buckets than the {len(layers)} layers with parameters")
    ends = list(accumulate(nbytes[layer] for layer in layers))
    cuts = [0]
    for number in range(1, count + 1):
        goal = ends[-1] * number / count
        last = len(layers) - (count - number)  # each later bucket needs a layer
        cuts.append(min(range(cuts[-1] + 1, last + 1), key=lambda end: abs(ends[end - 1] - goal)))
    return [layers[begin:end] for begin, end in pairwise(cuts)]


@dataclass(frozen=True)
class Trial:
    fusion: str
    seconds: float  # of an iteration


class Tuning:
    """Tune the fusion while a session trains; this base class leaves it unchanged.

    Attributes:
        fusion: the policy of the first buckets.
        needs: iterations until it is over.
        trials: equal on all ranks.
        schedule: the first that runs.
    """

    schedule: str | None = None
    over = True

    def __init__(self, fusion: str, needs: int = 0) -> None:
        self.fusion, self.needs = fusion, needs
        self.trials: list[Trial] = []

    def look(self, name: str) -> str | None:
        """Count an iteration; return the next cut, if any. Collective."""
