"""Where whole tensors go: a run of each bucket's tensors to each rank, in the order of both.

    4 ranks    bucket with expand 4, shrink 4    ->    4 | 4 |   |       takes as long as a cost of 4
               then one with qkv 3, out 1        ->      |   | 3 | 1     goes to those with less to do

All ranks wait for the costliest run of a bucket before they gather it. So a bucket takes runs whose costliest one costs
least, or nearly so; of these, the ones that add least to the rank with most to do. The costliest bucket comes first.

Source: the order is that of longest processing time, Graham, Bounds on multiprocessing timing anomalies, 1969.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dear_mpi.training.line.bucket import Bucket

HALVINGS = 40  # of an interval in which the lowest level is looked for
SLACK = 1e-9  # products and quotients are rounded
NEAR = 0.05  # by which a bucket may take longer than it must, where that spreads what ranks have to do


def placed(costs: Mapping[Bucket, Sequence[float]], speeds: Sequence[float]) -> dict[Bucket, list[int]]:
    """How many tensors of each bucket each rank owns, in the order of both.

    Cost: some 80 times the number of tensors, and of ranks that a bucket's tensors may go to.

    Args:
        costs: of the tensors of each bucket.
        speeds: of each rank; their sum is 1.
    """
    idle = (0.0,) * len(speeds)
    loads, found = list(idle), dict[Bucket, list[int]]()
    for bucket in sorted(costs, key=lambda each: -sum(costs[each])):
        own = costs[bucket]
        whole = sum(own) / max(speeds)
        alone, _ = least(runs(own, speeds, idle, whole), whole)
        most = alone + max(load / speed for load, speed in zip(loads, speeds, strict=True) if speed)
        _, found[bucket] = least(runs(own, speeds, loads, alone), most)
        begin = 0
        for rank, count in enumerate(found[bucket]):
            loads[rank] += sum(own[begin : begin + count])
            begin += count
    return found


def runs(
    costs: Sequence[float], speeds: Sequence[float], loads: Sequence[float], alone: float
) -> Callable[[float], list[int] | None]:
    """From a level to how many tensors of a bucket each rank owns, where the first ranks take all they have room for.

    The bucket takes up to ``alone``, and with all before it up to the level; None if some tensors are left.
    """

    def fits(level: float) -> list[int] | None:
        found, done = [0] * len(speeds), 0
        for rank, (load, speed) in enumerate(zip(loads, speeds, strict=True)):
            room = min((1 + NEAR) * alone * speed, level * speed - load)
            while done < len(costs) and costs[done] <= room:
                room -= costs[done]
                found[rank] += 1
                done += 1
        return found if done == len(costs) else None

    return fits


def least(fits: Callable[[float], list[int] | None], most: float) -> tuple[float, list[int]]:
    """The lowest level at which something fits, nearly, and what fits there; at ``most`` it does."""
    low, high = 0.0, most * (1 + SLACK)
    best = fits(high)
    assert best is not None, "it fits at the most"
    for _ in range(HALVINGS):
        level = (low + high) / 2
        found = fits(level)
        if found is None:
            low = level
        else:
            high, best = level, found
    return high, best
