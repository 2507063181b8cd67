"""A bucket: an interval of the line, which travels as one. It need not begin or end where a tensor does.

    line     | embedding            | block 1 | block 2      | head |..|
    buckets  |    0     |    1      :   |  2          |  3          :  |
                                    ^ a border is put on the next point of the grid

All gradients of a bucket are there when the first of its uses has run backward, since backward goes from the last use
to the first; and that same use is the first to need it in the next forward pass. A border between two layers is rounded
up to the grid, so a layer's first few elements may travel with the layer before it. That layer is ready later and
needed earlier: a few bytes travel later, and no layer waits for another bucket first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from dear_mpi.training.line.layout import Layout, Shape


@dataclass(frozen=True)
class Bucket:
    """Elements ``start`` to ``stop`` of the line.

    Attributes:
        index: its number on the line.
        uses: the uses that touch it, ascending; all its gradients are there when ``uses[0]`` has run backward.
        nbytes: what travels, as it is.
        shapes: of its tensors, if the line has whole ones in buckets.
    """

    index: int
    start: int
    stop: int
    uses: tuple[int, ...]
    nbytes: int
    shapes: tuple[Shape, ...] = ()

    def __hash__(self) -> int:
        """By number alone: no two buckets of a line share it, and uses may be many."""
        return self.index

    @property
    def count(self) -> int:
        return self.stop - self.start

    @property
    def interval(self) -> tuple[int, int]:
        return self.start, self.stop

    @cached_property
    def name(self) -> str:
        """What logs and errors call it."""
        return f"bucket {self.index} (layers {self.uses[0]}..{self.uses[-1]}, {self.nbytes} bytes)"

    def __str__(self) -> str:
        return self.name


class Cut(tuple[Bucket, ...]):
    """The buckets of a line, in its order."""

    def needed_by(self, use: int) -> Sequence[Bucket]:
        """The buckets with parameters of a use."""
        return self.of_uses.get(use, ())

    def completed_by(self, use: int) -> Sequence[Bucket]:
        """The buckets whose gradients are all there when a use has run backward; the last of the line comes first."""
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
    """The buckets between borders, each put on the next point of the grid.

    Args:
        borders: elements of the line, in any order; its beginning and its end are borders anyway.

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
