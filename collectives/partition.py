"""How a buffer splits over ranks: the only place that knows.

Chunks are contiguous and in rank order; their counts differ by at most one, the first ``count % size`` chunks
having one element more (as in Open MPI's ring). Chunks may be empty.
"""

from __future__ import annotations

__all__ = ["chunk_bounds", "chunk_offsets"]


def chunk_bounds(count: int, size: int, index: int) -> tuple[int, int]:
    """First element of chunk ``index``, and the one after its last.

    >>> [chunk_bounds(10, 4, index) for index in range(4)]
    [(0, 3), (3, 6), (6, 8), (8, 10)]
    """
    small, larger = divmod(count, size)
    start = index * small + min(index, larger)
    return start, start + small + (index < larger)


def chunk_offsets(count: int, size: int) -> tuple[int, ...]:
    """The ``size + 1`` borders between chunks, from 0 to ``count``."""
    return (*(chunk_bounds(count, size, index)[0] for index in range(size)), count)
