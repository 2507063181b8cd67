"""One global order of examples, cut into batches, cut into the parts of the ranks.

    epoch 0: a permutation of all examples | epoch 1: another one | ...
    |---- batch 0 ----|---- batch 1 ----|---- batch 2 ----| ...        batches run on across epochs
    | rank 0 | rank 1 |

The order depends on the seed alone. So the number of ranks changes which rank computes what, not what is computed;
every example is seen once per epoch, by one rank, and all ranks do the same number of iterations.
"""

import numpy as np

from dear_mpi.collectives.program.partition import chunk_bounds
from dear_mpi.kernels.array import Array
from dear_mpi.models.data.dataset import Examples, Indices


class Batches:
    """One rank's parts of the batches of a job.

    Args:
        examples: what to draw from, the same on all ranks.
        batch: examples per iteration, of the whole job.
        rank, size: this rank, and the number of ranks.
        seed: fixes the order.

    Raises:
        ValueError: there are no examples, or fewer in a batch than there are ranks.
    """

    def __init__(self, examples: Examples, batch: int, *, rank: int, size: int, seed: int) -> None:
        if batch < size:
            raise ValueError(f"batch must be at least the number of ranks, {size}, not {batch}")
        if not len(examples):
            raise ValueError("the data set has no examples to train on")
        self.examples, self.batch, self.seed = examples, batch, seed
        self.bounds = chunk_bounds(batch, size, rank)
        self.epochs: dict[int, Indices] = {}

    def part(self, iteration: int) -> tuple[Array, Array]:
        """Inputs and targets of this rank in one iteration, counted from 0."""
        start, stop = (iteration * self.batch + bound for bound in self.bounds)
        return self.examples.take(self.order(start, stop))

    def order(self, start: int, stop: int) -> Indices:
        """The numbers of the examples at these positions of the endless global order."""
        count = len(self.examples)
        epochs = range(start // count, -(-stop // count))
        whole = np.concatenate([self.permutation(epoch) for epoch in epochs])
        return whole[start - epochs.start * count : stop - epochs.start * count]

    def permutation(self, epoch: int) -> Indices:
        """One epoch's order; the last few are kept."""
        if epoch not in self.epochs:
            self.epochs = {old: order for old, order in self.epochs.items() if old >= epoch - 1}
            self.epochs[epoch] = np.random.default_rng([self.seed, epoch]).permutation(len(self.examples))
        return self.epochs[epoch]
