"""Cut the flat buffer (line) into buckets: intervals that travel as one, at any element of the grid.

    line     | embedding            | block 1 | block 2      | head |..|
    buckets  |    0     |    1      :   |  2          |  3          :  |
                                    ^ a border is put on the next point of the grid

A bucket's first layer call (use) completes its gradients, and needs it first in the next forward pass. Borders are
rounded up: a few bytes travel later, but no layer waits for a second bucket first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from dear_mpi.training.line.layout import Layout, Shape


@dataclass(frozen=True)
class Bucket:
    """Hold elements ``start`` to ``stop`` of the line.

    Attributes:
        index: its number on the line.
        uses: the uses that touch it, ascending; ``uses[0]`` completes its gradients.
        nbytes: its size as it travels.
        shapes: of its tensors, if buckets consist of whole ones.
    """

    index: int
    start: int
    stop: int
    uses: tuple[int, ...]
    nbytes: int
    shapes: tuple[Shape, ...] = ()

    def __hash__(self) -> int:
        return self.index  # unique on a line, and ``uses`` may be long

    @property
    def count(self) -> int:
        return self.stop - self.start

    @property
    def interval(self) -> tuple[int, int]:
        return self.start, self.stop

    @cached_property
    def name(self) -> str:
        return f"bucket {self.index} (layers {self.uses[0]}..{self.uses[-1]}, {self.nbytes} bytes)"

    def __str__(self) -> str:
        return self.name


class Cut(tuple[Bucket, ...]):
    def needed_by(self, use: int) -> Sequence[Bucket]:
        return self.of_uses.get(use, ())

    def completed_by(self, use: int) -> Sequence[Bucket]:
        """List the buckets that a use's backward pass completes, from the end of the line."""
        return self.begun_by.get(use, ())

    @cached_property
    def of_uses(self) -> dict[int, list[Bucket]]:
        found: dict[int, list[Bucket]] = {}
        for bucket in self:
            for use in bucket.uses:
                found.setdefault(use, []).append(bucket)
        return found

    @cached_property
    def begun_by(self) -> dict[int, list[Bucket]]:
        return {use: [one for one in reversed(own) if one.uses[0] == use] for use, own in self.of_uses.items()}


def cut(layout: Layout, borders: Iterable[int]) -> Cut:
    """Cut the line at borders, each rounded up to the grid.

    Args:
        borders: elements in any order; both ends of the line are implied.

    >>> layout = Layout.of([[("a", (9,))], [("b", (100,))]], itemsize=4, ranks=2)
    >>> [str(bucket) for bucket in cut(layout, [layout.begin(1)])]
    ['bucket 0 (layers 0..1, 256 bytes)', 'bucket 1 (layers 1..1, 256 bytes)']
    """
    points = sorted({0, layout.count, *map(layout.point, borders)})
    buckets = []
    for index, (start, stop) in enumerate(pairwise(points)):
        tensors = layout.tensors(start, stop)
        uses = sorted({use for tensor in tensors for use in layout.users[tensor]})
        shapes = tuple(layout.shapes[tensor] for tensor in tensors) if layout.whole else ()
        buckets.append(Bucket(index, start, stop, tuple(uses), (stop - start) * layout.itemsize, shapes))
    return Cut(buckets)
