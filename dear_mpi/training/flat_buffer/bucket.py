"""Cut the flat buffer into buckets: intervals that travel as one, at any element of the grid.

    buffer   | embedding            | block 1 | block 2      | head |..|
    buckets  |    0     |    1      :   |  2          |  3          :  |
                                    ^ a border is put on the next point of the grid

A bucket's first call completes its gradients, and needs it first in the next forward pass. Borders are
rounded up: a few bytes travel later, but no layer waits for a second bucket first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from dear_mpi.training.flat_buffer.layout import Layout, Shape


@dataclass(frozen=True)
class Bucket:
    """Hold elements ``start`` to ``stop`` of the flat buffer.

    Attributes:
        index: its number on the flat buffer.
        calls: the layer calls that touch it, ascending; ``calls[0]`` completes its gradients.
        nbytes: its size as it travels.
        shapes: of its tensors, if buckets consist of whole ones.
    """

    index: int
    start: int
    stop: int
    calls: tuple[int, ...]
    nbytes: int
    shapes: tuple[Shape, ...] = ()

    def __hash__(self) -> int:
        return self.index  # unique on a buffer, and ``calls`` may be long

    @property
    def count(self) -> int:
        return self.stop - self.start

    @property
    def interval(self) -> tuple[int, int]:
        return self.start, self.stop

    @cached_property
    def name(self) -> str:
        return f"bucket {self.index} (layers {self.calls[0]}..{self.calls[-1]}, {self.nbytes} bytes)"

    def __str__(self) -> str:
        return self.name


class Cut(tuple[Bucket, ...]):
    def needed_by(self, call: int) -> Sequence[Bucket]:
        return self.of_calls.get(call, ())

    def completed_by(self, call: int) -> Sequence[Bucket]:
        """List the buckets that a layer call's backward pass completes, from the end of the flat buffer."""
        return self.begun_by.get(call, ())

    @cached_property
    def of_calls(self) -> dict[int, list[Bucket]]:
        found: dict[int, list[Bucket]] = {}
        for bucket in self:
            for call in bucket.calls:
                found.setdefault(call, []).append(bucket)
        return found

    @cached_property
    def begun_by(self) -> dict[int, list[Bucket]]:
        return {call: [one for one in reversed(own) if one.calls[0] == call] for call, own in self.of_calls.items()}


def cut(layout: Layout, borders: Iterable[int]) -> Cut:
    """Cut the flat buffer at borders, each rounded up to the grid.

    Args:
        borders: elements in any order; both ends of the flat buffer are implied.

    >>> layout = Layout.of([[("a", (9,))], [("b", (100,))]], itemsize=4, ranks=2)
    >>> [str(bucket) for bucket in cut(layout, [layout.begin(1)])]
    ['bucket 0 (layers 0..1, 256 bytes)', 'bucket 1 (layers 1..1, 256 bytes)']
    """
    points = sorted({0, layout.count, *map(layout.point, borders)})
    buckets = []
    for index, (start, stop) in enumerate(pairwise(points)):
        tensors = layout.tensors(start, stop)
        calls = sorted({call for tensor in tensors for call in layout.users[tensor]})
        shapes = tuple(layout.shapes[tensor] for tensor in tensors) if layout.whole else ()
        buckets.append(Bucket(index, start, stop, tuple(calls), (stop - start) * layout.itemsize, shapes))
    return Cut(buckets)
