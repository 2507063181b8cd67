"""What an iteration costs: what the virtual fabric is told of compute, updates and messages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from dear_mpi.training.line.bucket import Bucket
from dear_mpi.training.routes.collective import Collective

Price: TypeAlias = Callable[[Collective, Bucket], float]
# How many times as long as usual a use of a layer takes, on all ranks or on each. Passes, forward and backward, count
# from 0; the place in one is twice the number of the use forward, and one more backward.
Noise: TypeAlias = Callable[[int, int], Any]


def alike(seconds: Any) -> Any:
    """All ranks take what is nominal."""
    return seconds


def steady(number: int, place: int) -> float:
    return 1.0


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What an iteration takes, in seconds; without any costs nothing takes time."""

    forward_s: Sequence[float] = ()  # of each use of a layer, in the order of the forward pass; of a part of a batch
    backward_s: Sequence[float] = ()
    weights_s: Mapping[int, float] = field(default_factory=dict)  # of uses whose backward has a second half
    exchange_s: Mapping[int, float] = field(default_factory=dict)  # of what a use exchanges before each pass
    price: Price = lambda leg, bucket: 0.0
    parts: int = 1  # into which a batch is split
    loss_s: float = 0.0  # of the sum of the loss
    verdict_s: float = 0.0  # of the verdict on all gradients
    update_s: float = 0.0  # of the optimiser, for each element
    rest_s: float = 0.0  # between forward and backward, for what is no layer
    code_factor: float = 1.0  # how many times as long as its wire says a code takes
    start_s: float = 0.0  # until an engine without work begins
    wake_s: float = 0.0  # until the main thread goes on when what it waits for is over
    ranks: int = 1  # who share an update where each updates its shard
    served: float = 1.0  # the largest share of a bucket that one rank serves between hosts
    ranks_per_core: float = 1.0  # for updates, one after the other; all other seconds are already multiplied by it
    # From a bucket to what its update takes, and those of its shards, in elements. None: all shards are equal.
    work: Callable[[Bucket], tuple[float, Any]] | None = None
    portions: Callable[[str, Bucket], int] = lambda collective, bucket: 1  # into which a collective can be broken
    compute: Callable[[Any], Any] = alike  # from nominal seconds to those on each rank
    noise: Noise = steady

    def work_of(self, bucket: Bucket) -> tuple[float, Any]:
        return (float(bucket.count), bucket.count / self.ranks) if self.work is None else self.work(bucket)

    def update_seconds(self, elements: Any) -> Any:
        """What an update of so many elements takes, on all ranks or on each; those with few wait for who has many."""
        if self.ranks_per_core > 1:
            shared = self.ranks_per_core * np.mean(elements)
            elements = shared if np.ndim(elements) == 0 else np.maximum(elements, shared)
        return self.update_s * elements
