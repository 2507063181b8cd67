"""Assign whole tensors to ranks: each rank owns a run of each bucket's tensors, in the order of both.

    4 ranks    bucket with expand 4, shrink 4    ->    4 | 4 |   |       takes as long as a cost of 4
               then one with qkv 3, out 1        ->      |   | 3 | 1     goes to the less loaded ranks

All ranks wait for a bucket's costliest run before gathering. So first minimise the costliest run, within 5 %, then the
largest load of a rank. The costliest bucket comes first.

Source: longest processing time first, as in Graham, Bounds on multiprocessing timing anomalies, 1969.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dear_mpi.training.line.bucket import Bucket

HALVINGS = 40  # bisections of the interval that contains the lowest level
SLACK = 1e-9  # products and quotients are rounded
NEAR = 0.05  # extra time allowed to a bucket if that balances the ranks


def placed(costs: Mapping[Bucket, Sequence[float]], speeds: Sequence[float]) -> dict[Bucket, list[int]]:
    """Count each rank's tensors of each bucket.

    Cost: about 80 times the number of tensors plus candidate ranks.

    Args:
        costs: update costs of each bucket's tensors.
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
    """Return a function from a level to each rank's tensor count, filling the first ranks first.

    The level limits a rank's total; ``NEAR`` more than the bucket needs by itself limits its part. None if tensors
    remain.
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
    """Find the lowest level that fits, approximately; ``most`` must fit."""
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
